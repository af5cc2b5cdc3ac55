"""R-GAP on small chains in float64, on CNN6 and FCN3 in float32, and what it refuses."""

from __future__ import annotations

import copy
import dataclasses
import sys

import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import brentq
from torch import nn

from attacks.analytic import rgap
from attacks.analytic.chain import INVERTIBLE, as_chain
from attacks.analytic.rgap import DISAGREEMENT, TURN, _step_back, margin_of, solve_chain
from attacks.metrics import psnr
from attacks.score import layer_errors, score
from fl_app.models import cnn6, fcn3
from fl_app.types import Observation, Truth

MEAN, STD = [0.5, 0.45, 0.4], [0.25, 0.2, 0.3]


def loss_of(model, inputs, label):
    logits = model(inputs)
    if logits.shape[1] == 1:
        return F.softplus(-logits if label > 0 else logits).mean()
    return F.cross_entropy(logits, torch.tensor([label] * len(inputs)))


def see(model, pixels, label=1, *, granted=True, mean=MEAN, std=STD, **more) -> Observation:
    """What the server sees of one step on ``pixels`` (1, C, H, W)."""
    like = next(model.parameters())
    shift, scale = (like.new_tensor(values).view(-1, 1, 1) for values in (mean, std))
    loss = loss_of(model, (pixels.to(like) - shift) / scale, label)
    names = [name for name, _ in model.named_parameters()]
    update = dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))
    facts = {
        "batch_size": len(pixels),
        "input_shape": tuple(pixels.shape[1:]),
        "mean": mean,
        "std": std,
        "labels": torch.tensor([label] * len(pixels)) if granted else None,
        "training": False,
    }
    return Observation(model=model, update=update, **facts | more)


def small_chain(classes=1, activation=None, size=6) -> nn.Module:
    act = activation or (lambda: nn.LeakyReLU(0.2))
    side = (size + 1) // 2
    return nn.Sequential(
        nn.Conv2d(3, 12, 4, 2, 2, bias=False),
        act(),
        nn.Sequential(nn.Conv2d(12, 12, 3, 1, 1, bias=False), act()),
        nn.Flatten(),
        nn.Linear(12 * (side + 1 if size % 2 == 0 else side) ** 2, 10, bias=False),
        act(),
        nn.Linear(10, classes, bias=False),
    ).double()


@pytest.fixture
def pixels() -> torch.Tensor:
    return torch.rand(1, 3, 6, 6, dtype=torch.float64)


@pytest.mark.parametrize("classes", [1, 2, 3, 10])
@pytest.mark.parametrize("label", [0, 1])
def test_a_small_chain_is_solved_exactly(pixels, classes, label):
    result = rgap()(see(small_chain(classes), pixels, label))
    torch.testing.assert_close(result.images, pixels, rtol=0, atol=1e-9)
    assert result.labels.tolist() == [label]
    assert result.objective < 1e-9
    assert not any("disagree by" in note and "weight: rank" not in note for note in result.notes)


@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.Tanh, nn.ELU])
def test_other_activations_that_can_be_undone_serve_as_well(pixels, activation):
    result = rgap()(see(small_chain(activation=activation), pixels))
    torch.testing.assert_close(result.images, pixels, rtol=0, atol=1e-5)


@pytest.mark.parametrize("activation", [nn.LeakyReLU(0.2), nn.ELU(0.7), nn.Sigmoid(), nn.Tanh()], ids=str)
def test_activations_are_undone_with_the_slope_that_autograd_has(activation):
    x = torch.linspace(-4, 4, 81, dtype=torch.float64).requires_grad_()
    (slope,) = torch.autograd.grad(activation(x).sum(), x)
    before, found = INVERTIBLE[type(activation)](activation, activation(x).detach())
    torch.testing.assert_close(before, x.detach(), rtol=1e-9, atol=1e-12)
    # at 0 itself a LeakyReLU may have either slope
    apart = x.detach().abs() > 1e-9
    torch.testing.assert_close(found[apart], slope[apart])


