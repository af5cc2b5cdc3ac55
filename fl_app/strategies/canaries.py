"""Canaries in a simulated federation: drawn, clipped and noised like clients, without training."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_app.privacy import ClientNoise, NoiseShares
from fl_app.privacy.canaries import canary_direction
from fl_app.seeding import SERVER, generator_for
from fl_app.sketches import Sketch, flatten, unflatten
from fl_app.types import Update


class Canaries:
    """Canaries of a run. They depend on its settings alone, so a resumed run has the same ones."""

    def __init__(self, privacy: ClientNoise, seed: int) -> None:
        self._privacy = privacy
        self._seed = seed

    def draw(self, server_round: int) -> list[int]:
        """Return the participating canaries, by the same rule as clients."""
        coins = generator_for(self._seed, server_round, SERVER, "canaries")
        return self._privacy.draw(range(self._privacy.canaries), coins, server_round)

    def upload(
        self,
        canary: int,
        server_round: int,
        *,
        sketch: Sketch,
        like: Update,
        clip: float,
        shares: NoiseShares,
    ) -> Tensor:
        """Return a canary's vector: its direction as long as ``clip`` allows, with a share of the noise."""
        size = sum(tensor.numel() for tensor in like.values())
        vector = sketch.take(unflatten(canary_direction(self._seed, canary, size), like)).double()
        noise = generator_for(self._seed, server_round, SERVER, f"canary/{canary}/noise")
        longest = vector * (clip / vector.norm())
        sent = self._privacy.protect(longest, clip=clip, shares=shares, generator=noise)
        return sent.to(next(iter(like.values())).dtype)

    def cosines(self, start: Update, weights: Update) -> Tensor:
        """Return each canary's cosine with the change of the model over the run."""
        change = flatten(weights).double().cpu() - flatten(start).double().cpu()
        change /= change.norm()
        count, size = self._privacy.canaries, len(change)
        return torch.stack([canary_direction(self._seed, i, size) @ change for i in range(count)])
