"""Laws of images that an attacker learns from public ones."""

from attacks.priors.photographs import Photographs, law_of

__all__ = ["Photographs", "law_of"]