@pytest.mark.parametrize("classes", [1, 2])
@pytest.mark.parametrize("label", [0, 1])
def test_a_label_that_is_not_granted_is_the_one_whose_equations_agree(pixels, classes, label):
    result = rgap()(see(small_chain(classes), pixels, label, granted=False))
    assert result.labels.tolist() == [label]
    torch.testing.assert_close(result.images, pixels, rtol=0, atol=1e-9)


def test_minus_one_is_the_same_label_as_zero(pixels):
    obs = see(small_chain(), pixels, 0)
    result = rgap()(dataclasses.replace(obs, labels=torch.tensor([-1])))
    torch.testing.assert_close(result.images, pixels, rtol=0, atol=1e-9)
    assert result.labels.tolist() == [0]


def test_one_local_step_is_a_gradient_times_the_learning_rate(pixels):
    obs = see(small_chain(), pixels)
    delta = {name: -0.1 * g for name, g in obs.update.items()}
    result = rgap()(dataclasses.replace(obs, update=delta, local_steps=1, lr=0.1))
    torch.testing.assert_close(result.images, pixels, rtol=0, atol=1e-9)


@pytest.mark.parametrize("u", [-30.0, -2.0, -1e-9, 0.0, 1e-3, 0.7, 1.27])
def test_the_margin_is_the_root_that_scipy_finds(u):
    def f(v):
        return -v / (1 + torch.tensor(v, dtype=torch.float64).exp().item())

    total = f(u)
    assert margin_of(total) == pytest.approx(u, rel=1e-6, abs=1e-12)
    assert margin_of(total) == pytest.approx(
        brentq(lambda v: f(v) - total, -100, TURN, xtol=1e-14), rel=1e-6, abs=1e-12
    )


def test_a_sum_that_no_margin_gives_ends_at_the_turn():
    assert margin_of(-0.5) == pytest.approx(TURN)
    assert brentq(lambda v: 1 + torch.tensor(v).exp().item() * (1 - v), 1, 2) == pytest.approx(TURN, abs=1e-5)


def test_a_sure_prediction_has_a_twin_and_the_smaller_one_is_returned(pixels):
    model = small_chain()
    logit = model(pixels).item()
    with torch.no_grad():
        model[-1].weight *= 3 / logit  # margin 3, beyond the turn
    obs = see(model, pixels, 1, mean=[0.0] * 3, std=[1.0] * 3)
    result = rgap()(obs)
    twin = brentq(lambda v: v / (1 + 2.718281828459045**v) - 3 / (1 + 2.718281828459045**3), 0, TURN)
    assert any(f"margin {twin:.4g} taken; 3 has the same gradient" in note for note in result.notes)
    # the chain is homogeneous: the twin is the same image times the ratio of the margins
    torch.testing.assert_close(result.images, pixels * twin / 3, rtol=1e-6, atol=1e-9)
    assert result.objective < 1e-9


def test_a_sure_prediction_among_many_classes_has_no_twin(pixels):
    model = small_chain(5)
    with torch.no_grad():
        model[-1].weight *= 3 / model(pixels).abs().max().item()
    label = int(model(pixels).argmax())
    result = rgap()(see(model, pixels, label, mean=[0.0] * 3, std=[1.0] * 3))
    torch.testing.assert_close(result.images, pixels, rtol=0, atol=1e-7)
    assert result.labels.tolist() == [label]


def test_every_layer_is_solved_for_what_a_forward_pass_gives_it(pixels):
    model = small_chain()
    obs = see(copy.deepcopy(model), pixels, mean=[0.0] * 3, std=[1.0] * 3)
    seen = {}
    for name, module in model.named_modules():
        if hasattr(module, "weight"):
            module.register_forward_pre_hook(lambda _, args, name=name: seen.update({name: args[0][0]}))
    model(pixels)
    solved = solve_chain(obs)
    assert [layer.name for layer in solved.layers] == ["6.weight", "4.weight", "2.0.weight", "0.weight"]
    for layer in solved.layers:
        found = layer.input
        torch.testing.assert_close(found.flatten(), seen[layer.name.removesuffix(".weight")].flatten())
        assert layer.determined
        assert layer.unknowns == found.numel()
        assert layer.residual < 1e-9


