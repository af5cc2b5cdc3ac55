"""Rows of tokens, read off an update: what was said, as a bag of pieces and in order, or what was written."""

from attacks.sequences.bag_of_words import bag_of_words
from attacks.sequences.transcript import transcript
from attacks.text import text_dlg

__all__ = ["bag_of_words", "text_dlg", "transcript"]
