"""What the services of docker-compose.yml run: certificates, registration, health, starting a run."""
