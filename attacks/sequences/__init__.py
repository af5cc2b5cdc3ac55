"""What was said, read off the update of a model that spells: the bag of its pieces, then their order."""

from attacks.sequences.bag_of_words import bag_of_words
from attacks.sequences.transcript import transcript

__all__ = ["bag_of_words", "transcript"]
