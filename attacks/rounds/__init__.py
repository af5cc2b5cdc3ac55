"""Attacks on several updates of one client, or of several clients, together."""
