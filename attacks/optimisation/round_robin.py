"""Round-robin optimisation: one sample of a batch at a time (Zhu et al. 2019, Eq. 5).

The gradient only depends on the samples' sum, so samples that move together may swap
places; moved in turn, each fits the remainder left by the others.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attacks.optimisation.optimisers import Evaluate, Optimiser, Variables


class RoundRobin:
    """Moves sample ``i mod N`` of every problem in step ``i``, each sample with an optimiser of its own.

    The second axis of every variable counts the samples.
    """

    def __init__(self, make: Callable[[], Optimiser], samples: int):
        self.optimisers = [make() for _ in range(samples)]
        self.taken = 0

    def step(self, variables: Variables, evaluate: Evaluate, lr: float) -> Variables:
        """Return the variables with one sample moved."""
        turn = self.taken % len(self.optimisers)
        self.taken += 1

        def together(own: Variables) -> Variables:
            return {name: _with_sample(value, own[name], turn) for name, value in variables.items()}

        def evaluate_own(own: Variables) -> tuple[Tensor, Variables]:
            values, gradients = evaluate(together(own))
            return values, {name: gradient[:, turn] for name, gradient in gradients.items()}

        own = {name: value[:, turn] for name, value in variables.items()}
        return together(self.optimisers[turn].step(own, evaluate_own, lr))

    def reset(self, which: Tensor) -> None:
        """Reset the state of the samples of some problems."""
        for optimiser in self.optimisers:
            optimiser.reset(which)


def _with_sample(batches: Tensor, sample: Tensor, number: int) -> Tensor:
    index = torch.tensor([number], device=batches.device)
    return batches.detach().index_copy(1, index, sample.unsqueeze(1))
