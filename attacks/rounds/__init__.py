"""Attacks on several updates of one client together."""
