"""One rule for randomness: a generator is named by seed, round, client and purpose.

Nothing depends on the order in which clients run, so the inline engine, Ray and
a resumed run draw the same numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

SERVER = -1
"""The `client` of draws that belong to the server."""


def seed_for(seed: int, round: int, client: int, purpose: str) -> int:
    """Return a 63-bit seed that is a pure function of its four names."""
    name = f"{seed}/{round}/{client}/{purpose}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big") >> 1


def generator_for(seed: int, round: int, client: int, purpose: str) -> torch.Generator:
    """Return a fresh CPU generator; draws on the CPU are the same whatever the device."""
    return torch.Generator(device="cpu").manual_seed(seed_for(seed, round, client, purpose))


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators for a while; what they were is restored."""
    cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if cuda else []):
        # not torch.manual_seed: without a GPU it spends a millisecond on queueing seeds for one
        torch.default_generator.manual_seed(seed)
        if cuda:
            torch.cuda.manual_seed(seed)
        yield
