"""Random samples: as many, as large and of as many classes as asked for, the same for the same seed."""

from __future__ import annotations

import pytest
import torch

from fl_app.data import random


def test_has_the_shape_and_the_classes_that_are_asked_for():
    data = random(classes=30, shape=(2, 5, 7), train=600, test=11)
    assert data.train.inputs.shape == (600, 2, 5, 7)
    assert len(data.test) == 11
    assert data.num_classes == 30
    assert set(data.train.labels.tolist()) == set(range(30))


def test_bytes_are_uniform():
    levels = random(classes=2, shape=(1, 50, 50), train=100, test=1).train.inputs.flatten().bincount()
    expected = 250_000 / 256
    # 255 degrees of freedom: mean 255, deviation 22.6
    assert ((levels - expected) ** 2 / expected).sum() == pytest.approx(255, abs=4 * 22.6)


def test_a_seed_gives_the_same_samples_again_and_none_of_them_is_for_testing_too():
    small = {"classes": 3, "shape": (1, 4, 4), "train": 20, "test": 20}
    one, again, other = random(**small), random(**small), random(**small, seed=1)
    assert torch.equal(one.train.inputs, again.train.inputs)
    assert torch.equal(one.train.labels, again.train.labels)
    assert not torch.equal(one.train.inputs, other.train.inputs)
    assert not torch.equal(one.train.inputs, one.test.inputs)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"classes": 0}, "random: classes must be at least 1, got 0"),
        ({"test": 0}, "random: test must be at least 1, got 0"),
        ({"shape": (3, 32)}, "random: shape must be three positive integers"),
        ({"shape": (3, 0, 4)}, "random: shape must be three positive integers"),
    ],
)
def test_refuses_what_cannot_be(settings, message):
    with pytest.raises(ValueError, match=message):
        random(**settings)
