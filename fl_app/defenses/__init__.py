"""Defenses that change training itself, and how several defenses work together."""

from fl_app.defenses.defense import Defense, protect

__all__ = ["Defense", "protect"]
