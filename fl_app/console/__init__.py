"""Terminal output: one progress display for the process, and the level of logging."""
