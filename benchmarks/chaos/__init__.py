"""Faults injected into real runs, and a checker of what the runs leave behind."""
