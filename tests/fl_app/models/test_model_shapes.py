"""What every model promises: its size, its names, its order, and derivatives that attacks can use."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import fl_app.models
from fl_app.models import (
    cnn6,
    convnet,
    fcn3,
    lenet_zhu,
    mcmahan_cnn,
    mlp,
    resnet18,
    resnet20,
    resnet34,
    resnet50,
    resnet56,
    vgg11,
    vgg13,
)
from fl_app.models.torchvision_cpu import import_torchvision

ELSEWHERE = ("bert_mlm", "las", "efficientnet_b0", "efficientnet_lite0", "resnet50_imagenet")
MODELS = [
    getattr(fl_app.models, name)
    for name in fl_app.models.__all__
    if name.islower() and name not in ("build_model", "check_size", "manipulate_like", *ELSEWHERE)
]
"""Those of images; speech and text, and networks for ImageNet, have test files of their own."""
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
    (resnet20, {"strides": False, "activation": "tanh"}),
    (resnet34, {"norm": "group"}),
    (resnet50, {}),
    (resnet56, {"strides": False, "activation": "sigmoid"}),
    (vgg11, {"norm": "group"}),
    (vgg11, {"norm": "group", "strides": False, "activation": "sigmoid"}),
    (vgg13, {}),
]
RESIDUAL = [resnet18, resnet20, resnet34, resnet50, resnet56]


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
        (resnet20, (3, 32, 32), {}, 269_722),
        (resnet56, (3, 32, 32), {}, 853_018),
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
def test_one_logit_tells_two_classes_apart_and_no_more(model):
    network = model(num_classes=2, in_shape=(3, 16, 16), one_logit=True)
    assert network(torch.rand(2, 3, 16, 16)).shape == (2, 1)
    with pytest.raises(ValueError, match="one_logit tells two classes apart, got num_classes=3"):
        model(num_classes=3, in_shape=(3, 16, 16), one_logit=True)


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


@pytest.mark.parametrize("make", [resnet18, resnet34, resnet50])
def test_residual_networks_compute_what_torchvision_computes_with_a_small_stem(make):
    ours = make(10, (3, 32, 32)).eval()
    theirs = getattr(import_torchvision("models"), make.__name__)(num_classes=10)
    theirs.conv1, theirs.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    with torch.no_grad():
        for a, b in zip(theirs.parameters(), ours.parameters(), strict=True):
            a.copy_(b)
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(ours(x), theirs.eval()(x))


@pytest.mark.parametrize("make", [resnet34, resnet50])
def test_residual_networks_have_torchvisions_parameters_but_for_stem_and_head(make):
    whole = getattr(import_torchvision("models"), make.__name__)()
    # a stem of 3x3 instead of 7x7, ten classes instead of a thousand
    expected = size(whole) - 64 * 3 * (49 - 9) - 990 * (whole.fc.in_features + 1)
    assert size(make(10, (3, 32, 32))) == expected


@pytest.mark.parametrize(("make", "blocks"), [(resnet20, 3), (resnet56, 9)])
@pytest.mark.parametrize("classes", [10, 100])
def test_the_narrow_form_has_as_many_parameters_as_counting_gives(make, blocks, classes):
    # 6 n + 1 convolutions of 3x3 without biases, a norm of two numbers a channel after each
    widths = [16] * (1 + 2 * blocks) + [32] * 2 * blocks + [64] * 2 * blocks
    expected = sum(9 * a * b + 2 * b for a, b in zip([3, *widths], widths, strict=False))
    assert size(make(classes, (3, 32, 32))) == expected + 65 * classes


def test_a_padded_shortcut_keeps_every_second_position_and_adds_zeros():
    block = resnet20(10, (3, 8, 8)).eval().stage2[0]
    with torch.no_grad():
        block.conv2.weight.zero_()  # only the shortcut is left
    x = torch.rand(2, 16, 8, 8)
    expected = torch.zeros(2, 32, 4, 4)
    for row in range(4):
        for column in range(4):
            expected[:, :16, row, column] = x[:, :, 2 * row, 2 * column]
    torch.testing.assert_close(block(x), expected)


@pytest.mark.parametrize(
    ("make", "norm"), [(vgg11, "none"), (vgg11, "batch"), (vgg13, "none"), (vgg13, "batch")]
)
def test_vgg_has_the_convolutions_and_norms_of_torchvision(make, norm):
    name = make.__name__ + ("_bn" if norm == "batch" else "")
    theirs = getattr(import_torchvision("models"), name)().features
    ours = make(10, (3, 32, 32), norm=norm).eval()
    features = ours[: list(dict(ours.named_children())).index("mean")]
    with torch.no_grad():
        for a, b in zip(theirs.parameters(), features.parameters(), strict=True):
            a.copy_(b)
    x = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(features(x), theirs.eval()(x))
    assert size(ours) == size(theirs) + 513 * 10


@pytest.mark.parametrize("make", [*RESIDUAL, vgg11, vgg13])
def test_without_strides_no_layer_shrinks_the_image_and_no_parameter_is_gained_or_lost(make):
    plain = make(10, (3, 12, 12), norm="group")
    flat = make(10, (3, 12, 12), norm="group", strides=False)
    sides = []
    for module in flat.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda _, args, output: sides.append(tuple(output.shape[2:])))
    flat(torch.rand(1, 3, 12, 12))
    assert set(sides) == {(12, 12)}
    assert {name: p.shape for name, p in flat.named_parameters()} == {
        name: p.shape for name, p in plain.named_parameters()
    }
    assert not any(isinstance(module, nn.MaxPool2d) for module in flat.modules())


@pytest.mark.parametrize("make", [resnet20, resnet50, vgg11])
@pytest.mark.parametrize("activation", ["sigmoid", "tanh"])
def test_the_form_that_deep_leakage_needs_is_twice_differentiable_as_differences_say(make, activation):
    network = make(3, (1, 6, 6), norm="group", activation=activation, strides=False).double()
    weight = next(network.parameters())

    def slope(x: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(network(x), torch.tensor([1]))
        (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
        return (gradient * direction).sum()

    direction = torch.randn_like(weight)
    x = torch.rand(1, 1, 6, 6, dtype=torch.float64, requires_grad=True)
    (second,) = torch.autograd.grad(slope(x), x)
    step = torch.randn_like(x)
    with torch.no_grad():
        ahead, behind = x + 1e-5 * step, x - 1e-5 * step
    expected = (slope(ahead) - slope(behind)) / 2e-5
    torch.testing.assert_close((second * step).sum(), expected, rtol=1e-4, atol=1e-12)


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
        (cnn6, {"one_logit": 1}, "one_logit must be true or false, got 1"),
        (resnet56, {"strides": "no"}, "strides must be true or false, got 'no'"),
        (vgg13, {"strides": 2}, "strides must be true or false, got 2"),
    ],
)
def test_names_itself_the_rule_and_the_value_when_it_refuses(model, settings, message):
    with pytest.raises(ValueError, match=f"^{model.__name__}: .*{message}"):
        model(**{"num_classes": 10, "in_shape": (3, 32, 32), **settings})


@pytest.mark.parametrize("model", MODELS)
def test_takes_the_task_by_these_two_names_first(model):
    assert list(inspect.signature(model).parameters)[:2] == ["num_classes", "in_shape"]
