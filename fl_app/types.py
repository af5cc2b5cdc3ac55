"""The few types that every part speaks: an update, a round, what an attacker knows, what is true.

The adversary's knowledge is a type. `Observation` has no field for client data
or a client's seed, so an attack cannot cheat by accident; `Truth` is a type of
its own that only `attacks.score` may hold beside a result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

Update = dict[str, Tensor]
"""One entry per named parameter. A pruned entry is exactly 0.0."""


@dataclass(frozen=True)
class RoundContext:
    """What a transform may know of the round it runs in."""

    round: int
    client: int
    generator: torch.Generator
    weights: Mapping[str, Tensor] | None = None
    locations: Mapping[str, Tensor] | None = None
    uncounted: Mapping[str, Tensor] | None = None
    """The client's last sent update, if the server did not count it."""


@dataclass(frozen=True)
class Observation:
    """What an honest-but-curious server knows of one client's round.

    Only `model` and `update` are always there; None means "not granted".
    """

    model: nn.Module
    """The architecture with the weights that the client started from."""
    update: Update
    """A gradient (``local_steps`` None), or weights after minus weights before."""
    sent: Mapping[str, Tensor] | None = None
    """Boolean masks: which entries travelled."""
    lr: float | None = None
    local_steps: int | None = None
    local_batch_size: int | None = None
    """Of a local step; the last step of a pass may have fewer samples."""
    batch_size: int | None = None
    num_classes: int | None = None
    input_shape: tuple[int, ...] | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    """Per-channel normalisation: the model sees ``(pixel - mean) / std``."""
    defense: Mapping[str, object] | None = None
    labels: Tensor | None = None
    buffers: Mapping[str, Tensor] | None = None
    """BatchNorm statistics that the client sent."""
    training: bool | None = None
    """Whether the client computed in train mode."""
    round: int | None = None
    locations: Mapping[str, Tensor] | None = None
    """Boolean masks: the only positions at which this round's updates could be non-zero (ADGP)."""
    broadcaster: bool | None = None
    """Whether this client named them: then they are the largest entries of what it pruned."""
    history: Sequence[Observation] = field(default=())
    """Earlier rounds of the same client, oldest first."""
    same_batch: bool | None = None
    """Whether the client computes on the same samples in every round, because they are all it has."""
    rewrites: Sequence[Callable[[Tensor], Tensor]] = ()
    """Public rewritings of pixels (N, C, H, W) in [0, 1], one of which the client applied to each image
    before it trained."""


class Manipulated(NamedTuple):
    """A model as a malicious server sends it."""

    model: nn.Module
    """A copy with other weights, and maybe with other layers."""
    extensions: Mapping[str, dict[str, object]]
    """What the added layers are built by, as an order may say it: settings by name."""


@dataclass(frozen=True)
class Truth:
    """What the client really trained on; only scores may see it."""

    inputs: Tensor
    """Pixels in [0, 1] (N, C, H, W), before normalisation; or tokens (N, L), before any were hidden."""
    labels: Tensor
    trained: Tensor | None = None
    """The pixels that the update was computed on, where a defense put others in the inputs' place."""

    def tokens(self) -> tuple[Tensor, Tensor]:
        """Return the one sequence that was trained on, and which of its tokens (L,) are labels.

        Labels (1, L) are its tokens; a label below 0 is no token, and where the inputs are tokens as well
        (those of a masked language model, which is asked for a few), theirs stands there.
        """
        if self.labels.ndim != 2 or len(self.labels) != 1:
            raise ValueError(f"Truth: one sequence has labels (1, L), these are {tuple(self.labels.shape)}")
        labels, inputs = self.labels[0].cpu(), self.inputs.cpu()
        tokens = labels
        if inputs.shape == self.labels.shape and not inputs.is_floating_point():
            tokens = torch.where(labels < 0, inputs[0], labels)
        there = tokens >= 0
        return tokens[there], (labels >= 0)[there]
