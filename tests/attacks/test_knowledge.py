"""An attacker reads the defense off its config, whatever it is wrapped in."""

from dataclasses import replace

import pytest
import torch
from omegaconf import OmegaConf
from shipped import defense_of, shipped
from torch import nn

from attacks.knowledge import Part, defense_parts, find_part, gradient_unit, has_feedback
from fl_app.config.compose import compose
from fl_app.transforms import residual_norm
from fl_app.types import Observation

DEFENSES = shipped("defense")


def observed(defense) -> Observation:
    return Observation(nn.Linear(2, 2), {"weight": torch.ones(2, 2)}, defense=defense)


def configured(overrides: str) -> Observation:
    return observed(OmegaConf.to_container(compose(overrides).defense))


def test_a_defense_that_is_not_known_has_no_parts():
    assert defense_parts(observed(None)) == []


@pytest.mark.parametrize("name", DEFENSES)
def test_every_defense_here_is_one_part(name):
    (part,) = defense_parts(configured(f"defense={name}"))
    assert part.name not in ("chain", "error_feedback", "protect")


def test_settings_and_error_feedback_are_known():
    dgp = {"k1": 0.05, "k2": 0.75}
    assert defense_parts(configured("defense=dgp")) == [Part("prune_dual", dgp, feedback=True)]
    (ablation,) = defense_parts(configured("defense=dgp defense.error_feedback=false"))
    assert not ablation.feedback
    assert find_part(configured("defense=gaussian"), "add_laplace", "add_gaussian").settings == {"std": 0.01}
    assert find_part(configured("defense=gaussian"), "take_sign") is None


def test_several_defenses_keep_their_order():
    tree = {
        "_target_": "fl_app.defenses.protect",
        "ats": {"_target_": "fl_app.defenses.ats", "policies": [[1, 2, 3]]},
        "rest": {
            "_target_": "fl_app.transforms.chain",
            "prune": {
                "_target_": "fl_app.transforms.error_feedback",
                "inner": {"_target_": "fl_app.transforms.keep_topk", "k": 0.1},
            },
            "round": {"_target_": "fl_app.transforms.round_int8"},
        },
    }
    assert defense_parts(observed(tree)) == [
        Part("ats", {"policies": [[1, 2, 3]]}, feedback=False),
        Part("keep_topk", {"k": 0.1}, feedback=True),
        Part("round_int8", {}, feedback=False),
    ]


def test_feedback_is_known_wherever_it_is_and_whether_it_is_on():
    held_back = {name: defense_of(name).transform.init({"w": torch.ones(2)}) for name in DEFENSES}
    with_feedback = {name for name, state in held_back.items() if residual_norm(state) is not None}
    assert {name for name in DEFENSES if has_feedback(configured(f"defense={name}"))} == with_feedback
    for name in with_feedback:
        assert not has_feedback(configured(f"defense={name} defense.error_feedback=false"))
    assert not has_feedback(observed(None))
    second = {"_target_": "x.error_feedback", "inner": {"_target_": "x.keep_topk", "k": 0.1}}
    assert has_feedback(observed({"_target_": "x.protect", "a": {"_target_": "x.ats"}, "b": second}))


def test_the_unit_of_an_update_is_how_far_a_gradient_of_one_moves_the_weights():
    gradient = observed(None)
    assert gradient_unit(gradient) == 1
    assert gradient_unit(replace(gradient, lr=0.1)) == 1
    assert gradient_unit(replace(gradient, lr=0.1, local_steps=5)) == pytest.approx(0.5)
