"""Attacks on the rows of tables."""

from attacks.tables.tableak import tableak

__all__ = ["tableak"]
