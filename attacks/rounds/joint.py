"""Joint matching of several rounds of one client, with the residual of every round known.

With error feedback, the input of a client's transform in round ``t`` is the gradient of that round plus what
earlier rounds withheld: ``p_t = g_t + m (p_(t-1) - s_(t-1))``, with ``m`` = 1 unless the client forgets. The
server knows every ``s`` and all weights, so a guess for the samples gives every ``p_t``, and every round adds
its sent entries to those that are matched.

A client with few samples computes on the same ones in every round: then all rounds have one guess. A client
with a stream has others in every round: then each round has a guess of its own, and later rounds complete
what the first one withheld.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attacks.knowledge import has_feedback, memory_of, travelled
from attacks.optimisation.problem import Problem, flatten_update
from attacks.optimisation.stochastic_layers import stochastic_layers
from attacks.optimisation.withheld import Withheld, withheld_entries
from attacks.rounds.course import Rounds, carried
from fl_app.types import Observation


def unusable_rounds(obs: Observation) -> str | None:
    """Return the reason why the rounds of the client cannot be matched as those of the same samples."""
    if not obs.history:
        return "none was seen"
    if not obs.same_batch:
        return "the client is not known to compute on the same samples in every round"
    return _unfit(obs)


def unusable_stream(obs: Observation) -> str | None:
    """Return the reason why the rounds of the client cannot be matched as those of a stream of samples."""
    if not obs.history:
        return "none was seen"
    if obs.same_batch:
        return "the client computes on the same samples in every round"
    if not has_feedback(obs):
        return "without error feedback, a round tells nothing of the samples of another"
    return _unfit(obs)


def with_earlier_rounds(problem: Problem, obs: Observation, *, stream: bool = False) -> Problem:
    """Return the problem of all rounds of an observation whose history can be used."""
    seen = [*obs.history, obs]
    like, names = problem.target, problem.names
    sent = torch.stack([flatten_update(one.update, names) for one in seen]).to(like)
    memory = memory_of(obs)
    before = carried(sent, memory) - sent if memory else torch.zeros_like(sent)
    rules = [rule for one in seen if (rule := withheld_entries(one, names)) is not None]
    states = [{name: tensor.detach().to(like) for name, tensor in _state(one).items()} for one in seen]
    sent_masks = torch.cat([travelled(one, name).flatten() for one in seen for name in names])
    withheld = None
    if len(rules) == len(seen):
        withheld = Withheld(*(torch.cat(side).to(like) for side in zip(*rules, strict=True)))
    whose = "other samples in each" if stream else "the same samples"
    note = f"adaptive: matched together with the {len(obs.history)} earlier rounds on {whose}"
    return replace(
        problem,
        target=sent.flatten(),
        sent=sent_masks.to(like.device),
        batch_size=problem.batch_size * (len(seen) if stream else 1),
        withheld=withheld,
        rounds=Rounds(tuple(states), memory, before.flatten(), stream),
        notes=(*problem.notes, note),
    )


def _unfit(obs: Observation) -> str | None:
    if any(seen.local_steps is not None for seen in (*obs.history, obs)):
        return "they had local steps, and only gradients add up"
    if stochastic_layers(obs.model):
        return "the model draws anew in every round"
    if len(obs.rewrites) > 1:
        return "the client draws its rewritings anew in every round"
    if any(seen.batch_size != obs.batch_size for seen in obs.history):
        return "they had other batch sizes"
    rounds = [seen.round for seen in (*obs.history, obs)]
    if has_feedback(obs) and rounds != list(range(1, len(rounds) + 1)):
        return "with error feedback, all rounds since the first are needed"
    return None


def _state(obs: Observation) -> dict[str, Tensor]:
    """Return the model that the client computed on: in eval mode, with the buffers that it sent."""
    return {**obs.model.state_dict(), **((not obs.training and obs.buffers) or {})}
