"""`fl_app.attack` on gradients and weights of one's own model, from memory and from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

import fl_app
from attacks.optimisation import inverting_gradients
from fl_app.transforms import prune_dual
from fl_app.types import Observation, RoundContext

SHAPE = (3, 8, 8)


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(128, 10)
    )


@pytest.fixture
def image() -> Tensor:
    return torch.rand(1, *SHAPE)


@pytest.fixture
def gradients(model: nn.Module, image: Tensor) -> dict[str, Tensor]:
    loss = F.cross_entropy(model(image), torch.tensor([7]))
    names = [name for name, _ in model.named_parameters()]
    return dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))


def test_ten_lines_recover_an_image_and_its_label(model, image, gradients):
    found = fl_app.attack(model, gradients, attack="dlg", input_shape=SHAPE, num_classes=10, steps=100)
    assert found.labels.tolist() == [7]
    assert F.mse_loss(found.images, image) < 1e-3


def test_the_default_is_the_attack_by_hand(model, gradients):
    found = fl_app.attack(model, gradients, input_shape=SHAPE, steps=7, restarts=2)
    by_hand = inverting_gradients(steps=7, restarts=2)(
        Observation(model, gradients, batch_size=1, input_shape=SHAPE)
    )
    assert torch.equal(found.images, by_hand.images)
    assert list(found.notes) == list(by_hand.notes)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors", ".npz"])
def test_files_give_what_memory_gives(model, gradients, tmp_path, suffix):
    path = tmp_path / f"update{suffix}"
    save(gradients, path)
    known = {"input_shape": SHAPE, "labels": [7], "steps": 3}
    from_file = fl_app.attack(model, path, **known)
    assert torch.equal(from_file.images, fl_app.attack(model, gradients, **known).images)


def test_two_checkpoints_give_the_gradient_times_the_rate(model, image, gradients, tmp_path):
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    after = {name: before[name] - 0.5 * gradients[name] for name in before}
    save(before, tmp_path / "before.npz")
    save(after, tmp_path / "after.pt")
    known = {"input_shape": SHAPE, "steps": 3}
    other = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Sigmoid(), nn.Flatten(), nn.Linear(128, 10)
    )
    found = fl_app.attack(
        other, before=tmp_path / "before.npz", after=tmp_path / "after.pt", lr=0.5, local_steps=1, **known
    )
    assert found.labels.tolist() == [7]
    torch.testing.assert_close(
        found.images, fl_app.attack(model, gradients, **known).images, atol=0.05, rtol=0
    )
    own = fl_app.attack(model, after=after, lr=0.5, local_steps=1, **known)
    assert torch.equal(own.images, found.images)
    delta = {name: after[name].double() - before[name].double() for name in before}
    by_delta = fl_app.attack(model, delta=delta, lr=0.5, local_steps=1, **known)
    assert torch.equal(by_delta.images, found.images)


def save(tensors: dict[str, Tensor], path: Path) -> None:
    if path.suffix == ".pt":
        torch.save(tensors, path)
    elif path.suffix == ".npz":
        np.savez(path, **{name: tensor.numpy() for name, tensor in tensors.items()})
    else:
        save_file(tensors, path)


def test_an_attacker_who_is_told_of_the_defense_adapts(model, gradients):
    rule = prune_dual(0.05, 0.75)
    sent, _ = rule.apply(gradients, rule.init(gradients), RoundContext(1, 0, torch.Generator()))
    known = {"input_shape": SHAPE, "labels": [7], "steps": 3}
    told = fl_app.attack(model, sent, defense="dgp", **known)
    kept = sum(int((tensor != 0).sum()) for tensor in sent.values())
    assert any(f" {kept} of " in note for note in told.notes)
    for blind in ({}, {"defense": "dgp", "adaptive": False}):
        assert not any(f" {kept} of " in note for note in fl_app.attack(model, sent, **known, **blind).notes)


def test_a_weight_difference_is_refused_as_a_gradient_unless_asked(model, gradients):
    wrong = {name: -0.1 * tensor for name, tensor in gradients.items()}
    with pytest.raises(ValueError, match="from_weights"):
        fl_app.attack(model, wrong, input_shape=SHAPE, steps=1)
    assert fl_app.attack(model, wrong, input_shape=SHAPE, steps=1, check=False).images.shape == (1, *SHAPE)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "expected gradients alone"),
        ({"after": [], "lr": 0.1}, "expected gradients alone"),
        ({"gradients": [], "after": []}, "expected gradients alone"),
        ({"gradients": [], "lr": 0.1}, "expected gradients alone"),
        ({"delta": [], "before": [], "lr": 0.1, "local_steps": 1}, "expected gradients alone"),
        ({"gradients": []}, "expected 4 tensors"),
        ({"gradients": [], "attack": "gi2"}, "attack: 'gi2'"),
        ({"gradients": [], "attack": "none"}, "attack=none"),
        ({"gradients": [], "stepz": 3}, "did you mean steps"),
        ({"gradients": [], "defense": "dpg"}, "did you mean dgp"),
    ],
)
def test_what_is_missing_or_misspelt_is_named(model, more, words):
    with pytest.raises(ValueError, match=words):
        fl_app.attack(model, **more)


def test_attacks_that_need_more_say_what(model, gradients):
    with pytest.raises(ValueError, match="input_shape"):
        fl_app.attack(model, gradients)
