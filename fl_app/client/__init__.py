"""One client of a federation: its answers, its memory between rounds, and its checks."""
