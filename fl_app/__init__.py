"""Defended federated training on Flower, measured as the server's attacker would see it."""
