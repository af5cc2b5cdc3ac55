"""WordPiece tokens as BERT uses them: words cut into the longest pieces of a vocabulary."""

from fl_app.text.english import english
from fl_app.text.folder import read_tokenizer
from fl_app.text.tokenizer import WordPiece

__all__ = ["WordPiece", "english", "read_tokenizer"]
