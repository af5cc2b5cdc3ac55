"""App of the audit's tests."""
