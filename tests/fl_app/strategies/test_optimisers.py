"""Laws of the server's optimisers: pure functions, and torch's own SGD as the oracle of ours."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fl_app.config.build import server_parts
from fl_app.config.compose import ConfigError
from fl_app.strategies import ADGP, Moment, adagrad, adam, sgd, yogi
from fl_app.types import Update

OPTIMISERS = {
    "sgd": sgd(),
    "momentum": sgd(lr=0.3, momentum=0.9, weight_decay=0.1),
    "adagrad": adagrad(),
    "adam": adam(),
    "yogi": yogi(),
}


def drawn(seed: int) -> Update:
    generator = torch.Generator().manual_seed(seed)
    return {"w": torch.randn(3, 2, generator=generator), "b": torch.randn(2, generator=generator)}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_update_leaves_its_inputs_alone_and_gives_the_same_again(name):
    optimiser, weights = OPTIMISERS[name], drawn(0)
    state = optimiser.init(weights)
    for step in (1, 2, 3):
        given_ = drawn(step), state, weights, Moment(step, 0.1)
        before = copy.deepcopy(given_)
        first, again = optimiser.update(*given_), optimiser.update(*given_)
        torch.testing.assert_close(given_, before, rtol=0, atol=0)
        torch.testing.assert_close(first, again, rtol=0, atol=0)
        weights, state = first


@settings(max_examples=25, deadline=None)
@given(st.floats(0.001, 1), st.sampled_from([0.0, 0.5, 0.9]), st.sampled_from([0.0, 0.01]))
def test_sgd_is_torchs(lr, momentum, decay):
    weights = {name: tensor.double() for name, tensor in drawn(0).items()}
    optimiser = sgd(momentum=momentum, weight_decay=decay)
    state = optimiser.init(weights)
    theirs = {name: w.clone().requires_grad_() for name, w in weights.items()}
    oracle = torch.optim.SGD(theirs.values(), lr=lr, momentum=momentum, weight_decay=decay)
    for step in (1, 2, 3):
        mean = {name: tensor.double() for name, tensor in drawn(step).items()}
        weights, state = optimiser.update(mean, state, weights, Moment(step, lr))
        for name, p in theirs.items():
            p.grad = mean[name].clone()
        oracle.step()
    torch.testing.assert_close(weights, {name: p.detach() for name, p in theirs.items()})


@pytest.mark.parametrize(
    "beside",
    [
        "strategy.momentum=0.5",
        "strategy.weight_decay=0.1",
        "strategy=fed_avg strategy.server_lr=0.5",
    ],
)
def test_an_optimiser_goes_with_no_settings_of_another(beside):
    target = "+strategy.optimiser._target_=fl_app.strategies.adam"
    with pytest.raises(ConfigError, match="optimiser"):
        server_parts(f"defense=none attack=none model=mlp model.hidden=[8] {target} {beside}")


def test_adgp_takes_no_optimiser_since_the_model_may_move_at_its_positions_alone():
    with pytest.raises(ValueError, match="optimiser"):
        ADGP(nn.Linear(2, 2), 0.1, k=0.1, optimiser=adam())
