"""Pages of a report, section by section, and the summary on the terminal."""
