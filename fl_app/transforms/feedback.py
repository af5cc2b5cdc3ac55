"""Error feedback: carry the part that a transform withholds to the next round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from fl_app.transforms.transform import State, Transform
from fl_app.types import RoundContext, Update


def error_feedback(inner: Transform, enabled: bool = True) -> Transform:
    """Wrap ``inner`` so that its residual is carried to the next round.

    Symbols of Karimireddy et al., ICML 2019, Algorithm 2: ``p`` = corrected
    update, ``delta`` = C(p), ``e`` = residual. ``enabled=False`` is the ablation
    of Xue et al., Fig. 4. A sent update that the server did not count
    (``ctx.uncounted``) goes back into the residual first: nothing is lost.

    A private release is refused: its residual is the secret that clipping and noise
    protect, and carrying it over would send exactly that.
    """
    if not isinstance(enabled, bool):
        raise ValueError(f"error_feedback: must be true or false, got {enabled!r}")
    if not enabled:
        return inner
    if inner.released:
        raise ValueError(
            "error_feedback: inner must be a transform whose residual may be sent later, "
            "got a private release (clip_and_noise): its residual would undo the clipping and the noise"
        )

    def init(update: Update) -> State:
        return {
            "e": {name: torch.zeros_like(tensor) for name, tensor in update.items()},
            "inner": inner.init(update),
        }

    def apply(update: Update, state: State, ctx: RoundContext) -> tuple[Update, State]:
        p, inner_state = corrected(update, {"e": state["e"]}, ctx), cast(State, state["inner"])
        delta, inner_state = inner.apply(p, inner_state, ctx)
        return delta, {"e": {name: p[name] - delta[name] for name in p}, "inner": inner_state}

    traces = tuple(replace(trace, feedback=True) for trace in inner.traces)
    return Transform(init, apply, located=inner.located, traces=traces)


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
