"""The learned attacker: right where the answer is known, adapted to defenses that nobody described to it."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attacks.learned import learned
from attacks.learned.features import features_of
from attacks.learned.kernel import PENALTIES, SHARPNESS, fit
from attacks.metrics import mse
from fl_app.transforms import prune_dual, take_sign
from fl_app.types import Known, RoundContext


@pytest.fixture
def known() -> Known:
    generator = torch.Generator().manual_seed(5)
    coarse = torch.rand(8, 3, 3, 3, generator=generator)
    smooth = F.interpolate(coarse, size=8, mode="bilinear", align_corners=True).double()
    shares = torch.rand(400, 8, generator=generator).double().square()
    images = torch.einsum("nk,kchw->nchw", shares / shares.sum(1, keepdim=True), smooth)
    images = ((images - images.mean()) / images.std() / 6 + 0.5).clamp(0, 1)
    return Known(images, torch.arange(400) % 4)


@pytest.fixture
def obs(observe, small_lenet, known):
    torch.manual_seed(0)
    seen = observe(small_lenet, known.images[:1], known.labels[:1])
    return replace(seen, known=Known(known.images[100:], known.labels[100:]))


def strange(update):
    """A defense that no attack knows: it shuffles each tensor by a public permutation and drops its scale."""
    out = {}
    for number, (name, entries) in enumerate(update.items()):
        order = torch.randperm(entries.numel(), generator=torch.Generator().manual_seed(number))
        out[name] = torch.tanh(1e3 * entries.flatten()[order]).view_as(entries)
    return out


def of_transform(transform):
    def defend(update):
        return transform.apply(update, transform.init(update), RoundContext(1, 0, torch.Generator()))[0]

    return defend


DEFENSES = {
    "none": lambda update: update,
    "dual": of_transform(prune_dual(0.05, 0.75)),
    "signs": of_transform(take_sign()),
    "strange": strange,
}


@pytest.mark.parametrize("name", DEFENSES)
def test_it_beats_the_mean_of_its_images_against_every_defense(obs, known, name):
    defend = DEFENSES[name]
    result = learned(examples=300)(replace(obs, update=defend(obs.update), defend=defend))
    mean = obs.known.images.mean(dim=0, keepdim=True)
    assert mse(result.images, known.images[:1]) < 0.3 * mse(mean, known.images[:1])
    assert any("through the client's defense" in note for note in result.notes)


def test_an_attacker_who_knows_the_defense_recovers_more(obs, known):
    seen = replace(obs, update=strange(obs.update), defend=strange)
    adaptive, plain = (learned(examples=200, adaptive=form)(seen) for form in (True, False))
    assert mse(adaptive.images, known.images[:1]) < 0.5 * mse(plain.images, known.images[:1])


def test_the_whole_work_of_the_client_may_be_code(obs, small_lenet, known):
    asked = []

    def rehearse(pixels, labels):
        asked.append(labels.tolist())
        loss = F.cross_entropy(small_lenet(0.5 * pixels), labels)
        gradients = torch.autograd.grad(loss, list(small_lenet.parameters()))
        return dict(zip(obs.update, gradients, strict=True))

    own = rehearse(known.images[:1], known.labels[:1])
    result = learned(examples=200)(replace(obs, update=own, rehearse=rehearse))
    assert {tuple(labels) for labels in asked} == {(0,)}, "the victim's label, in all examples"
    mean = obs.known.images.mean(dim=0, keepdim=True)
    assert mse(result.images, known.images[:1]) < 0.3 * mse(mean, known.images[:1])


def test_batches_and_inferred_labels(observe, small_lenet, known):
    seen = observe(small_lenet, known.images[:2], known.labels[:2], granted=False)
    result = learned(examples=150)(replace(seen, known=Known(known.images[100:], known.labels[100:])))
    assert result.images.shape == (2, 3, 8, 8)
    assert result.labels.tolist() == [0, 1]


def test_the_regression_is_the_textbook_one_and_its_error_that_of_refitting():
    generator = torch.Generator().manual_seed(1)
    rows = F.normalize(torch.randn(20, 6, generator=generator), dim=1)
    answers, weight = torch.randn(20, 2, generator=generator).double(), torch.tensor([1.0, 3.0])
    model = fit(rows, answers, weight)
    assert model.sharpness in SHARPNESS
    kernel = torch.exp(model.sharpness * (rows @ rows.t() - 1)).double()
    centred = answers - answers.mean(dim=0)
    errors = {}
    for penalty in PENALTIES:
        missed = []
        for out in range(20):
            rest = [i for i in range(20) if i != out]
            own = kernel[rest][:, rest] + penalty * torch.eye(19).double()
            missed.append(kernel[out, rest] @ torch.linalg.solve(own, centred[rest]) - centred[out])
        errors[penalty] = float((torch.stack(missed).square() @ weight.double()).mean())
    whole = float((centred.square() @ weight.double()).mean())
    assert model.error == pytest.approx(min(errors.values()) / whole)
    best = min(errors, key=errors.__getitem__)
    solved = torch.linalg.solve(kernel + best * torch.eye(20).double(), centred)
    torch.testing.assert_close(model(rows[3]), kernel[3] @ solved + answers.mean(dim=0), atol=1e-5, rtol=0)


def test_sketches_keep_inner_products():
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(5000, generator=generator)
    updates = [{"w": base}, {"w": base + torch.randn(5000, generator=generator)}, {"w": -base}]
    rows = features_of(updates, ("w",), 1000, 0)
    torch.testing.assert_close(
        rows @ rows.t(),
        torch.tensor([[1, 0.7071, -1], [0.7071, 1, -0.7071], [-1, -0.7071, 1]]),
        atol=0.1,
        rtol=0,
    )


def test_too_few_images_and_bad_settings_are_refused(obs):
    with pytest.raises(ValueError, match="known_images=test"):
        learned()(replace(obs, known=None))
    with pytest.raises(ValueError, match="examples"):
        learned(examples=3)
    with pytest.raises(ValueError, match="labels"):
        learned(labels="guess")
