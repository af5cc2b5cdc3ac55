"""Hashes of numbers and of JSON, by which two ends check that they hold the same ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

SHORT = 16
"""Digits that suffice to tell the samples and models of a study apart."""


def hash_tensors(tensors: Iterable[Tensor]) -> str:
    """Return the SHA-256 of the tensors' bytes: any two that differ in a bit have another."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().data)
    return digest.hexdigest()


def short_hash(tensors: Iterable[Tensor]) -> str:
    """Return the first `SHORT` digits of `hash_tensors`."""
    return hash_tensors(tensors)[:SHORT]


def hash_json(content: Any) -> str:
    """Return a hash of values that JSON can hold, the same in whatever way they are written."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def hash_named(told: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    """Return a hash of texts and tensors by name: types, shapes and all bits."""
    digest = hashlib.blake2b(hash_json(dict(told)).encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
