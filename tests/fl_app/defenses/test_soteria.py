"""Soteria: the mask against a slow Jacobian of every sample and feature, and nothing else touched."""

from __future__ import annotations

import math
from collections import OrderedDict
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fl_app.config.build import client_parts, server_parts
from fl_app.config.compose import ConfigError
from fl_app.defenses import soteria
from fl_app.models import convnet, lenet_zhu, mcmahan_cnn, mlp, resnet18
from fl_app.models.residual import Layers, ResidualBlock, basic
from fl_app.training import Batch, Step, backpropagate, cross_entropy
from fl_app.types import Update


def residual(activation: type[nn.Module] = nn.ReLU) -> nn.Module:
    """A residual block with BatchNorm, a mean over positions, and an output."""
    return nn.Sequential(
        OrderedDict(
            block=ResidualBlock(3, basic(12, 2), Layers(nn.BatchNorm2d, activation, padded=False)),
            pool=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            output=nn.Linear(12, 4),
        )
    )


SHAPE = (3, 8, 8)
MODELS = {
    "lenet": lambda: lenet_zhu(4, SHAPE),
    "lenet_sigmoid": lambda: lenet_zhu(4, SHAPE, activation="sigmoid"),
    "mlp": lambda: mlp(4, SHAPE, hidden=(30, 20)),
    "mlp_tanh": lambda: mlp(4, SHAPE, hidden=(20,), activation="tanh"),
    "mlp_gelu": lambda: mlp(4, SHAPE, hidden=(20,), activation="gelu"),
    "residual": residual,
}


@pytest.fixture(params=MODELS.values(), ids=MODELS.keys())
def model(request) -> nn.Module:
    return request.param().double().eval()


def batch_of(size: int, shape: tuple[int, ...] = SHAPE, classes: int = 4) -> Batch:
    inputs = torch.randn(size, *shape, dtype=torch.float64)
    return Batch(inputs, torch.arange(size) % classes, inputs, inputs)


def step_on(batch: Batch) -> Step:
    return Step(torch.Generator(), expected=len(batch.labels), rate=1.0, per_round=1)


def defended(model: nn.Module, batch: Batch, **given) -> Update:
    return soteria(**given).rules.differentiate(model, batch, cross_entropy, step_on(batch))[1]


def plain(model: nn.Module, batch: Batch) -> Update:
    return backpropagate(model, batch, cross_entropy, step_on(batch))[1]


def withheld(update: Update, raw: Update, name: str = "output.weight") -> set[int]:
    """The columns that are 0; every other column, and every other layer, must be as it was."""
    zero = (update[name] == 0).all(dim=0)
    assert torch.equal(update[name][:, ~zero], raw[name][:, ~zero])
    assert list(update) == list(raw)
    assert all(torch.equal(update[other], raw[other]) for other in raw if other != name)
    return set(zero.nonzero().flatten().tolist())


def slow_scores(model: nn.Module, inputs: Tensor, *, vectorize: bool = False) -> Tensor:
    """Every sample by itself, every feature by itself (unless ``vectorize``)."""
    body = nn.Sequential(*list(model)[:-1])
    total = 0.0
    for x in inputs:
        jacobian = torch.autograd.functional.jacobian(lambda one: body(one[None])[0], x, vectorize=vectorize)
        total = total + jacobian.flatten(1).norm(dim=1) / (body(x[None])[0].detach().abs() + 0.1)
    return total


def lowest(scores: Tensor, rate: float) -> set[int]:
    count = math.floor(Fraction(str(rate)) * len(scores))
    ranked = sorted(range(len(scores)), key=lambda f: (-scores[f].item(), f))
    return set(ranked[len(scores) - count :])


def dead_columns(raw: Update, name: str = "output.weight") -> set[int]:
    return set((raw[name] == 0).all(dim=0).nonzero().flatten().tolist())


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_withholds_the_columns_that_a_slow_jacobian_ranks_lowest(model, rate):
    batch = batch_of(8)
    raw = plain(model, batch)
    expected = lowest(slow_scores(model, batch.inputs), rate)
    assert withheld(defended(model, batch, rate=rate), raw) == expected | dead_columns(raw)
    # few features may all be dead ones, but not many
    assert rate == 0.1 or expected - dead_columns(raw)


@pytest.mark.parametrize("make", [resnet18, convnet, mcmahan_cnn])
def test_deep_models_agree_too(make):
    shape = (3, 9, 9) if make is convnet else (3, 4, 4)
    model = make(num_classes=4, in_shape=shape).eval()
    inputs = torch.randn(1, *shape)
    batch = Batch(inputs, torch.tensor([2]), inputs, inputs)
    raw = plain(model, batch)
    expected = lowest(slow_scores(model, batch.inputs, vectorize=True), 0.6)
    assert withheld(defended(model, batch, rate=0.6), raw) == expected | dead_columns(raw)
    assert expected - dead_columns(raw)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10_000), rate=st.sampled_from([0.1, 0.25, 0.5, 0.9]), size=st.integers(1, 9))
