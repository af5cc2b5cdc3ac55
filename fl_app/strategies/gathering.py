"""Sum of a round: the readable updates, summed by weight or combined by a robust rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fl_app.strategies.aggregate import RunningSum
from fl_app.strategies.exchange import open_update
from fl_app.strategies.robust import Rule, take_median
from fl_app.types import Update
from fl_app.wire import CodecError
from fl_app.wire.messages import Reply


@dataclass
class Gathered:
    """Sums of updates and of buffers, and the clients behind them."""

    total: RunningSum = field(default_factory=RunningSum)
    buffers: RunningSum = field(default_factory=RunningSum)
    clients: list[int] = field(default_factory=list)
    sample: tuple[Update, int] | None = None
    """First update, and its size in bytes."""


def gather_updates(
    good: Mapping[int, Reply],
    weights: Mapping[int, float],
    *,
    read: Callable[[bytes], Update],
    wanted: Update,
    rule: Rule | None,
    refuse: Callable[[int, str], None],
) -> Gathered:
    """Add up the updates and the ``wanted`` buffers of replies, in the order of their clients.

    An unreadable reply is left out, and ``refuse`` gets the reason. With a ``rule`` all updates are kept
    until the end, and the rule combines them; the buffers are then combined by their median.
    """
    gathered = Gathered()
    kept: list[tuple[Update, Update, float]] = []
    for client in sorted(good):
        reply = good[client]
        try:
            update, beside = open_update(reply, read, wanted)
        except CodecError as error:
            refuse(client, str(error))
            continue
        if not gathered.clients:
            gathered.sample = update, len(reply.update)
        gathered.clients.append(client)
        if rule is not None:
            kept.append((update, beside, weights[client]))
            continue
        gathered.total.add(update, weights[client])
        gathered.buffers.add(beside, weights[client])
    if rule is not None and kept:
        updates, besides, shares = (list(part) for part in zip(*kept, strict=True))
        gathered.total.add(rule(updates, shares), sum(shares))
        gathered.buffers.add(take_median(besides), sum(shares))
    return gathered
