"""Transform: a pair of pure functions with explicit state."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Union

from torch import Tensor

from fl_app.types import RoundContext, Trace, Update

State = dict[str, Union[Tensor, "State"]]
"""A tree of named tensors: it fits into Flower's `Context.state`."""


class Transform(NamedTuple):
    """Two pure functions and their guarantees; no hidden state, and the input is never modified."""

    init: Callable[[Update], State]
    apply: Callable[[Update, State, RoundContext], tuple[Update, State]]
    released: bool = False
    """Its output is a private release: the withheld part must never be sent later."""
    located: float | None = None
    """The share of positions that clients may be asked to name for it (``ctx.locations``); None: none."""
    traces: tuple[Trace, ...] = (Trace(),)
    """Marks on the update that an adaptive attacker looks for, of each step."""


def stateless(
    rewrite: Callable[[Update, RoundContext], Update],
    *,
    released: bool = False,
    located: float | None = None,
    traces: tuple[Trace, ...] = (Trace(),),
) -> Transform:
    """Make a transform of a function that remembers nothing."""
    return Transform(
        init=lambda update: {},
        apply=lambda update, state, ctx: (rewrite(update, ctx), state),
        released=released,
        located=located,
        traces=traces,
    )
