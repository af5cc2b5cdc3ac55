"""Attacks on token sequences: spoken words as a bag and in order, and written sentences."""

from attacks.sequences.bag_of_words import bag_of_words
from attacks.sequences.transcript import transcript
from attacks.text import text_dlg

__all__ = ["bag_of_words", "text_dlg", "transcript"]
