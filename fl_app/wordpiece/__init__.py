"""Text as BERT sees it: words, cut into the longest pieces that a vocabulary has."""

from fl_app.wordpiece.english import english
from fl_app.wordpiece.folder import read_tokenizer
from fl_app.wordpiece.tokenizer import WordPiece

__all__ = ["WordPiece", "english", "read_tokenizer"]
