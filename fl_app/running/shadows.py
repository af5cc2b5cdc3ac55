"""Shadow models: the run's training, repeated by the attacker on public samples and some candidates."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from flwr.clientapp import ClientApp
from omegaconf import OmegaConf
from safetensors.torch import save_file
from torch import Tensor, nn

from fl_app.config.build import ServerParts, server_parts
from fl_app.config.compose import join_overrides, split_overrides
from fl_app.config.trust import Trust
from fl_app.config.variants import shadow
from fl_app.console.progress import track
from fl_app.data.dataset import Samples
from fl_app.data.pool import save_pool
from fl_app.flower import InlineGrid
from fl_app.flower.held_tensor import hold
from fl_app.seeding import SERVER, generator_for
from fl_app.strategies import BudgetSpent
from fl_app.training import parameters
from fl_app.types import Records, Shadow, Update

logger = logging.getLogger(__name__)

Train = Callable[[bool, Records, Samples], Sequence[Shadow]]
"""Trains shadows with the defense or without it, on halves of the candidates and all public samples."""
_SEEDS = 1000
"""Distance of a shadow's seed from the run's: other draws, so other batches."""


@dataclass(frozen=True)
class ShadowTraining:
    """Settings of a run that its attacker repeats."""

    parts: ServerParts
    overrides: str
    trust: Trust
    client_app: ClientApp
    folder: Path
    start: Update = field(init=False)
    """Weights and buffers that the run began with: every party knows them."""

    def __post_init__(self) -> None:
        """Keep the initial weights: training changes the model."""
        start = {name: tensor.detach().clone() for name, tensor in self.parts.model.state_dict().items()}
        object.__setattr__(self, "start", start)

    def __call__(self, defended: bool, candidates: Records, public: Samples) -> list[Shadow]:
        """Train pairs of models; the second of a pair has the candidates that the first lacks."""
        if self.parts.attacker is None or not self.parts.attacker.shadows:
            return []
        halves = draw_halves(len(candidates), self.parts.attacker.shadows, self.parts.config["seed"])
        init = self.folder / "start.safetensors"
        self.folder.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor.cpu().contiguous() for name, tensor in self.start.items()}, init)
        found = []
        with track("shadow models" + (", defended" if defended else ""), len(halves)) as advance:
            for number, members in enumerate(halves):
                pool = save_pool(self.folder / "pool.safetensors", joined(public, candidates, members))
                model = self._train(defended, number, pool, init)
                found.append(Shadow(model, members))
                advance(number + 1, "")
        return found

    def _train(self, defended: bool, number: int, pool: Path, init: Path) -> nn.Module:
        config = self.parts.config
        same_model = defended or not self.parts.spec.extensions
        wanted = join_overrides(
            shadow(
                split_overrides(self.overrides),
                OmegaConf.create(config),
                defended=defended,
                seed=config["seed"] + _SEEDS * (1 + number),
                pool=pool,
                init=init if same_model else None,
            )
        )
        parts = server_parts(wanted, self.trust)
        grid = InlineGrid(self.client_app, config["clients"], run_config={"overrides": wanted})
        strategy = parts.strategy
        try:
            strategy.start(
                grid=grid,
                initial_arrays=hold(
                    strategy.weights | strategy.buffers
                    or {name: tensor.clone() for name, tensor in parts.model.state_dict().items()}
                ),
                num_rounds=config["rounds"],
                timeout=strategy.exchange.deadline.seconds,
            )
        except BudgetSpent:
            logger.info("shadow %d: the privacy budget is spent, as in the run", number)
        weights = strategy.weights | strategy.buffers
        model = parts.model
        with torch.no_grad():
            for name, tensor in (parameters(model) | dict(model.named_buffers())).items():
                tensor.copy_(weights[name])
        return model


def draw_halves(count: int, shadows: int, seed: int) -> list[Tensor]:
    """Return random halves of the candidates, each followed by its complement."""
    generator = generator_for(seed, 0, SERVER, "shadows")
    found: list[Tensor] = []
    for _ in range(shadows // 2):
        members = torch.zeros(count, dtype=torch.bool, device="cpu")
        members[torch.randperm(count, generator=generator, device="cpu")[: count // 2]] = True
        found += [members, ~members]
    return found


def joined(public: Samples, candidates: Records, members: Tensor) -> Samples:
    """Return public samples and some candidates, in the form of the data set."""
    inputs = candidates.inputs[members]
    if public.inputs.dtype == torch.uint8:
        inputs = (inputs * 255).round().to(torch.uint8)
    return Samples(
        torch.cat([public.inputs, inputs.to(public.inputs.dtype)]),
        torch.cat([public.labels, candidates.labels[members]]),
    )
