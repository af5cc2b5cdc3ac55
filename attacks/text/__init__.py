"""Attacks on language models: what a sentence was, from the gradient of the pieces that were masked in it."""

from attacks.text.embedding_rows import embedding_rows
from attacks.text.text_dlg import text_dlg

__all__ = ["embedding_rows", "text_dlg"]
