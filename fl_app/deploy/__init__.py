"""Programs of the services in docker-compose.yml: certificates, registration, health, starting a run."""
