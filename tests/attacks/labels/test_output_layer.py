import dataclasses

import pytest
import torch
from torch import nn

from attacks.labels import output_gradient
from fl_app.types import Observation


@pytest.fixture
def obs() -> Observation:
    model = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, 3), nn.ReLU(), nn.Linear(3, 5))
    update = {name: torch.randn_like(p) for name, p in model.named_parameters()}
    return Observation(model=model, update=update)


def test_is_the_last_matrix_with_a_row_per_class(obs):
    assert output_gradient(dataclasses.replace(obs, num_classes=3), who="t").name == "2.weight"
    assert output_gradient(obs, who="t").name == "4.weight"


def test_may_be_named(obs):
    found = output_gradient(obs, "0.weight", who="t")
    assert torch.equal(found.rows, obs.update["0.weight"])


def test_turns_the_sign_of_a_delta(obs):
    found = output_gradient(dataclasses.replace(obs, local_steps=4), who="t")
    assert torch.equal(found.rows, -obs.update["4.weight"])


def test_features_that_nothing_activates_are_not_taken_for_pruned(obs):
    dead = obs.update["4.weight"].clone()
    dead[:, 1] = 0
    assert not output_gradient(
        dataclasses.replace(obs, update=obs.update | {"4.weight": dead}), who="t"
    ).notes


def test_errors_say_what_there_is(obs):
    with pytest.raises(ValueError, match=r"t: no matrix in the update has num_classes=9 rows.*'4.weight': 5"):
        output_gradient(dataclasses.replace(obs, num_classes=9), who="t")
    with pytest.raises(ValueError, match=r"t: weight must be one of .*'0.weight'.* got 'head'"):
        output_gradient(obs, "head", who="t")
    with pytest.raises(ValueError, match="must be a matrix"):
        output_gradient(obs, "0.bias", who="t")
