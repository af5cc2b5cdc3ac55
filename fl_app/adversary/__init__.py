"""The attacker inside a federation: passive server, active server or participant."""
