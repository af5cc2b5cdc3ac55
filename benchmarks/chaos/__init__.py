"""Faults injected into real runs, at random and at exact points, and a checker of what the runs leave behind."""
