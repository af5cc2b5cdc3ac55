"""Transform: a pair of pure functions with explicit state."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Union

from torch import Tensor

from fl_app.sketches import Drawn
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
    """Share of positions that the server may ask clients to name (``ctx.locations``); None: none."""
    traces: tuple[Trace, ...] = (Trace(),)
    """Marks of each step on the update, which an adaptive attacker looks for."""
    drawn: Callable[[Update, int], Drawn] | None = None
    """Public random positions of a round at which alone its output is not 0, if there are such."""


def stateless(
    rewrite: Callable[[Update, RoundContext], Update],
    *,
    released: bool = False,
    located: float | None = None,
    traces: tuple[Trace, ...] = (Trace(),),
    drawn: Callable[[Update, int], Drawn] | None = None,
) -> Transform:
    """Make a transform from a stateless function."""
    return Transform(
        init=lambda update: {},
        apply=lambda update, state, ctx: (rewrite(update, ctx), state),
        released=released,
        located=located,
        traces=traces,
        drawn=drawn,
    )
