"""Sum of a client's rounds, read as one update of the model in the middle.

Error feedback delays what it withholds, and noise is drawn anew: the sum of many rounds on the same samples
comes near that of their gradients, which is nearly the gradient of the middle round times their number. It
needs no residual, so rounds may be missing, and clients may take local steps.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from attacks.knowledge import travelled
from fl_app.types import Observation


def unusable_sum(obs: Observation) -> str | None:
    """Return the reason why the rounds of the client cannot be added; None if they can."""
    if not obs.history:
        return "none was seen"
    if not obs.same_batch:
        return "the client is not known to compute on the same samples in every round"
    if any(seen.batch_size != obs.batch_size for seen in obs.history):
        return "they had other batch sizes"
    if len({(seen.local_steps, seen.lr) for seen in (*obs.history, obs) if seen.local_steps}) > 1:
        return "they had other local steps"
    return None


def summed(obs: Observation) -> Observation:
    """Return the mean update of all rounds as an observation of the model in the middle.

    What single rounds tell by their form (the size of unsent entries, signs) the mean no longer tells; its
    noise is smaller by the root of their number.
    """
    seen = [*obs.history, obs]
    middle = seen[len(seen) // 2]
    traces = None
    if obs.defense is not None:
        traces = tuple(
            replace(trace, withheld="", feedback=False, signs=False, noise=trace.noise / len(seen) ** 0.5)
            for trace in obs.defense
        )
    return replace(
        obs,
        model=middle.model,
        buffers=middle.buffers,
        update={name: torch.stack([one.update[name] for one in seen]).mean(dim=0) for name in obs.update},
        sent={name: torch.stack([travelled(one, name) for one in seen]).any(dim=0) for name in obs.update},
        defense=traces,
        locations=None,
        broadcaster=None,
        history=(),
        round=middle.round,
    )
