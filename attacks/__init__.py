"""Attacks on updates: what an honest-but-curious server can learn from what a client sends."""

from attacks.base import Attack, LabelAttack, LabelSet, Reconstruction, StepListener, Transcript

__all__ = ["Attack", "LabelAttack", "LabelSet", "Reconstruction", "StepListener", "Transcript"]
