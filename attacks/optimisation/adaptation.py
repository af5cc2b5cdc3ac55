"""Adaptive attacker: changes to the search for an attacker who knows the defense.

The server hands out the defense, so it is public. The search depends on the traces that the defense states
(`fl_app.types.Trace`):

- Withheld entries are not matched as zeros. After pruning by size, linear layers are completed from the
  entries that were sent, and the other entries must obey the pruning rule; without the largest entries
  images must be smoother.
- Earlier rounds: they are matched as well, which undoes error feedback; see `attacks.rounds`.
- Signs: the guess is judged by their likelihood. If only those of the largest entries were sent, the guess
  must have its largest entries there.
- Random draws in the model: the search finds them together with the images, and ignores the layers behind
  them.
- Noise: the larger its share of the update, the smoother the images must be.
- Rewritten images: the search finds a rewritten image, and `attacks.rewrites` undoes the rewriting.
- Confined training: entries that were not sent do not move while local steps are unrolled. They are not
  matched, and nothing is known of their size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from attacks.analytic.completed_update import complete_update
from attacks.knowledge import (
    added_noise,
    gradient_unit,
    has_feedback,
    is_confined,
    pruning_of,
    sends_signs,
    tells_all,
)
from attacks.optimisation.matching import Recipe
from attacks.optimisation.objectives import Matching, squashed
from attacks.optimisation.optimisers import Variables
from attacks.optimisation.problem import Problem
from attacks.optimisation.sign_likelihood import sign_likelihood, support_hinge
from attacks.optimisation.stochastic_layers import give_draws, in_front, loss_of, stochastic_layers
from attacks.optimisation.withheld import Withheld, withheld_entries
from attacks.rounds.joint import unusable_rounds, unusable_stream, with_earlier_rounds
from attacks.rounds.summed import summed, unusable_sum
from fl_app.types import Observation

TOGETHER = ("auto", "joint", "sum", "stream", "single")
"""Ways to use the rounds of a client: all on the same samples, their sum, all on other samples, none but the
attacked one; "auto" is joint where the client is known to have no other samples, else single."""
RULE = 0.1
"""Weight of the rule by which entries were withheld: 1 gains no more, and 10 leads the search astray."""
SMOOTHER = 4.0
"""Multiple of the priors' weights that is added to them where an update is pure noise …"""
HEADLESS = 2.0
"""… and where the largest, most telling entries are missing."""


def informed(
    obs: Observation, read: Callable[[Observation], Problem], together: str = "auto"
) -> tuple[Observation, Problem]:
    """Return the observation and the problem as seen by an attacker who knows the defense.

    ``read`` makes a problem of an observation; ``together`` is one of `TOGETHER`.
    """
    reason, notes = None, []
    if together in ("auto", "joint"):
        if (reason := unusable_rounds(obs)) is None:
            return obs, with_earlier_rounds(read(obs), obs)
    elif together == "stream":
        if (reason := unusable_stream(obs)) is None:
            return obs, with_earlier_rounds(read(obs), obs, stream=True)
    elif together == "sum" and (reason := unusable_sum(obs)) is None:
        notes.append(f"the sum of all {len(obs.history) + 1} rounds is matched as one of the middle round")
        obs = summed(obs)
    if obs.history:
        why = "as asked" if reason is None else reason
        notes.append(f"adaptive: {len(obs.history)} earlier rounds of the client left out: {why}")
    # signs have neither low rank nor a size; and after the first round, error feedback adds a residual that
    # breaks both rules
    late = has_feedback(obs) and obs.round != 1
    if pruning_of(obs) is None or sends_signs(obs) or late:
        problem = read(obs)
    else:
        whole = complete_update(obs)
        notes += [f"adaptive: {note}" for note in whole.notes]
        as_sent, obs = obs, replace(obs, update=whole.update, sent=whole.sent)
        problem = read(obs)
        rule = withheld_entries(as_sent, problem.names)
        withheld = rule and Withheld(*(bound.to(problem.target) for bound in rule))
        problem = replace(problem, withheld=withheld)
    if is_confined(obs):
        problem = replace(problem, trained=problem.sent)
    if stochastic_layers(problem.model):
        problem = replace(problem, sent=problem.sent & in_front(problem))
        notes.append("adaptive: draws searched for with the images, layers behind them left out")
    notes += [f"adaptive: {remark}" for remark in _remarks(obs)]
    return obs, replace(problem, notes=(*problem.notes, *notes))


def informed_recipe(recipe: Recipe, obs: Observation, problem: Problem) -> Recipe:
    """Return the search of an attacker who knows the defense."""
    draws = bool(stochastic_layers(problem.model))
    recipe = replace(recipe, masked=draws or not tells_all(obs), withheld=RULE)
    if sends_signs(obs):
        rounds = 1 if problem.rounds is None else len(problem.rounds.states)
        recipe = replace(recipe, matching=_of_signs(recipe, obs, problem.sizes * rounds), withheld=0.0)
    if draws:
        return _with_draws(recipe, obs, problem)
    extra = SMOOTHER * _noise_share(obs, problem)
    if problem.withheld is not None and problem.withheld.high.isfinite().any():
        extra += HEADLESS
    return replace(recipe, priors=tuple((weight * (1 + extra), prior) for weight, prior in recipe.priors))


def _of_signs(recipe: Recipe, obs: Observation, sizes: list[int]) -> Matching:
    if recipe.patience is not None:
        # a search that waits for its distance to fall to nothing would wait for ever: a likelihood does not
        return squashed(recipe.matching, sizes)
    pruning = pruning_of(obs)
    if pruning is not None and pruning.withheld == "small":
        return support_hinge(recipe.matching, sizes)
    return sign_likelihood(recipe.matching, sizes)


def _with_draws(recipe: Recipe, obs: Observation, problem: Problem) -> Recipe:
    shapes = give_draws(problem)

    def draw(generator: torch.Generator) -> Variables:
        means = {name: problem.target.new_zeros(shape) for name, shape in shapes.items()}
        return {**recipe.draw(generator), **means}

    return replace(recipe, draw=draw, draws=tuple(shapes), loss=loss_of(obs, problem))


def _noise_share(obs: Observation, problem: Problem) -> float:
    """Return the share of known noise in the update's squared norm, from 0 to 1."""
    noise = added_noise(obs.defense)
    power = float(problem.target.square().mean())
    if noise == 0 or power == 0:
        return 0.0
    return min(1.0, (noise / gradient_unit(obs)) ** 2 / power)


def _remarks(obs: Observation) -> Iterator[str]:
    """Yield the notes of a result on traces that the search takes into account."""
    for trace in obs.defense or ():
        if trace.signs:
            yield "the guess is judged by its signs"
        if trace.noise:
            yield "images must be the smoother, the more of the update is noise"
        if trace.confined:
            yield "entries that were not sent were not trained either, and do not move"
        if trace.remark:
            yield trace.remark
