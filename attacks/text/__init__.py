"""Attacks on language models: recover a sentence from the gradient of its masked pieces."""

from attacks.text.dager import dager
from attacks.text.embedding_rows import embedding_rows
from attacks.text.text_dlg import text_dlg

__all__ = ["dager", "embedding_rows", "text_dlg"]
