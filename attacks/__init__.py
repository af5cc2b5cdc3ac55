"""Attacks on updates: recover a client's data from the messages that it sends to the server."""

from attacks.base import Attack, LabelAttack, LabelSet, Reconstruction, StepListener, Transcript

__all__ = ["Attack", "LabelAttack", "LabelSet", "Reconstruction", "StepListener", "Transcript"]