def test_an_output_whose_sign_was_lost_to_rounding_is_tried_on_both_sides(pixels, monkeypatch):
    model = small_chain(size=6).requires_grad_(False)
    # the first convolution's output is the image's functional: shift the image until one output is zero
    x = pixels.clone()
    row = torch.func.grad(lambda t: model[0](t)[0, 3, 1, 1])(x)
    x -= row * (model[0](x)[0, 3, 1, 1].item() - 1e-9) / row.square().sum()
    model.requires_grad_(True)
    obs = see(model, x, mean=[0.0] * 3, std=[1.0] * 3)
    links = as_chain(copy.deepcopy(model).requires_grad_(False), (3, 6, 6))
    hidden = model[1](model[0](x))[0].detach()
    lost = hidden.clone()
    lost[3, 1, 1] *= -1
    # the error signal at the second convolution's output
    out = model[2][0](hidden[None]).detach().requires_grad_()
    (signal,) = torch.autograd.grad(loss_of(nn.Sequential(model[2][1], *model[3:]), out, 1), out)
    solution, _ = _step_back(links, 0, lost, signal[0], obs.update)
    torch.testing.assert_close(solution.input[None], x, rtol=0, atol=1e-6)
    # that one slope does matter: if no output is tried on its other side, the equations disagree
    monkeypatch.setattr(sys.modules["attacks.analytic.rgap"], "TINY", 0)
    wrong, _ = _step_back(links, 0, lost, signal[0], obs.update)
    assert wrong.residual > DISAGREEMENT
    assert not torch.allclose(wrong.input[None], x, atol=1e-3)


@pytest.mark.parametrize("classes", [1, 10])
def test_cnn6_in_float32_on_small_images(classes):
    pixels = torch.rand(1, 3, 16, 16)
    result = rgap()(see(cnn6(classes, (3, 16, 16)), pixels))
    assert result.images.dtype == torch.float32
    assert float(psnr(result.images, pixels)) > 90
    assert sum("weight: rank" in note for note in result.notes) == 7


def test_fcn3_in_float32_is_exact_up_to_rounding_black_pixels_included():
    pixels = torch.rand(1, 1, 28, 28)
    pixels[:, :, :6] = 0
    obs = see(fcn3(1, (1, 28, 28)), pixels, mean=[0.0], std=[1.0])
    assert not obs.update["hidden1.weight"].all()
    masks = {name: g != 0 for name, g in obs.update.items()}  # all that a server can tell
    result = rgap()(dataclasses.replace(obs, sent=masks))
    assert float(psnr(result.images, pixels)) > 110


def test_the_errors_by_layer_are_relative_to_what_a_forward_pass_gives(pixels):
    obs = see(small_chain(), pixels)
    result, truth = rgap()(obs), Truth(inputs=pixels, labels=torch.tensor([1]))
    names = ["6.weight", "4.weight", "2.0.weight", "0.weight"]
    assert [layer.name for layer in result.layers] == names
    assert [layer.unknowns for layer in result.layers] == [10, 12 * 16, 12 * 16, 3 * 36]
    assert max(layer_errors(result, obs, truth).values()) < 1e-9
    off = [
        dataclasses.replace(layer, input=(1 + 0.1 * i) * layer.input) for i, layer in enumerate(result.layers)
    ]
    errors = layer_errors(dataclasses.replace(result, layers=off), obs, truth)
    assert errors == pytest.approx({name: 0.1 * i for i, name in enumerate(names)}, abs=1e-8)
    with pytest.raises(ValueError, match="one image, the truth has 2"):
        layer_errors(result, obs, Truth(inputs=torch.cat([pixels, pixels]), labels=torch.tensor([1, 1])))


