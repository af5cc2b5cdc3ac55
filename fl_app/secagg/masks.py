"""Mask expansion: a 32-byte key becomes one random word per entry, added modulo 2^bits.

AES-256 in counter mode. Every key is derived for one round, one purpose and one client or pair
(`fl_app.secagg.keys`) and expands one mask, so the counter starts at zero. The words wrap around by
themselves: arithmetic modulo 2^32 is arithmetic modulo 2^24 in the low 24 bits.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR

from fl_app.secagg.fixed_point import Words

_ZEROS = memoryview(bytes(1 << 17))  # block encrypted at a time: fits the processor's cache


def add_mask(words: Words, key: bytes) -> None:
    """Add the mask of ``key`` to ``words``, in place."""
    for part, stream in _expand(words, key):
        np.add(part, stream, out=part)


def remove_mask(words: Words, key: bytes) -> None:
    """Subtract the mask of ``key`` from ``words``, in place."""
    for part, stream in _expand(words, key):
        np.subtract(part, stream, out=part)


def _expand(words: Words, key: bytes) -> Iterator[tuple[Words, Words]]:
    cipher = Cipher(AES256(key), CTR(bytes(16))).encryptor()
    step = len(_ZEROS) // words.itemsize
    for start in range(0, words.size, step):
        part = words[start : start + step]
        yield part, np.frombuffer(cipher.update(_ZEROS[: part.nbytes]), words.dtype)
