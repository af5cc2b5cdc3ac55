"""Attackers that learn from updates of images of their own, whatever the defense."""

from attacks.learned.regression import learned

__all__ = ["learned"]