def test_giving_features_up_early_never_changes_the_outcome(seed, rate, size):
    torch.manual_seed(seed)
    model = mlp(3, (1, 2, 3), hidden=(8, 12)).double()
    with torch.no_grad():  # so that some features are nearly always dead and others never
        model.hidden2.bias.copy_(torch.linspace(-1, 1, 12))
    batch = batch_of(size, (1, 2, 3), 3)
    raw = plain(model, batch)
    expected = lowest(slow_scores(model, batch.inputs), rate)
    assert withheld(defended(model, batch, rate=rate), raw) == expected | dead_columns(raw)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_batch_norm_in_train_mode_counts_what_a_sample_does_to_the_sum_of_the_batch(activation):
    model = residual(activation).double().train()
    batch = batch_of(6)
    inputs = batch.inputs.clone().requires_grad_(True)
    r = nn.Sequential(*list(model)[:-1])(inputs)
    slopes = [torch.autograd.grad(r[:, f].sum(), inputs, retain_graph=True)[0] for f in range(12)]
    norms = torch.stack([slope.flatten(1).norm(dim=1) for slope in slopes], dim=1)
    expected = lowest((norms / (r.detach().abs() + 0.1)).sum(dim=0), 0.5)
    assert expected != lowest(slow_scores(model.eval(), batch.inputs), 0.5)
    assert withheld(defended(model.train(), batch, rate=0.5), plain(model, batch)) == expected


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_how_many_passes_run_at_once_does_not_matter(model, chunk):
    batch = batch_of(4)
    one, other = defended(model, batch, rate=0.5), defended(model, batch, rate=0.5, chunk=chunk)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_rate_zero_is_no_defense_bit_for_bit(model):
    batch = batch_of(4)
    assert withheld(defended(model, batch, rate=0), plain(model, batch)) == dead_columns(plain(model, batch))


def test_the_number_of_columns_is_that_of_the_decimal():
    # floor(0.7 * 90) is 62 in floating point
    model = mlp(4, SHAPE, hidden=(90,), activation="tanh").double()
    batch = batch_of(3)
    assert len(withheld(defended(model, batch, rate=0.7), plain(model, batch))) == 63


def test_in_logistic_regression_the_largest_pixels_go():
    # r = x, so all slopes are 1: by hand, the scores are 1 / 0.6, 1 / 0.3, 1 / 2.1 and 1 / 1.1
    inputs = torch.tensor([[[[0.5, 0.2], [-2.0, 1.0]]]])
    model = mlp(2, (1, 2, 2), hidden=())
    batch = Batch(inputs, torch.tensor([1]), inputs, inputs)
    assert withheld(defended(model, batch, rate=0.5), plain(model, batch)) == {2, 3}


def test_of_equal_features_the_lower_index_is_kept():
    inputs = torch.ones(2, 1, 2, 2)
    model = mlp(2, (1, 2, 2), hidden=())
    batch = Batch(inputs, torch.tensor([0, 0]), inputs, inputs)
    assert withheld(defended(model, batch, rate=0.5), plain(model, batch)) == {2, 3}


def test_a_representation_without_any_life_is_no_error():
    model = mlp(4, SHAPE, hidden=(10,)).double()
    with torch.no_grad():
        model.hidden1.weight.zero_()
        model.hidden1.bias.fill_(-1.0)
    assert not defended(model, batch_of(3), rate=0.5)["output.weight"].any()


def count_passes(monkeypatch) -> list[int]:
    passes: list[int] = []
    real = torch.autograd.grad

    def counting(outputs, inputs, grad_outputs=None, **more):
        if more.get("is_grads_batched"):
            passes.append(len(grad_outputs))
        return real(outputs, inputs, grad_outputs, **more)

    monkeypatch.setattr(torch.autograd, "grad", counting)
    return passes


@pytest.mark.parametrize(
    "after",
    [nn.Flatten(), nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(2), nn.AdaptiveAvgPool2d(1)],
)
def test_no_pass_is_spent_on_what_a_relu_switched_off(monkeypatch, after):
    conv = nn.Conv2d(3, 6, 3, padding=1).double()
    with torch.no_grad():
        conv.bias[::2] = -100.0
    model = nn.Sequential(conv, nn.ReLU(), after, nn.Flatten(), nn.LazyLinear(4).double())
    batch = batch_of(4)
    model(batch.inputs)
    features = model[-1].in_features
    passes = count_passes(monkeypatch)
    defended(model, batch, rate=0.9)
    assert 0 < sum(passes) <= features // 2


def test_a_low_rate_needs_few_passes(monkeypatch):
    model = lenet_zhu(4, (3, 16, 16)).double()
    passes = count_passes(monkeypatch)
    defended(model, batch_of(16, (3, 16, 16)), rate=0.02)
    assert 0 < sum(passes) < model.output.in_features / 4


