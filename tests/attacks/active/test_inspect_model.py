import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks.active import imprint, inspect_model, trap_weights
from attacks.active.detect import CHECKS, measure_layers, smooth_noise
from fl_app.models import convnet, lenet_zhu, mcmahan_cnn, mlp

SHAPE = (3, 8, 8)
SMALL = [lenet_zhu, mlp, mcmahan_cnn]


def checks(findings) -> set[str]:
    return {finding.check for finding in findings}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("build", SMALL)
def test_untrained_models_raise_no_alarm(build, seed, victims):
    torch.manual_seed(seed)
    model = build(10, SHAPE)
    assert inspect_model(model, in_shape=SHAPE) == ()
    assert inspect_model(model, inputs=2 * victims(40, seed).float() - 1, expected=build(10, SHAPE)) == ()


def test_a_model_with_batch_norm_raises_no_alarm_and_keeps_its_buffers():
    model = convnet(10, (3, 9, 9), width=16)
    before = copy.deepcopy(model.state_dict())
    assert inspect_model(model, in_shape=(3, 9, 9)) == ()
    torch.testing.assert_close(dict(model.state_dict()), dict(before))
    assert model.training


@pytest.mark.parametrize("build", [lenet_zhu, mlp])
def test_trained_models_raise_no_alarm(build, victims):
    model = build(2, SHAPE)
    pixels = victims(64, 6)
    inputs, labels = 4 * pixels.float() - 1, (pixels.flatten(1).mean(dim=1) > 0.3).long()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(80):
        optimiser.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimiser.step()
    assert F.cross_entropy(model(inputs), labels) < 0.4
    assert inspect_model(model, inputs=inputs) == ()


@pytest.mark.parametrize("functional", ["mean", "mode32", "random"])
@pytest.mark.parametrize("bins", [10, 100])
def test_an_imprint_is_found_by_its_weights_alone(victims, settings, functional, bins):
    planted = imprint(bins, functional).plant(lenet_zhu(10, SHAPE), public=victims(900, 1), **settings)
    found = inspect_model(planted)
    assert {"parallel rows", "rank one"} <= checks(f for f in found if f.layer == "imprint.rows")
    assert not any(finding.layer.startswith("model.") for finding in found)


def test_an_imprint_is_found_by_its_place_and_by_what_was_agreed(victims, settings):
    honest = lenet_zhu(10, SHAPE)
    planted = imprint(10).plant(honest, public=victims(900, 1), **settings)
    found = inspect_model(planted, in_shape=SHAPE, expected=honest)
    assert {"image-wide layer", "other architecture", "units in step"} <= checks(found)


def test_rows_disguised_by_noise_still_move_in_step_over_the_data(victims, settings):
    planted = imprint(50, "mean").plant(lenet_zhu(10, SHAPE), public=victims(900, 1), **settings)
    rows = planted.imprint.rows
    with torch.no_grad():  # as much noise as signal in the weights, none along the images' brightness
        noise = torch.randn_like(rows.weight)
        noise -= noise.mean(dim=1, keepdim=True)
        rows.weight += 0.7 * noise * rows.weight.norm(dim=1, keepdim=True) / noise.norm(dim=1, keepdim=True)
    flat = torch.rand(60, 3, 1, 1).expand(60, *SHAPE) + 0.02 * torch.randn(60, *SHAPE)
    found = checks(f for f in inspect_model(planted, inputs=flat) if f.layer == "imprint.rows")
    assert "parallel rows" not in found
    assert "units in step" in found


@pytest.mark.parametrize("scale", [0.8, 0.95, 0.99])
def test_trap_weights_are_found(settings, scale):
    planted = trap_weights(scale).plant(mlp(10, SHAPE), **settings)
    assert "even signs" in checks(inspect_model(planted))


def test_strong_traps_are_found_by_their_silence_too(victims, settings):
    planted = trap_weights(0.6).plant(mlp(10, SHAPE), **{**settings, "mean": None, "std": None})
    assert "silent units" in checks(inspect_model(planted, inputs=victims(60, 2).float()))


def test_convolutions_that_pass_the_image_on_are_found(settings):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )
    found = inspect_model(trap_weights().plant(model, **settings))
    assert ("0", "lone weights") in {(f.layer, f.check) for f in found}


def test_a_finding_names_the_layer_the_number_and_the_reason():
    model = nn.Sequential(nn.Linear(20, 10), nn.ReLU(), nn.Linear(10, 10))
    with torch.no_grad():
        model[0].weight.copy_(torch.arange(1.0, 11.0)[:, None] * torch.randn(20))  # scaled copies
    found = {finding.check: finding for finding in inspect_model(model)}
    assert str(found["parallel rows"]).startswith("0: parallel rows, 10 > 5 (so many rows are copies of one")
    assert found["rank one"].value == pytest.approx(1)


