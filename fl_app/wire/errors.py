"""The one exception of the wire."""

from __future__ import annotations


class CodecError(ValueError):
    """Bytes came that are no valid blob for what the receiver expects."""
