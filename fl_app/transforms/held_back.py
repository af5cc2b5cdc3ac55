"""Messages held back: until enough samples are behind one, or until the first rounds are over."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from fl_app.transforms.transform import State, Transform
from fl_app.types import RoundContext, Trace, Update


def accumulate(floor: int) -> Transform:
    """Send nothing until at least ``floor`` samples are behind the sum of updates, then the sum.

    An update whose number of samples is not known counts as one. The sum, not the mean, is sent: as many
    steps are made in all as without it. Of samples that repeat, a sum tells as much as one update.
    """
    _check("accumulate", "floor", floor)

    def init(update: Update) -> State:
        zeros = {name: torch.zeros_like(tensor) for name, tensor in update.items()}
        return {"sum": cast(State, zeros), "count": torch.zeros((), dtype=torch.float64)}

    def apply(update: Update, state: State, ctx: RoundContext) -> tuple[Update, State]:
        held = cast(Update, state["sum"])
        lost = ctx.uncounted or {}
        total = {name: tensor + held[name] for name, tensor in update.items()}
        total = {name: tensor + lost[name] if name in lost else tensor for name, tensor in total.items()}
        count = cast(Tensor, state["count"]) + max(1, ctx.samples or 0)
        zeros = {name: torch.zeros_like(tensor) for name, tensor in update.items()}
        if count < floor:
            return zeros, {"sum": cast(State, total), "count": count}
        return total, {"sum": cast(State, zeros), "count": torch.zeros_like(count)}

    return Transform(init, apply, traces=(Trace(remark="messages are sums over several rounds"),))


def skip_first(rounds: int) -> Transform:
    """Send nothing in the first ``rounds`` rounds, in which an update tells most; begin with a public model.

    Without weights that were trained on public data (``init=``) the model only starts later, and the first
    update that is sent tells as much as ever.
    """
    _check("skip_first", "rounds", rounds)

    def apply(update: Update, state: State, ctx: RoundContext) -> tuple[Update, State]:
        if ctx.round <= rounds:
            return {name: torch.zeros_like(tensor) for name, tensor in update.items()}, state
        return dict(update), state

    return Transform(lambda update: {}, apply, traces=(Trace(remark="the first rounds are empty"),))


def _check(who: str, what: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{who}: {what} must be a whole number of at least 1, got {value!r}")