def test_black_parts_of_an_image_leave_zeros_in_every_layer_and_are_no_pruning():
    pixels = torch.rand(1, 3, 12, 12)
    pixels[:, :, :, 4:] = 0
    first, second = conv(3, 12, 4, stride=2, padding=2), conv(12, 16, 3, padding=1)
    model = nn.Sequential(first, nn.LeakyReLU(0.2), second, *ending(16 * 49))
    obs = see(model, pixels, mean=[0.0] * 3, std=[1.0] * 3)
    assert not obs.update["5.weight"].all()
    result = rgap()(dataclasses.replace(obs, sent={name: g != 0 for name, g in obs.update.items()}))
    assert float(psnr(result.images, pixels)) > 90


def test_a_narrow_layer_is_reported_as_rank_deficient(pixels):
    model = nn.Sequential(
        nn.Conv2d(3, 12, 3, 1, 1, bias=False),
        nn.LeakyReLU(0.2),
        nn.Conv2d(12, 3, 3, 2, 1, bias=False),
        nn.LeakyReLU(0.2),
        nn.Conv2d(3, 9, 3, 1, 1, bias=False),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(81, 1, bias=False),
    ).double()
    obs = see(model, pixels)
    ranks = {layer.name: layer.determined for layer in solve_chain(obs).layers}
    assert ranks == {"7.weight": True, "4.weight": True, "2.weight": False, "0.weight": True}
    notes = rgap()(obs).notes
    assert any(note.startswith("rank-deficient at 2.weight") for note in notes)
    # that the next layer's equations disagree is no sign of a defense
    assert not any("defended" in note for note in notes)


def test_a_gradient_that_is_not_of_one_sample_is_noticed(pixels):
    obs = see(small_chain(), torch.cat([pixels, pixels.flip(3)]), batch_size=1)
    obs = dataclasses.replace(obs, labels=torch.tensor([1]))
    assert any("not one sample" in note for note in rgap()(obs).notes)


def conv(*args, **more):
    return nn.Conv2d(*args, **{"bias": False} | more)


def ending(width, *, classes=1):
    return nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(width, classes, bias=False)


