"""Text as BERT sees it: words, cut into the longest pieces that a vocabulary has."""

from fl_app.text.english import english
from fl_app.text.folder import read_tokenizer
from fl_app.text.tokenizer import WordPiece

__all__ = ["WordPiece", "english", "read_tokenizer"]
