"""Error feedback: carry the part that a transform withholds to the next round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from fl_app.transforms.transform import State, Transform
from fl_app.types import RoundContext, Update


def error_feedback(
    inner: Transform, enabled: bool = True, decay: float = 1.0, jump: float | None = None
) -> Transform:
    """Wrap ``inner`` so that its residual is carried to the next round.

    Symbols of Karimireddy et al., ICML 2019, Algorithm 2: ``p`` = corrected
    update, ``delta`` = C(p), ``e`` = residual. ``enabled=False`` is the ablation
    of Xue et al., Fig. 4. A sent update that the server did not count
    (``ctx.uncounted``) goes back into the residual first: nothing is lost.

    Feedback may forget: ``decay`` of the residual is kept, and with ``jump`` all of it goes after a round
    whose update is more than ``jump`` times as long as the mean of the earlier ones. What is forgotten is
    never sent, so that fewer rounds tell of one sample; what is sent no longer adds up to the sum of updates.

    A private release is refused: its residual is the secret that clipping and noise
    protect, and carrying it over would send exactly that.
    """
    if not isinstance(enabled, bool):
        raise ValueError(f"error_feedback: must be true or false, got {enabled!r}")
    if isinstance(decay, bool) or not 0 < decay <= 1:
        raise ValueError(f"error_feedback: decay must be in (0, 1], got {decay!r}")
    if jump is not None and not (not isinstance(jump, bool) and 1 < jump < math.inf):
        raise ValueError(f"error_feedback: jump must be a finite number above 1, got {jump!r}")
    if not enabled:
        return inner
    if inner.released:
        raise ValueError(
            "error_feedback: inner must be a transform whose residual may be sent later, "
            "got a private release (clip_and_noise): its residual would undo the clipping and the noise"
        )

    def init(update: Update) -> State:
        state: State = {
            "e": {name: torch.zeros_like(tensor) for name, tensor in update.items()},
            "inner": inner.init(update),
        }
        # the sum of norms and the number of rounds
        return state if jump is None else state | {"past": torch.zeros(2, dtype=torch.float64)}

    def apply(update: Update, state: State, ctx: RoundContext) -> tuple[Update, State]:
        p, inner_state = corrected(update, {"e": state["e"]}, ctx), cast(State, state["inner"])
        delta, inner_state = inner.apply(p, inner_state, ctx)
        e = {name: p[name] - delta[name] for name in p}
        if decay < 1:
            e = {name: decay * tensor for name, tensor in e.items()}
        after: State = {"e": cast(State, e), "inner": inner_state}
        if jump is None:
            return delta, after
        past, length = cast(Tensor, state["past"]), norm(list(update.values()))
        if past[1] > 0 and length > jump * float(past[0] / past[1]):
            after["e"] = {name: torch.zeros_like(tensor) for name, tensor in e.items()}
        return delta, after | {"past": past + past.new_tensor([length, 1.0])}

    traces = tuple(replace(trace, feedback=True, memory=decay) for trace in inner.traces)
    return Transform(init, apply, located=inner.located, traces=traces, drawn=inner.drawn)


def corrected(update: Update, state: State, ctx: RoundContext) -> Update:
    """Return the transform's input: the update plus everything withheld in ``state``."""
    p = update
    for e in _residuals(state):
        if ctx.uncounted is not None:
            e = {name: tensor + ctx.uncounted[name] for name, tensor in e.items()}
        p = {name: tensor + e[name] for name, tensor in p.items()}
    return p


def residual_norm(state: State) -> float | None:
    """Return the Euclidean norm of everything withheld in ``state``; None if it holds no residual."""
    residuals = [tensor for e in _residuals(state) for tensor in e.values()]
    return norm(residuals) if residuals else None


def norm(tensors: Sequence[Tensor]) -> float:
    """Return the Euclidean norm of all tensors as one vector."""
    return float(torch.stack(torch._foreach_norm(list(tensors))).double().norm())


def _residuals(state: State) -> list[Update]:
    found: list[Update] = []
    for name, node in state.items():
        if isinstance(node, Tensor):
            continue
        found += [cast(Update, node)] if name == "e" else _residuals(node)
    return found
