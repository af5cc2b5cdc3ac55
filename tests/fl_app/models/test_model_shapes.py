"""What every model promises: its size, its names, its order, and derivatives that attacks can use."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import fl_app.models
from fl_app.models import cnn6, convnet, fcn3, lenet_zhu, mcmahan_cnn, mlp, resnet18, vgg11, vgg13
from fl_app.torchvision_cpu import import_torchvision

MODELS = [
    getattr(fl_app.models, name) for name in fl_app.models.__all__ if name.islower() and name != "build_model"
]
SETTINGS = [
    (lenet_zhu, {}),
    (lenet_zhu, {"activation": "sigmoid"}),
    (convnet, {"width": 4}),
    (convnet, {"width": 4, "norm": "group"}),
    (convnet, {"width": 3, "norm": "none"}),
    (mlp, {}),
    (mlp, {"hidden": (5, 7), "activation": "tanh"}),
    (mlp, {"hidden": ()}),
    (mcmahan_cnn, {}),
    (cnn6, {}),
    (cnn6, {"second": 5}),
    (fcn3, {}),
    (resnet18, {"norm": "batch"}),
    (resnet18, {"norm": "group", "activation": "sigmoid"}),
    (vgg11, {"norm": "group"}),
    (vgg13, {}),
]


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("model", "in_shape", "settings", "count"),
    [
        (lenet_zhu, (3, 32, 32), {}, 15_826),
        (lenet_zhu, (3, 32, 32), {"activation": "sigmoid"}, 15_826),
        (resnet18, (3, 32, 32), {}, 11_173_962),
        (resnet18, (3, 32, 32), {"norm": "group"}, 11_173_962),
        (vgg11, (3, 32, 32), {"norm": "none"}, 9_225_610),
        (vgg13, (3, 32, 32), {}, 9_416_010),
        (mcmahan_cnn, (1, 28, 28), {}, 1_663_370),
        (mlp, (1, 28, 28), {"hidden": (1000, 100)}, 784 * 1000 + 1000 + 100_000 + 100 + 1010),
        (cnn6, (3, 32, 32), {}, 576 + 3888 + 2 * 11_664 + 20_736 + 73_728 + 32_000),
        (cnn6, (3, 32, 32), {"second": 20}, 576 + 2160 + 6480 + 11_664 + 20_736 + 73_728 + 32_000),
        (fcn3, (1, 28, 28), {}, 784 * 1000 + 100_000 + 1000),
    ],
)
def test_has_the_published_number_of_parameters(model, in_shape, settings, count):
    assert size(model(num_classes=10, in_shape=in_shape, **settings)) == count


@pytest.mark.parametrize("width", [16, 64])
def test_convnet_has_eight_convolutions_two_pools_and_36_features_per_width(width):
    model = convnet(10, (3, 32, 32), width=width, norm="none")
    convolutions = [m for m in model if isinstance(m, nn.Conv2d)]
    assert [m.out_channels // width for m in convolutions] == [1, 2, 2, 4, 4, 4, 4, 4]
    assert model.output.in_features == 36 * width
    kinds = [type(m).__name__ for m in model if isinstance(m, nn.Conv2d | nn.MaxPool2d)]
    assert kinds == ["Conv2d"] * 6 + ["MaxPool2d"] + ["Conv2d"] * 2 + ["MaxPool2d"]


def test_every_public_model_is_among_those_tested_here():
    assert set(MODELS) == {model for model, _ in SETTINGS}


@pytest.mark.parametrize("in_shape", [(3, 32, 32), (1, 28, 28), (2, 17, 23)])
@pytest.mark.parametrize(("model", "settings"), SETTINGS)
def test_gives_one_logit_a_class_for_any_image_size(model, settings, in_shape):
    network = model(num_classes=7, in_shape=in_shape, **settings)
    assert network(torch.rand(2, *in_shape)).shape == (2, 7)


@pytest.mark.parametrize(("model", "settings"), SETTINGS)
def test_parameters_are_named_in_the_order_of_the_forward_pass(model, settings):
    network = model(num_classes=3, in_shape=(3, 16, 16), **settings)
    called: list[str] = []
    for name, module in network.named_modules():
        if list(module.parameters(recurse=False)):
            module.register_forward_hook(lambda *_, name=name: called.append(name))
    network(torch.rand(2, 3, 16, 16))
    names = [name for name, _ in network.named_parameters()]
    assert list(dict.fromkeys(name.rpartition(".")[0] for name in names)) == called
    last = ["output.weight"] if network.output.bias is None else ["output.weight", "output.bias"]
    assert names[-len(last) :] == last


@pytest.mark.parametrize(("model", "settings"), SETTINGS)
def test_the_gradient_of_a_gradient_reaches_the_input(model, settings):
    network = model(num_classes=3, in_shape=(3, 16, 16), **settings)
    x = torch.rand(2, 3, 16, 16, requires_grad=True)
    loss = nn.functional.cross_entropy(network(x), torch.tensor([0, 1]))
    gradients = torch.autograd.grad(loss, list(network.parameters()), create_graph=True)
    (second,) = torch.autograd.grad(sum((g**2).sum() for g in gradients), x)
    assert second.isfinite().all()
    assert second.abs().sum() > 0


@pytest.mark.parametrize(("model", "settings"), SETTINGS)
def test_initialisation_follows_the_global_generator(model, settings):
    def build(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(
            model(num_classes=3, in_shape=(1, 16, 16), **settings).parameters()
        )

    assert torch.equal(build(1), build(1))
    assert not torch.equal(build(1), build(2))


@pytest.mark.parametrize("model", [cnn6, fcn3])
def test_the_models_of_rgap_have_no_bias_and_activations_that_can_be_undone(model):
    network = model(1, (3, 32, 32))
    assert all(name.endswith("weight") for name, _ in network.named_parameters())
    slopes = [m.negative_slope for m in network if isinstance(m, nn.LeakyReLU)]
    assert slopes == [0.2] * (len(list(network.parameters())) - 1)
    assert network(torch.rand(2, 3, 32, 32)).shape == (2, 1)


@pytest.mark.parametrize("norm", ["none", "group"])
def test_only_batch_norm_brings_buffers(norm):
    assert not list(convnet(10, (3, 32, 32), norm=norm).buffers())
    assert list(convnet(10, (3, 32, 32), norm="batch").buffers())


def test_resnet18_computes_what_torchvision_computes_with_a_small_stem():
    ours = resnet18(10, (3, 32, 32)).eval()
    theirs = import_torchvision("models").resnet18(num_classes=10)
    theirs.conv1, theirs.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    with torch.no_grad():
        for a, b in zip(theirs.parameters(), ours.parameters(), strict=True):
            a.copy_(b)
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(ours(x), theirs.eval()(x))


def test_lenet_draws_widely_for_the_sigmoid_and_as_torch_does_for_relu():
    def spread(**settings) -> list[float]:
        return [p.abs().max().item() for p in lenet_zhu(10, (3, 32, 32), **settings).parameters()]

    wide, usual = spread(activation="sigmoid"), spread()
    assert max(wide) <= 0.5
    assert min(wide[::2]) > 0.49  # the weights; 12 biases need not come near the bound
    assert max(usual) <= (1 / 75) ** 0.5  # torch: 1 / sqrt(fan in), largest in the first layer
    assert spread(activation="sigmoid", wide_init=False)[0] <= (1 / 75) ** 0.5
    assert spread(wide_init=True)[0] > 0.49


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("in_shape", [(3, 32), (3, 32, 0), "abc", (3.0, 32, 32), 5])
def test_refuses_a_shape_that_is_not_channels_height_width(model, in_shape):
    with pytest.raises(ValueError, match=f"{model.__name__}: in_shape must be three positive integers"):
        model(num_classes=10, in_shape=in_shape)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("num_classes", [0, -1, 2.5, "10", True])
def test_refuses_a_number_of_classes_that_is_not_a_count(model, num_classes):
    with pytest.raises(ValueError, match=f"{model.__name__}: num_classes must be a positive integer"):
        model(num_classes=num_classes, in_shape=(3, 32, 32))


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (lenet_zhu, {"activation": "swish"}, "activation must be one of relu, .*got 'swish'"),
        (lenet_zhu, {"wide_init": "yes"}, "wide_init must be true, false or null, got 'yes'"),
        (convnet, {"norm": "layer"}, "norm must be one of none, batch, group; got 'layer'"),
        (convnet, {"width": 0}, "width must be a positive integer, got 0"),
        (convnet, {"in_shape": (3, 8, 8)}, "H and W at least 9"),
        (mlp, {"hidden": 256}, "hidden must be a list of widths, got 256"),
        (mlp, {"hidden": (256, 0)}, "every width in hidden must be a positive integer, got 0"),
        (resnet18, {"norm": "none"}, "norm must be one of batch, group; got 'none'"),
        (mcmahan_cnn, {"in_shape": (1, 3, 28)}, "H and W at least 4"),
        (cnn6, {"second": 0}, "second must be a positive integer, got 0"),
    ],
)
def test_names_itself_the_rule_and_the_value_when_it_refuses(model, settings, message):
    with pytest.raises(ValueError, match=f"^{model.__name__}: .*{message}"):
        model(**{"num_classes": 10, "in_shape": (3, 32, 32), **settings})


@pytest.mark.parametrize("model", MODELS)
def test_takes_the_task_by_these_two_names_first(model):
    assert list(inspect.signature(model).parameters)[:2] == ["num_classes", "in_shape"]
