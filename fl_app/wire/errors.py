"""The one exception of the wire."""

from __future__ import annotations


class CodecError(ValueError):
    """The bytes are not a valid blob for the tensors that the receiver expects."""
