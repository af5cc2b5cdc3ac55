"""Failures that their text states in full, so that commands print it instead of a traceback."""

from __future__ import annotations


class StatedFailure(RuntimeError):
    """A run or a part of it failed, and the text says why; a command prints it and exits with 1."""
