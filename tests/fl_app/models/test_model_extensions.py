"""Extensions of a model travel in its spec, come from a list, and keep what the rest relies on."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.func import functional_call, vmap
from torch.nn import functional as F

from fl_app.models import ModelSpec, build_model
from fl_app.models.bottleneck import Bottleneck, add_bottleneck, divergence, moments
from fl_app.models.layers import linear_layer, watched
from fl_app.sketches.selection import output_bias
from fl_app.training import parameters

PLAIN = ModelSpec("fl_app.models.lenet_zhu", {"num_classes": 10, "in_shape": (3, 16, 16)})
WIDE = ModelSpec(PLAIN.target, PLAIN.settings, {"bottleneck": {"size": 5}})
TARGETS = ["lenet_zhu", "mlp", "convnet", "mcmahan_cnn", "resnet18"]


def extended(target: str, size: int = 5) -> nn.Module:
    task = {"num_classes": 4, "in_shape": (3, 16, 16)}
    return build_model(ModelSpec(f"fl_app.models.{target}", task, {"bottleneck": {"size": size}}))


def test_the_canonical_form_names_extensions_only_if_there_are_any():
    assert "extensions" not in PLAIN.to_json()
    assert ModelSpec(PLAIN.target, PLAIN.settings, {}).hash == PLAIN.hash
    assert json.loads(WIDE.to_json())["extensions"] == {"bottleneck": {"size": 5}}
    assert WIDE.hash != PLAIN.hash
    assert WIDE != PLAIN


@given(st.dictionaries(st.text(max_size=4), st.dictionaries(st.text(max_size=4), st.integers())))
def test_extensions_survive_json(extensions):
    spec = ModelSpec("a", {}, extensions)
    again = ModelSpec.from_json(spec.to_json())
    assert (again, again.hash, hash(again)) == (spec, spec.hash, hash(spec))
    assert again.extensions == extensions


def test_does_not_follow_changes_of_the_extensions_it_was_made_from():
    extensions = {"bottleneck": {"size": 5}}
    spec = ModelSpec(PLAIN.target, PLAIN.settings, extensions)
    extensions["bottleneck"]["size"] = 7
    extensions["more"] = {}
    assert spec == WIDE


@pytest.mark.parametrize(
    "extensions",
    ["[]", "null", "3", '["bottleneck"]', '{"bottleneck": null}', '{"bottleneck": [5]}', '{"b": {"x": NaN}}'],
)
def test_junk_is_a_value_error(extensions):
    with pytest.raises(ValueError, match="ModelSpec: "):
        ModelSpec.from_json(f'{{"target": "a", "settings": {{}}, "extensions": {extensions}}}')


@pytest.mark.parametrize("name", ["os.system", "torch.nn.Linear", "add_bottleneck", "Bottleneck", ""])
def test_only_extensions_on_the_list_are_made(name):
    spec = ModelSpec(PLAIN.target, PLAIN.settings, {"bottleneck": {"size": 5}, name: {}})
    for allowed in ([], [name]):  # what a caller allows are models, not extensions
        with pytest.raises(ValueError, match=f"extensions must be among bottleneck; got {name}"):
            build_model(spec, allowed=allowed)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "'size'; its settings are size"),
        ({"size": 5, "depth": 2}, "'depth'; its settings are size"),
        ({"size": 5, "model": "x"}, "'model'; its settings are size"),
        ({"size": 0}, "bottleneck: size must be a positive integer, got 0"),
        ({"size": True}, "size must be a positive integer, got True"),
        ({"size": "5"}, "size must be a positive integer, got '5'"),
        ({"size": 10**15}, ""),
    ],
)
def test_bad_settings_are_a_value_error_with_the_extension_and_the_reason(settings, reason):
    with pytest.raises(ValueError, match=f"build_model: {PLAIN.target} with bottleneck: .*{reason}"):
        build_model(ModelSpec(PLAIN.target, PLAIN.settings, {"bottleneck": settings}))


def test_a_model_without_a_linear_layer_cannot_be_extended():
    spec = ModelSpec("torch.nn.ReLU", {}, {"bottleneck": {"size": 5}})
    with pytest.raises(ValueError, match=r"torch.nn.ReLU with bottleneck: .*no linear layer"):
        build_model(spec, allowed=["torch.nn.ReLU"])


def test_a_model_that_is_one_linear_layer_gets_one_in_front():
    spec = ModelSpec("torch.nn.Linear", {"in_features": 3, "out_features": 2}, {"bottleneck": {"size": 5}})
    model = build_model(spec, allowed=[spec.target])
    assert model(torch.rand(4, 3)).shape == (4, 2)
    assert list(parameters(model))[-2:] == ["linear.weight", "linear.bias"]


def test_the_rest_is_drawn_as_without_the_extension():
    torch.manual_seed(3)
    plain = build_model(PLAIN).state_dict()
    torch.manual_seed(3)
    wide = build_model(WIDE).state_dict()
    for name, tensor in plain.items():
        assert torch.equal(tensor, wide[name.replace("output.", "output.linear.")])


@pytest.mark.parametrize("target", TARGETS)
def test_shapes_and_the_last_parameters_stay(target):
    model = extended(target)
    assert model(torch.rand(2, 3, 16, 16)).shape == (2, 4)
    names = list(parameters(model))
    assert names[-6:] == [
        *[
            f"output.bottleneck.{layer}.{kind}"
            for layer in ("encoder", "decoder")
            for kind in ("weight", "bias")
        ],
        "output.linear.weight",
        "output.linear.bias",
    ]
    assert output_bias(parameters(model)) == "output.linear.bias"
    features = model.output.linear.in_features
    assert model.output.bottleneck.encoder.weight.shape == (10, features)
    assert model.output.bottleneck.decoder.weight.shape == (features, 5)


@pytest.mark.parametrize("training", [True, False])
def test_draws_wherever_gradients_are_recorded_and_passes_the_mean_elsewhere(training):
    layer = Bottleneck(6, 3).train(training)
    x = torch.rand(4, 6)
    assert not torch.equal(layer(x), layer(x))
    with torch.no_grad():
        assert torch.equal(layer(x), layer(x))
        torch.testing.assert_close(layer(x), layer.decoder(layer.encoder(x)[:, :3]))


def test_a_seed_replays_the_draw():
    layer, x = Bottleneck(6, 3), torch.rand(4, 6)
    outputs = []
    for _ in range(2):
        torch.manual_seed(7)
        outputs.append(layer(x))
    assert torch.equal(*outputs)


def test_given_draws_are_taken_for_its_own():
    layer, x = Bottleneck(6, 3), torch.rand(4, 6)
    assert layer.draws_shape(4) == (4, 3)
    torch.manual_seed(7)
    expected = layer(x)
    torch.manual_seed(7)
    layer.given_draws = torch.randn(layer.draws_shape(4))
    before = torch.random.get_rng_state()
    assert torch.equal(layer(x), expected)
    assert torch.equal(layer(x), expected)
    assert torch.equal(torch.random.get_rng_state(), before), "nothing else is drawn"
    mean, std = moments(layer.encoder(x))
    torch.testing.assert_close(layer(x), layer.decoder(mean + std * layer.given_draws))
    with torch.no_grad():
        torch.testing.assert_close(layer(x), layer.decoder(mean))
    layer.given_draws = None
    assert not torch.equal(layer(x), layer(x))


def test_given_draws_are_no_part_of_what_travels_and_follow_the_model():
    layer = Bottleneck(6, 3)
    plain = set(layer.state_dict())
    layer.given_draws = torch.randn(2, 3)
    assert set(layer.state_dict()) == plain
    assert list(parameters(layer)) == ["encoder.weight", "encoder.bias", "decoder.weight", "decoder.bias"]
    assert layer.double().given_draws.dtype == torch.float64
    assert torch.equal(copy.deepcopy(layer).given_draws, layer.given_draws)


def test_draws_have_the_encoded_mean_and_spread():
    layer = Bottleneck(1, 2).double()
    with torch.no_grad():
        layer.encoder.bias.copy_(torch.tensor([1.0, -2.0, 0.5, -1.0]))
        layer.encoder.weight.zero_()
        layer.decoder = nn.Linear(2, 2).double()
        layer.decoder.weight.copy_(torch.eye(2))
        layer.decoder.bias.zero_()
    drawn = layer(torch.zeros(40_000, 1, dtype=torch.float64)).detach()
    torch.testing.assert_close(drawn.mean(0), torch.tensor([1.0, -2.0]).double(), rtol=0, atol=0.02)
    spread = torch.tensor([0.5, -1.0]).double().exp().log1p()  # softplus, by its definition
    torch.testing.assert_close(drawn.std(0), spread, rtol=0.02, atol=0)


def test_the_divergence_is_that_of_torch_distributions():
    encoded = torch.randn(7, 10, dtype=torch.float64) * 3
    mean, std = moments(encoded)
    expected = kl_divergence(Normal(mean, std), Normal(torch.zeros_like(mean), torch.ones_like(std)))
    torch.testing.assert_close(divergence(encoded), expected.sum(1).mean())


@pytest.mark.parametrize("spread", [-1e4, -200.0, 50.0])
def test_the_divergence_and_its_gradient_are_finite_at_the_ends_of_softplus(spread):
    encoded = torch.tensor([[0.5, spread]], requires_grad=True)
    value = divergence(encoded)
    (gradient,) = torch.autograd.grad(value, encoded)
    assert value.isfinite()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("target", TARGETS)
def test_the_gradient_of_a_gradient_reaches_the_input(target):
    network = extended(target)
    x = torch.rand(2, 3, 16, 16, requires_grad=True)
    loss = F.cross_entropy(network(x), torch.tensor([0, 1]))
    gradients = torch.autograd.grad(loss, list(network.parameters()), create_graph=True)
    (second,) = torch.autograd.grad(sum((g**2).sum() for g in gradients), x)
    assert second.isfinite().all()
    assert second.abs().sum() > 0


def test_every_weight_of_the_bottleneck_gets_a_gradient():
    network = extended("lenet_zhu")
    loss = F.cross_entropy(network(torch.rand(2, 3, 16, 16)), torch.tensor([0, 1]))
    gradients = dict(
        zip(parameters(network), torch.autograd.grad(loss, list(network.parameters())), strict=True)
    )
    means, spreads = gradients["output.bottleneck.encoder.weight"].chunk(2)
    for part in (means, spreads, gradients["output.bottleneck.decoder.weight"]):
        assert part.abs().sum() > 0


def test_is_copied_and_called_with_other_weights_and_batched():
    network = copy.deepcopy(extended("lenet_zhu"))
    x = torch.rand(3, 2, 3, 16, 16)
    weights = {name: p.detach() for name, p in network.named_parameters()}
    draw = vmap(lambda one: functional_call(network, weights, (one,)), randomness="different")
    same = x[:1].expand_as(x)
    outputs = draw(same)
    assert outputs.shape == (3, 2, 4)
    assert not torch.equal(outputs[0], outputs[1])


def test_finds_the_last_linear_layer_or_the_named_one_or_lists_them():
    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Linear(3, 3), nn.ReLU()), nn.ReLU())
    assert linear_layer(model, who="me") == ("1.0", model[1][0])
    assert linear_layer(model, "0", who="me") == ("0", model[0])
    with pytest.raises(ValueError, match=r"me: layer must be one of 0, 1\.0; got '2'"):
        linear_layer(model, "2", who="me")


def test_extends_a_layer_deep_inside():
    model = add_bottleneck(nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.ReLU(), nn.Linear(3, 4))), size=2)
    assert isinstance(model[1][1].bottleneck, Bottleneck)
    assert model(torch.rand(5, 2)).shape == (5, 4)


def test_a_watched_layer_shows_its_calls_and_is_let_go_even_after_an_error():
    layer = nn.Linear(2, 3)
    x = torch.rand(1, 2)
    with watched(layer) as calls:
        y = layer(x)
        layer(x)
    assert len(calls) == 2
    assert calls[0].input is x
    assert calls[0].output is y
    with pytest.raises(RuntimeError), watched(layer):
        layer(torch.rand(1, 5))
    assert not layer._forward_hooks