class Skip(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = conv(3, 3, 3, padding=1)

    def forward(self, x):
        return x + self.conv(x)


SHARED = conv(3, 3, 3, padding=1)
BROKEN = {
    "0 has a bias": [nn.Conv2d(3, 4, 3), *ending(64)],
    "3 has a bias": [conv(3, 4, 3), nn.LeakyReLU(0.2), nn.Flatten(), nn.Linear(64, 1)],
    "1 is a BatchNorm2d": [conv(3, 4, 3), nn.BatchNorm2d(4), *ending(64)],
    "1 is a GroupNorm": [conv(3, 4, 3), nn.GroupNorm(2, 4), *ending(64)],
    "1 is a MaxPool2d: pooling": [conv(3, 4, 3), nn.MaxPool2d(2), *ending(16)],
    "1 is a ReLU: it cannot be undone; LeakyReLU, ELU": [conv(3, 4, 3), nn.ReLU(), *ending(64)],
    "1 is a GELU": [conv(3, 4, 3), nn.GELU(), *ending(64)],
    "1 has slope 0 below zero": [conv(3, 4, 3), nn.LeakyReLU(0), *ending(64)],
    "1 is a PReLU": [conv(3, 4, 3), nn.PReLU(), *ending(64)],
    "0 is a Skip: not a layer of a chain": [Skip(), *ending(108)],
    "0 has 3 groups": [conv(3, 6, 3, groups=3), *ending(96)],
    "with reflect": [conv(3, 4, 3, padding=1, padding_mode="reflect"), *ending(144)],
    "1: its weight is used twice": [SHARED, SHARED, *ending(108)],
    "must end in a linear layer": [conv(3, 4, 3), nn.Flatten(), nn.Linear(64, 1, bias=False), nn.Tanh()],
    "0 comes before the first layer": [nn.Tanh(), conv(3, 4, 3), *ending(64)],
}


@pytest.mark.parametrize("reason", BROKEN)
def test_a_model_that_is_no_such_chain_is_refused_with_the_reason(pixels, reason):
    model = nn.Sequential(*BROKEN[reason]).double().eval()
    result = rgap()(see(model, pixels))
    assert result.images.shape == (0, 3, 6, 6)
    assert any(note.startswith("refused: ") and reason in note for note in result.notes), result.notes


def test_dropout_is_refused_where_the_client_used_it(pixels):
    model = nn.Sequential(conv(3, 12, 3, padding=1), nn.Dropout(0.5), *ending(432)).double().eval()
    obs = see(model, pixels)
    torch.testing.assert_close(rgap()(obs).images, pixels, rtol=0, atol=1e-9)
    assert "1 is a Dropout" in rgap()(dataclasses.replace(obs, training=True)).notes[-1]


def test_a_model_with_a_forward_pass_of_its_own_is_refused(pixels):
    class Own(nn.Sequential):
        def forward(self, x):
            return super().forward(x) + 1

    result = rgap()(see(Own(*small_chain()), pixels))
    assert "the model is a Own" in result.notes[-1]


def test_updates_that_are_no_gradient_of_one_sample_are_refused_with_the_reason(pixels):
    obs = see(small_chain(), pixels)
    name = "2.0.weight"
    holes = {**obs.update, name: obs.update[name].clone()}
    holes[name][0, 0, 0, 0] = 0
    cases = {
        "the batch has 2": {"batch_size": 2},
        "the sum of 3 local steps": {"local_steps": 3, "lr": 0.1},
        f"1 of 1296 entries of {name} were not sent": {"update": holes},
        f"the update has no {name}": {"update": {k: g for k, g in obs.update.items() if k != name}},
        f"every entry of {name} is zero": {"update": {**obs.update, name: 0 * obs.update[name]}},
    }
    for reason, changes in cases.items():
        result = rgap()(dataclasses.replace(obs, **changes))
        assert len(result.images) == 0
        assert f"{reason}" in result.notes[-1], result.notes


def test_images_too_large_to_solve_are_refused_before_anything_is_built():
    model = nn.Sequential(conv(3, 1, 3, 8), *ending(64))
    result = rgap()(see(model, torch.rand(1, 3, 64, 64)))
    expected = "the input of 0.weight must have at most 9000 numbers"
    assert expected in result.notes[-1]
    assert "got 12288, 3x64x64" in result.notes[-1]


def test_rows_that_do_not_sum_to_zero_are_no_cross_entropy(pixels):
    obs = see(small_chain(3), pixels)
    update = {**obs.update, "6.weight": obs.update["6.weight"].abs()}
    assert "do not sum to zero" in rgap()(dataclasses.replace(obs, update=update)).notes[-1]


def test_changes_nothing_reports_its_steps_and_can_be_scored(pixels):
    model = small_chain().train()
    obs = see(model, pixels)
    before = copy.deepcopy((obs.update, model.state_dict()))
    steps = []
    result = rgap()(obs, on_step=lambda *step: steps.append(step[:2]))
    torch.testing.assert_close((obs.update, model.state_dict()), before)
    assert model.training
    assert all(p.requires_grad for p in model.parameters())
    assert steps == [(2, 4), (3, 4), (4, 4)]
    scores = score(result, Truth(inputs=pixels, labels=torch.tensor([1])))
    assert scores["psnr"][0] > 100
    assert scores["labels"]["exact"] == 1.0


@pytest.mark.slow
def test_cnn6_on_photographs_of_full_size(photos):
    found = []
    for i, photo in enumerate(photos[:3]):
        torch.manual_seed(i)
        result = rgap()(see(cnn6(1, (3, 32, 32)), photo[None], i % 2))
        found.append(float(psnr(result.images, photo[None])))
    assert min(found) >= 60


@pytest.mark.slow
def test_cnn6_d_is_deficient_at_its_narrow_layer():
    obs = see(cnn6(1, (3, 32, 32), second=20), torch.rand(1, 3, 32, 32))
    layers = {layer.name: layer for layer in solve_chain(obs).layers}
    assert [name for name, layer in layers.items() if not layer.determined] == ["conv2.weight"]
    narrow = layers["conv2.weight"]
    # more rows than unknowns, of which at least 20 * 20 say what others say
    rows = 20 * 81 + 20 * 12 * 9
    assert rows > narrow.unknowns > rows - 400 >= narrow.rank
