"""Bench of a defense: a fixed criterion, measured within a time, on a card that joins a leaderboard."""