class Halved(torch.autograd.Function):
    """Half of everything, without a rule for batches of gradients."""

    @staticmethod
    def forward(ctx, x):
        return x / 2

    @staticmethod
    def backward(ctx, gradient):
        # looks at the numbers, as no batched tensor allows
        return gradient / 2 if gradient.sum().item() < math.inf else gradient


class Half(nn.Module):
    def forward(self, x):
        return Halved.apply(x)


def test_what_cannot_be_batched_runs_one_by_one(caplog):
    model = mlp(4, SHAPE, hidden=(20,), activation="tanh").double()
    odd = nn.Sequential(OrderedDict([*model.named_children()][:-1], halves=Half(), output=model.output))
    batch = batch_of(3)
    with caplog.at_level("DEBUG", logger="fl_app.defenses.soteria"):
        update = defended(odd, batch, rate=0.4)
    assert "one pass at a time" in caplog.text
    assert withheld(update, plain(odd, batch)) == lowest(slow_scores(odd, batch.inputs), 0.4)


def test_one_forward_pass_serves_the_loss_and_the_scores_and_leaves_no_hook(model):
    calls = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    batch = batch_of(3)
    defended(model, batch, rate=0.5)
    handle.remove()
    assert len(calls) == 1
    assert not any(module._forward_hooks for module in model.modules())
    assert not batch.inputs.requires_grad
    assert all(p.grad is None for p in model.parameters())


def test_another_layer_can_be_named():
    model = mlp(4, SHAPE, hidden=(30, 20)).double()
    batch = batch_of(4)
    found = withheld(defended(model, batch, rate=0.5, layer="hidden2"), plain(model, batch), "hidden2.weight")
    front = nn.Sequential(model.flatten, model.hidden1, model.act1, model.hidden2)
    expected = lowest(slow_scores(front, batch.inputs), 0.5)
    assert found == expected | dead_columns(plain(model, batch), "hidden2.weight")


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        return self.layer(self.layer(x.flatten(1)))


def frozen() -> nn.Module:
    model = mlp(4, SHAPE)
    model.output.weight.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("model", "layer", "words"),
    [
        (mlp(4, SHAPE), "outputs", "soteria: layer must be one of hidden1, output; got 'outputs'"),
        (mlp(4, SHAPE), "act1", "hidden1, output; got 'act1'"),
        (nn.Sequential(nn.Conv2d(3, 4, 8), nn.Flatten()), None, "soteria: the model has no linear layer"),
        (frozen(), None, "soteria: output.weight must be trained, but it is frozen"),
    ],
)
def test_a_model_without_such_a_layer_is_refused(model, layer, words):
    defense = soteria(layer=layer)
    with pytest.raises(ValueError, match=words):
        defense.check(model)
    with pytest.raises(ValueError, match=words):
        defended(model.double(), batch_of(2), layer=layer)


@pytest.mark.parametrize(
    ("model", "got"),
    [(Twice(), r"\(2, 6\), \(2, 6\)"), (nn.Sequential(nn.Linear(3, 6), nn.Flatten()), r"\(2, 1, 2, 3\)")],
)
def test_a_layer_that_does_not_see_one_vector_a_sample_is_refused(model, got):
    with pytest.raises(ValueError, match=rf"one vector a sample, once; got \[{got}\]"):
        defended(model.double(), batch_of(2, (1, 2, 3), 6), rate=0.5)


def test_a_model_that_has_gone_astray_is_an_error_not_an_arbitrary_mask():
    model = mlp(4, SHAPE).double()
    with torch.no_grad():
        model.hidden1.weight[3, 5] = torch.nan
    with pytest.raises(ValueError, match="NaN"):
        defended(model, batch_of(3), rate=0.5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rate": 1}, r"soteria: rate must be in \[0, 1\), got 1"),
        ({"rate": -0.1}, "soteria: rate"),
        ({"rate": math.nan}, "soteria: rate"),
        ({"chunk": 0}, "soteria: chunk must be a positive integer, got 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given, words):
    with pytest.raises(ValueError, match=words):
        soteria(**given)


def test_a_wrong_layer_is_an_error_of_the_run():
    with pytest.raises(ConfigError, match="soteria: layer must be one of output; got 'fc'"):
        server_parts("data.train_per_class=4 data.test_per_class=2 defense=soteria defense.layer=fc")


def test_the_published_rate_is_the_default_of_library_and_config():
    text = "data.train_per_class=4 data.test_per_class=2 clients=2 model.activation=sigmoid defense=soteria"
    parts = client_parts(text)
    net = server_parts(text).model
    data = parts.data_of(0, 2)
    batch = data.batch(data.window(0, 2), parts.device, parts.dtype)
    for differentiate in (parts.defense.rules.differentiate, soteria().rules.differentiate):
        update = differentiate(net, batch, cross_entropy, step_on(batch))[1]
        assert len(withheld(update, plain(net, batch))) == 7  # floor(0.01 * 768)