def test_every_check_is_measured_somewhere(victims, settings):
    planted = imprint(10).plant(lenet_zhu(10, SHAPE), public=victims(900, 1), **settings)
    measured = measure_layers(planted, in_shape=SHAPE, expected=lenet_zhu(10, SHAPE))
    assert checks(measured) == set(CHECKS)


def test_a_single_input_is_refused():
    with pytest.raises(ValueError, match=r"a batch of two or more, got \(1, 3, 8, 8\)"):
        inspect_model(mlp(10, SHAPE), inputs=torch.zeros(1, *SHAPE))


def trained_on_two_classes_of_ten(pixels):
    torch.manual_seed(0)
    model = mlp(10, SHAPE, hidden=[256])
    inputs, labels = 4 * pixels.float() - 1, (pixels.flatten(1).mean(dim=1) > 0.3).long()
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(100):
        optimiser.zero_grad()
        F.cross_entropy(model(inputs), labels).backward()
        optimiser.step()
    return model, inputs


def test_a_model_that_learned_two_of_ten_classes_raises_no_alarm(victims):
    model, inputs = trained_on_two_classes_of_ten(victims(64, 6))
    assert F.softmax(model(inputs), dim=1)[:, :2].sum(dim=1).min() > 0.9
    assert inspect_model(model, inputs=inputs) == ()


def test_a_few_copies_among_many_honest_rows_are_counted():
    model = mlp(10, SHAPE, hidden=[600])
    assert inspect_model(model) == ()
    chosen = torch.randperm(600)[:20]
    with torch.no_grad():
        model.hidden1.weight[chosen] = torch.rand(20, 1) * model.hidden1.weight[0]
    found = {(f.layer, f.check): f.value for f in inspect_model(model)}
    assert found == {("hidden1", "parallel rows"): 20 + (0 not in chosen)}


@pytest.mark.parametrize("hidden_in_the_softmax", [False, True])
def test_units_that_lead_on_alike_are_found_behind_any_rows(hidden_in_the_softmax):
    model = mlp(10, SHAPE, hidden=[600])
    chosen = torch.randperm(600)[:30]
    with torch.no_grad():
        model.output.weight[:, chosen] = model.output.weight[:, :1]
        if hidden_in_the_softmax:
            model.output.weight[:, chosen] += 0.03 * torch.randn(30)
    (finding,) = inspect_model(model)
    assert (finding.layer, finding.check) == ("output", "parallel columns")
    assert 30 <= finding.value <= 31


def test_traps_with_tossed_signs_are_found_by_their_sums(settings):
    planted = trap_weights(0.97).plant(mlp(10, SHAPE), **{**settings, "mean": None, "std": None})
    rows = planted.hidden1.weight
    with torch.no_grad():
        drawn = torch.randn_like(rows)
        above, below = drawn.relu(), (-drawn).relu()
        above *= 0.97 * below.sum(dim=1, keepdim=True) / above.sum(dim=1, keepdim=True)
        rows.copy_(rows.std() * (above - below))
    assert {(f.layer, f.check) for f in inspect_model(planted)} == {("hidden1", "even sums")}


def test_a_convolution_over_the_whole_image_is_seen_to_move_in_step():
    model = nn.Sequential(nn.Conv2d(3, 40, 8), nn.ReLU(), nn.Flatten(), nn.Linear(40, 10))
    smooth = smooth_noise(64, SHAPE)
    assert inspect_model(model, inputs=smooth) == ()
    frequent = smooth_noise(192, SHAPE).flatten(1)
    weak = torch.linalg.svd(frequent)[2][-40:]  # where smooth inputs have least
    with torch.no_grad():
        rows = 1 / 192**0.5 + torch.randn(40, 40) @ weak / 40**0.5
        model[0].weight.copy_(rows.view(40, *SHAPE))
    found = {f.check for f in inspect_model(model, inputs=smooth) if f.layer == "0"}
    assert {"group in step", "units in step"} <= found
    assert "parallel rows" not in found


def test_smooth_noise_has_its_energy_where_photographs_have_it():
    noise = smooth_noise(64, (3, 16, 16))
    torch.testing.assert_close(noise, smooth_noise(64, (3, 16, 16)))
    assert noise.std().item() == pytest.approx(1, abs=1e-4)
    energy = torch.fft.fft2(noise.double()).abs().square().mean(dim=(0, 1))
    # amplitudes go with 1/f: four times the frequency has a sixteenth of the energy
    assert (energy[0, 2] / energy[0, 8]).item() == pytest.approx(16, rel=0.4)
    assert smooth_noise(8, (20,)).shape == (8, 20)
