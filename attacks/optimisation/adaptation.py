"""Adaptive attacker: changes to the search for an attacker who knows the defense.

A defense is public, for the server hands it out. Each is met where it gives most away:

- pruning, Soteria: unsent entries are not matched as zeros. Linear layers are completed from
  their survivors; the rest must obey the rule by which it was withheld; without the
  largest entries images must be smoother. Earlier rounds on the same samples are
  matched, too, which undoes error feedback.
- signs: the guess is reduced to nearly its signs before it is compared.
- PRECODE: the draws are searched for with the images, and layers behind them left out.
- noise: the more of the update is noise, the more the images must be smooth.
- Outpost: its small entries are zeros, and matched as such. Its noise fades: a late
  round may be attacked instead (``attack.rounds=last``).
- ATS: the search finds a rewritten image, and the rewriting is undone (`attacks.rewrites`).
- FL-TOP, FL-BASIC: what was not sent was not trained either. It is not matched, and stays where it
  is while local steps are unrolled. Nothing is known of its size.
- FL-CS: its measurements were turned back into an update, which is matched as it stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch

from attacks.analytic.completed_update import complete_update
from attacks.knowledge import ADDS_NOISE, defense_parts, find_part, gradient_unit, has_feedback
from attacks.optimisation.earlier_rounds import unusable_rounds, with_earlier_rounds
from attacks.optimisation.matching import Recipe
from attacks.optimisation.objectives import squashed
from attacks.optimisation.optimisers import Variables
from attacks.optimisation.problem import Problem
from attacks.optimisation.stochastic_layers import give_draws, in_front, loss_of, stochastic_layers
from attacks.optimisation.withheld import PRUNING, Withheld, withheld_entries
from fl_app.types import Observation

RULE = 0.1
"""Weight of the rule by which entries were withheld: 1 gains no more, and 10 leads the search astray."""
SMOOTHER = 4.0
"""Multiple of the priors' weights that is added to them where an update is pure noise …"""
HEADLESS = 2.0
"""… and where the largest, most telling entries are missing."""

CONFINING = ("fl_basic", "fl_top")
"""Defenses under which a client trains only the entries that it sends."""
TELLING = (
    "identity",
    "ats",
    "fl_cs",
    "fl_std",
    "perturb_outpost",
    "round_bf16",
    "round_fp16",
    "round_int8",
    "take_sign",
)
"""Defenses that withhold nothing: what they send as zero is zero or small, and matched as such."""
REMARKS = {
    "take_sign": "the guess is compared by little more than its signs",
    "add_gaussian": "images must be the smoother, the more of the update is noise",
    "add_laplace": "images must be the smoother, the more of the update is noise",
    "fl_basic": "what was not sent was not trained either, and does not move",
    "fl_top": "what was not sent was not trained either, and does not move",
    "fl_cs": "what was found for the measurements is matched as if it had been sent",
    "perturb_outpost": "a late round may come without noise (attack.rounds=last)",
}
"""Notes of a result on defenses that the search takes into account."""


def informed(obs: Observation, read: Callable[[Observation], Problem]) -> tuple[Observation, Problem]:
    """Return the observation and the problem as seen by an attacker who knows the defense.

    ``read`` makes a problem of an observation.
    """
    reason = unusable_rounds(obs)
    if reason is None:
        return obs, with_earlier_rounds(read(obs), obs)
    notes = []
    if obs.history:
        notes.append(f"adaptive: {len(obs.history)} earlier rounds of the client left out: {reason}")
    # after the first round, error feedback adds what neither has the rank of a gradient nor obeys its rule
    if find_part(obs, *PRUNING) is None or (has_feedback(obs) and obs.round != 1):
        problem = read(obs)
    else:
        whole = complete_update(obs)
        notes += [f"adaptive: {note}" for note in whole.notes]
        as_sent, obs = obs, replace(obs, update=whole.update, sent=whole.sent)
        problem = read(obs)
        rule = withheld_entries(as_sent, problem.names)
        withheld = rule and Withheld(*(bound.to(problem.target) for bound in rule))
        problem = replace(problem, withheld=withheld)
    if find_part(obs, *CONFINING) is not None:
        problem = replace(problem, trained=problem.sent)
    if stochastic_layers(problem.model):
        problem = replace(problem, sent=problem.sent & in_front(problem))
        notes.append("adaptive: draws searched for with the images, layers behind them left out")
    notes += [f"adaptive: {note}" for name, note in REMARKS.items() if find_part(obs, name) is not None]
    return obs, replace(problem, notes=(*problem.notes, *notes))


def informed_recipe(recipe: Recipe, obs: Observation, problem: Problem) -> Recipe:
    """Return the search of an attacker who knows the defense."""
    draws = bool(stochastic_layers(problem.model))
    recipe = replace(recipe, masked=draws or not tells_all(obs), withheld=RULE)
    if find_part(obs, "take_sign"):
        rounds = 1 if problem.rounds is None else len(problem.rounds.states)
        recipe = replace(recipe, matching=squashed(recipe.matching, problem.sizes * rounds))
    if draws:
        return _with_draws(recipe, obs, problem)
    extra = SMOOTHER * _noise_share(obs, problem)
    if problem.withheld is not None and problem.withheld.high.isfinite().any():
        extra += HEADLESS
    return replace(recipe, priors=tuple((weight * (1 + extra), prior) for weight, prior in recipe.priors))


def tells_all(obs: Observation) -> bool:
    """Return whether zeros of the update are zero, or nearly, in the client's gradient."""
    parts = defense_parts(obs)
    return bool(parts) and all(part.name in TELLING for part in parts)


def _with_draws(recipe: Recipe, obs: Observation, problem: Problem) -> Recipe:
    shapes = give_draws(problem)

    def draw(generator: torch.Generator) -> Variables:
        means = {name: problem.target.new_zeros(shape) for name, shape in shapes.items()}
        return {**recipe.draw(generator), **means}

    return replace(recipe, draw=draw, draws=tuple(shapes), loss=loss_of(obs, problem))


def _noise_share(obs: Observation, problem: Problem) -> float:
    """Return how much of the update's square is noise of known strength, from 0 to 1."""
    noise = find_part(obs, *ADDS_NOISE)
    power = float(problem.target.square().mean())
    if noise is None or power == 0:
        return 0.0
    std = float(cast(float, noise.settings.get("std", 0.0))) / gradient_unit(obs)
    return min(1.0, std**2 / power)
