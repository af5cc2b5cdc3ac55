"""A small model that spells, what it is told of an utterance, and the update that follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fl_app.models import las
from fl_app.types import Observation

TOKENS, START = 40, 1
SMALL = {"encoder": 6, "layers": 1, "embedding": 8, "attention": 5, "decoder": 16}


@dataclass(frozen=True, eq=False)
class Said:
    """One gradient, and what is behind it."""

    obs: Observation
    tokens: list[int]
    contexts: Tensor
    """What the decoder was really shown (1, S, A)."""


def make_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return las(TOKENS, (12, 4), **SMALL).double()


def differentiate(model: nn.Module, frames: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    previous = F.pad(tokens[:, :-1], (1, 0), value=START)
    loss = F.cross_entropy(model(frames, previous).flatten(0, 1), tokens.flatten())
    names, values = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, values, materialize_grads=True), strict=True))


@pytest.fixture(scope="session")
def say() -> Callable[..., Said]:
    """Return what makes a client say some tokens; ``cut``: without the gradient through the attention."""

    def say(tokens: Sequence[int], seed: int = 0, *, cut: bool = False) -> Said:
        model, contexts = make_model(seed), []
        frames = torch.randn(1, 12, 4, dtype=torch.float64)

        def keep(_: nn.Module, __: object, context: Tensor) -> Tensor:
            contexts.append(context.detach())
            return context.detach() if cut else context

        hook = model.attention.register_forward_hook(keep)
        update = differentiate(model, frames, torch.tensor([tokens]))
        hook.remove()
        obs = Observation(model, update, batch_size=1, num_classes=TOKENS)
        return Said(obs, list(tokens), torch.stack(contexts, dim=1))

    return say


@pytest.fixture(scope="session")
def train() -> Callable[..., Observation]:
    """Return what takes a step of SGD on each of several batches of transcripts of the same length."""

    def train(batches: Sequence[Sequence[Sequence[int]]], lr: float = 0.1) -> Observation:
        model, before = make_model(), make_model()
        for batch in batches:
            frames = torch.randn(len(batch), 12, 4, dtype=torch.float64)
            for name, slope in differentiate(model, frames, torch.tensor(batch)).items():
                model.get_parameter(name).data -= lr * slope
        started = dict(before.named_parameters())
        update = {name: value.detach() - started[name].detach() for name, value in model.named_parameters()}
        size = len(batches[0])
        return Observation(
            before,
            update,
            lr=lr,
            local_steps=len(batches),
            local_batch_size=size,
            batch_size=size * len(batches),
            num_classes=TOKENS,
        )

    return train
