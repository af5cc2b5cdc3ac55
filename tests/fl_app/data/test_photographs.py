"""The embedded data set: no network, no shared pixel between training and test, and something to learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fl_app.data import normalise, photographs, photos, pixels
from fl_app.models import mlp


@pytest.fixture(scope="module")
def small():
    return photos(train_per_class=40, test_per_class=20)


def test_is_ten_photographs_in_equal_numbers(small):
    assert small.num_classes == 10
    assert small.in_shape == (3, 32, 32)
    assert small.train.labels.bincount().tolist() == [40] * 10
    assert small.test.labels.bincount().tolist() == [20] * 10


def test_is_the_same_for_the_same_seed_and_another_for_another(small):
    again, other = (photos(train_per_class=40, test_per_class=1, seed=seed) for seed in (0, 1))
    assert torch.equal(again.train.inputs, small.train.inputs)
    assert not torch.equal(other.train.inputs, small.train.inputs)


def test_is_normalised_to_mean_zero_and_deviation_one(small):
    inputs = normalise(pixels(small.train.inputs, "cpu"), small.mean, small.std)
    torch.testing.assert_close(inputs.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)
    torch.testing.assert_close(inputs.std((0, 2, 3)), torch.ones(3), atol=1e-4, rtol=0)


@given(st.integers(2, 90), st.integers(1, 90), st.integers(1, 20), st.integers(0, 2**31))
def test_boxes_are_squares_inside_their_part_and_parts_share_no_pixel(width, height, count, seed):
    taken = np.zeros((2, height, width), dtype=bool)
    for i, part in enumerate(("train", "test")):
        generator = torch.Generator().manual_seed(seed)
        boxes = photographs.draw_boxes(
            photographs.part_of((width, height), part), min(width, height), count, generator
        )
        assert len(boxes) == count
        for left, top, right, bottom in boxes:
            assert right - left == bottom - top >= 1
            assert 0 <= left < right <= width
            assert 0 <= top < bottom <= height
            taken[i, top:bottom, left:right] = True
    assert not (taken[0] & taken[1]).any()


@pytest.mark.parametrize(("part", "other"), [("train", "test"), ("test", "train")])
def test_crops_do_not_depend_on_any_pixel_of_the_other_part(part, other):
    pixels = np.asarray(photographs.load_photograph("coffee"))
    left, top, right, bottom = photographs.part_of((pixels.shape[1], pixels.shape[0]), other)
    changed = pixels.copy()
    changed[top:bottom, left:right] = 255 - changed[top:bottom, left:right]

    def cut(of: str, array: np.ndarray) -> np.ndarray:
        return photographs.cut(Image.fromarray(array), of, 60, 32, 0, "coffee")

    assert np.array_equal(cut(part, changed), cut(part, pixels))
    assert not np.array_equal(cut(other, changed), cut(other, pixels))


def test_a_crop_is_the_photograph_s_own_pixels_where_nothing_is_scaled():
    # a photograph of one colour a column: a crop shows a rising or, mirrored, a falling ramp
    ramp = np.broadcast_to(np.arange(200, dtype=np.uint8)[None, :, None], (100, 200, 3))
    crops = photographs.cut(Image.fromarray(np.ascontiguousarray(ramp)), "test", 40, 8, 0, "ramp")
    steps = np.diff(crops[..., 0].astype(int), axis=2)
    rising, falling = (steps > 0).all((1, 2)), (steps < 0).all((1, 2))
    assert (rising | falling).all()
    assert rising.any()
    assert falling.any()
    assert crops.min() >= 100


def test_a_missing_photograph_is_named(monkeypatch):
    from skimage import data

    def missing():
        raise ModuleNotFoundError("No module named 'pooch'")

    monkeypatch.setattr(data, "retina", missing)
    with pytest.raises(FileNotFoundError, match=r"photograph 'retina' cannot be read.*pooch"):
        photos(train_per_class=1, test_per_class=1)


@pytest.mark.parametrize("name", ["size", "train_per_class", "test_per_class"])
def test_refuses_counts_below_one(name):
    with pytest.raises(ValueError, match=f"photos: {name} must be at least 1, got 0"):
        photos(**{name: 0})


def test_what_is_learnt_on_one_half_holds_on_the_other(small):
    inputs, labels = normalise(pixels(small.train.inputs, "cpu"), small.mean, small.std), small.train.labels
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = mlp(10, small.in_shape, hidden=(32,))
    weights = list(model.parameters())
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        with torch.no_grad():
            for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                weight -= 0.02 * gradient
    guesses = model(normalise(pixels(small.test.inputs, "cpu"), small.mean, small.std)).argmax(1)
    assert (guesses == small.test.labels).float().mean() > 0.3  # chance is 0.1
