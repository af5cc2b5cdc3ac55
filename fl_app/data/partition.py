"""Partitions: ways to deal a data set to clients.

A partitioner maps labels, a number of clients and a generator to one index
tensor per client. No sample is dealt twice, no client goes empty, and each
client's indices come in random order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

Partitioner = Callable[[Tensor, int, torch.Generator], list[Tensor]]


def iid() -> Partitioner:
    """Deal all samples at random; sizes differ by one at most."""

    def partition(labels: Tensor, num_clients: int, generator: torch.Generator) -> list[Tensor]:
        _check("iid", labels, num_clients)
        return list(torch.randperm(len(labels), generator=generator, device="cpu").tensor_split(num_clients))

    return partition


def dirichlet(alpha: float) -> Partitioner:
    """Deal each class by shares from a symmetric Dirichlet law (Hsu et al., 2019).

    The smaller ``alpha``, the fewer classes a client sees. A client that got
    nothing takes one sample from the client that then holds the most: drawing anew until
    none is empty would hardly end for many clients and a small ``alpha``.
    """
    if not 0 < alpha < float("inf"):
        raise ValueError(f"dirichlet: alpha must be positive and finite, got {alpha}")

    def partition(labels: Tensor, num_clients: int, generator: torch.Generator) -> list[Tensor]:
        _check("dirichlet", labels, num_clients)
        # numpy draws the shares, because torch's gamma law takes no generator
        seed = int(torch.randint(2**62, (), generator=generator))
        shares = np.random.default_rng(seed)
        pieces: list[list[Tensor]] = [[] for _ in range(num_clients)]
        for members in _by_class(labels, generator):
            share = shares.dirichlet(np.full(num_clients, alpha))
            cuts = torch.from_numpy((np.cumsum(share)[:-1] * len(members)).astype(np.int64))
            for client, piece in enumerate(members.tensor_split(cuts)):
                pieces[client].append(piece)
        parts = [_shuffle(torch.cat(piece), generator) for piece in pieces]
        _feed_the_empty(parts)
        return parts

    return partition


def shards(per_client: int) -> Partitioner:
    """Sort by label, cut into equal shards and deal ``per_client`` of them to each (McMahan et al., 2017)."""
    if per_client < 1:
        raise ValueError(f"shards: per_client must be at least 1, got {per_client}")

    def partition(labels: Tensor, num_clients: int, generator: torch.Generator) -> list[Tensor]:
        count = num_clients * per_client
        _check("shards", labels, num_clients, least=count)
        pieces = torch.cat(_by_class(labels, generator)).tensor_split(count)
        hands = torch.randperm(count, generator=generator, device="cpu").view(num_clients, per_client)
        return [_shuffle(torch.cat([pieces[i] for i in hand]), generator) for hand in hands.tolist()]

    return partition


def fixed(samples: int) -> Partitioner:
    """Deal ``samples`` random samples to each client and leave the rest aside."""
    if samples < 1:
        raise ValueError(f"fixed: samples must be at least 1, got {samples}")

    def partition(labels: Tensor, num_clients: int, generator: torch.Generator) -> list[Tensor]:
        _check("fixed", labels, num_clients, least=num_clients * samples)
        order = torch.randperm(len(labels), generator=generator, device="cpu")
        return list(order[: num_clients * samples].split(samples))

    return partition


def natural() -> Partitioner:
    """Deal every group whole: a speaker, a document, or else a class goes to one client.

    The largest group goes first, each to the client that then has the fewest samples.
    """

    def partition(labels: Tensor, num_clients: int, generator: torch.Generator) -> list[Tensor]:
        _check("natural", labels, num_clients)
        groups = _by_class(labels, generator)
        if len(groups) < num_clients:
            raise ValueError(
                f"natural: {num_clients} clients need at least as many groups, got {len(groups)}"
            )
        order = torch.randperm(len(groups), generator=generator, device="cpu").tolist()
        hands: list[list[Tensor]] = [[] for _ in range(num_clients)]
        for group in sorted((groups[i] for i in order), key=len, reverse=True):
            min(hands, key=lambda hand: sum(map(len, hand))).append(group)
        return [_shuffle(torch.cat(hand), generator) for hand in hands]

    return partition


def by_owner(owners: Tensor, labels: Tensor, num_clients: int, generator: torch.Generator) -> list[Tensor]:
    """Deal samples as their source did: ``owners`` has the client of each."""
    clients = int(owners.max()) + 1
    if clients != num_clients:
        raise ValueError(f"the data has {clients} partitions; expected clients={clients}, got {num_clients}")
    hands = [torch.nonzero(owners == client).flatten() for client in range(clients)]
    if empty := [client for client, hand in enumerate(hands) if not len(hand)]:
        raise ValueError(f"the partitioner leaves client {empty[0]} without samples")
    return [_shuffle(hand, generator) for hand in hands]


def label_histogram(labels: Tensor, parts: Sequence[Tensor], num_classes: int) -> Tensor:
    """Count the labels that each client holds: (clients, classes)."""
    return torch.stack([torch.bincount(labels[part], minlength=num_classes) for part in parts])


def _check(who: str, labels: Tensor, num_clients: int, least: int | None = None) -> None:
    if num_clients < 1:
        raise ValueError(f"{who}: num_clients must be at least 1, got {num_clients}")
    least = num_clients if least is None else least
    if len(labels) < least:
        raise ValueError(f"{who}: {num_clients} clients need at least {least} samples, got {len(labels)}")


def _by_class(labels: Tensor, generator: torch.Generator) -> list[Tensor]:
    """Return the indices of each class that occurs, shuffled."""
    labels = labels.cpu()
    members = (torch.nonzero(labels == label).flatten() for label in labels.unique())
    return [_shuffle(indices, generator) for indices in members]


def _shuffle(indices: Tensor, generator: torch.Generator) -> Tensor:
    return indices[torch.randperm(len(indices), generator=generator, device="cpu")]


def _feed_the_empty(parts: list[Tensor]) -> None:
    for client, part in enumerate(parts):
        if len(part) == 0:
            richest = max(range(len(parts)), key=lambda i: len(parts[i]))
            parts[client], parts[richest] = parts[richest][:1], parts[richest][1:]
