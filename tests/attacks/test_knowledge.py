"""An attacker reads the traces that a defense states, whatever it is wrapped in."""

from dataclasses import replace

import pytest
import torch
from shipped import defense_of, shipped
from torch import nn

from attacks.knowledge import gradient_unit, has_feedback, is_confined, pruning_of, sends_signs, tells_all
from fl_app.config.build import lone_attack
from fl_app.defenses import Defense, ats, protect, soteria
from fl_app.training import Rules
from fl_app.transforms import (
    add_gaussian,
    chain,
    error_feedback,
    identity,
    keep_topk,
    prune_dual,
    residual_norm,
    round_int8,
    stateless,
    take_sign,
)
from fl_app.types import Observation, Trace

DEFENSES = shipped("defense")


def observed(defense) -> Observation:
    return Observation(nn.Linear(2, 2), {"weight": torch.ones(2, 2)}, defense=defense)


def test_nothing_is_known_of_a_defense_that_is_not_told():
    unknown = observed(None)
    assert pruning_of(unknown) is None
    assert not any(ask(unknown) for ask in (tells_all, has_feedback, is_confined, sends_signs))


def test_the_zeros_of_an_undefended_update_are_zeros():
    assert tells_all(observed(identity().traces))
    assert tells_all(observed(protect(defense=identity()).traces))


def test_parts_keep_their_order_and_their_settings():
    pruned = error_feedback(keep_topk(0.1))
    defense = protect(
        ats=ats([[1, 2, 3]]), rest=chain(prune=pruned, round=round_int8(), noise=add_gaussian(0.2))
    )
    assert defense.traces == (
        Trace(zeros_sent=True, policies=((1, 2, 3),)),
        Trace(withheld="small", kept=0.1, feedback=True),
        Trace(zeros_sent=True),
        Trace(noise=0.2),
    )
    obs = observed(defense.traces)
    assert pruning_of(obs) == defense.traces[1]
    assert not tells_all(obs)
    assert not has_feedback(observed(error_feedback(prune_dual(0.1, 0.1), enabled=False).traces))
    assert sends_signs(observed(take_sign().traces))


def test_a_defense_that_states_nothing_leaves_an_unknown_trace():
    silent = stateless(lambda update, ctx: update)
    assert silent.traces == protect(mine=silent).traces == (Trace(),)
    trained = Defense(rules=Rules(poisson=True))
    assert trained.traces == protect(mine=trained).traces == (Trace(),)
    assert protect(one=soteria(), two=silent).traces == (Trace(), Trace())
    assert not tells_all(observed(silent.traces))


def test_a_defense_states_how_it_is_met():
    """A defense from outside is met as the same marks of a defense from here are."""
    mine = stateless(lambda update, ctx: update, traces=(Trace(withheld="small", kept=0.3),))
    assert pruning_of(observed(mine.traces)) == pruning_of(observed(keep_topk(0.3).traces))


@pytest.mark.parametrize("name", DEFENSES)
def test_every_choice_of_conf_has_the_traces_of_what_it_builds(name):
    _, traces = lone_attack(f"defense={name} attack=ig", adaptive=True)
    assert traces == defense_of(name).traces


def test_feedback_is_known_wherever_a_residual_is_kept():
    for name in DEFENSES:
        defense = defense_of(name)
        kept = residual_norm(defense.transform.init({"w": torch.ones(2)})) is not None
        assert has_feedback(observed(defense.traces)) == kept


def test_the_unit_of_an_update_is_how_far_a_gradient_of_one_moves_the_weights():
    gradient = observed(None)
    assert gradient_unit(gradient) == 1
    assert gradient_unit(replace(gradient, lr=0.1)) == 1
    assert gradient_unit(replace(gradient, lr=0.1, local_steps=5)) == pytest.approx(0.5)
