"""One rule for randomness: a generator is named by seed, round, client and purpose.

Nothing depends on the order in which clients run, so the inline engine, Ray and
a resumed run draw the same numbers.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray

SERVER = -1
"""The `client` of draws that belong to the server."""
_TWISTER_WORDS = 624
_TWISTER_START = 24
"""Offset of the Mersenne twister's words, eight bytes each, in the state of torch's CPU generator."""


def seed_for(seed: int, round: int, client: int, purpose: str) -> int:
    """Return a 63-bit seed that is a pure function of its four names."""
    name = f"{seed}/{round}/{client}/{purpose}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 1


def generator_for(seed: int, round: int, client: int, purpose: str) -> torch.Generator:
    """Return a fresh CPU generator; draws on the CPU are the same whatever the device."""
    return torch.Generator(device="cpu").manual_seed(seed_for(seed, round, client, purpose))


def unpredictable_state() -> torch.Tensor:
    """Return a state for torch's CPU generator from the operating system: a seed would be 32 bits of it."""
    state = _twister().copy()
    state[_TWISTER_START : _TWISTER_START + 8 * _TWISTER_WORDS].view("<u8")[:] = np.frombuffer(
        os.urandom(4 * _TWISTER_WORDS), "<u4"
    )
    return torch.from_numpy(state)


@functools.cache
def _twister() -> NDArray[np.uint8]:
    return torch.Generator(device="cpu").get_state().numpy()


@contextmanager
def seeded(seed: int | None, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators for a while (None: by the operating system), then restore them."""
    cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if cuda else []):
        # not torch.manual_seed: without a GPU it spends a millisecond on queueing seeds for one
        if seed is None:
            torch.default_generator.set_state(unpredictable_state())
        else:
            torch.default_generator.manual_seed(seed)
        if cuda:
            torch.cuda.manual_seed(int.from_bytes(os.urandom(8), "big") >> 1 if seed is None else seed)
        yield
