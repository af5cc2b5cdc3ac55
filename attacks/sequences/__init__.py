"""Attacks on token sequences: spoken words as a bag and in order, and written sentences."""

from attacks.sequences.bag_of_words import bag_of_words
from attacks.sequences.transcript import transcript
from attacks.text import dager, text_dlg

__all__ = ["bag_of_words", "dager", "text_dlg", "transcript"]
