"""Samples and data sets are checked when they are made; pixels become numbers batch by batch."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fl_app.data import Dataset, Samples, channel_statistics, normalise, pixels


def samples(labels=(0, 1, 2), shape=(3, 2, 4)) -> Samples:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randint(256, (len(labels), *shape), generator=generator, dtype=torch.uint8)
    return Samples(inputs, torch.tensor(labels, dtype=torch.int64))


def dataset(**changes) -> Dataset:
    made = Dataset.of("toy", train=samples(), test=samples(), class_names=["a", "b", "c"])
    return dataclasses.replace(made, **changes)


def test_takes_samples_in_the_order_asked_for():
    data = samples()
    taken = data.take(torch.tensor([2, 0]))
    assert len(taken) == 2
    assert taken.labels.tolist() == [2, 0]
    assert torch.equal(taken.inputs[1], data.inputs[0])


def test_taken_samples_are_a_copy():
    data = samples()
    data.take(torch.tensor([0])).inputs.zero_()
    assert data.inputs[0].any()


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64), "inputs must be images in uint8"),
        (
            torch.zeros(2, 3, 4, dtype=torch.uint8),
            torch.zeros(2, dtype=torch.int64),
            r"got torch.uint8 \(2, 3, 4\)",
        ),
        (
            torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
            torch.zeros(2, dtype=torch.int32),
            "labels must be int64",
        ),
        (
            torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
            torch.zeros(2, 1, dtype=torch.int64),
            "labels must be int64",
        ),
        (
            torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
            torch.zeros(3, dtype=torch.int64),
            "2 inputs, but 3 labels",
        ),
    ],
)
def test_refuses_samples_of_the_wrong_form(inputs, labels, message):
    with pytest.raises(ValueError, match=f"Samples: .*{message}"):
        Samples(inputs, labels)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test": samples(labels=(0, 3))}, r"test labels must be in 0\.\.2, got 0\.\.3"),
        ({"train": samples(labels=(-1, 0))}, r"train labels must be in 0\.\.2, got -1\.\.0"),
        ({"train": samples(labels=())}, "train has no samples"),
        ({"test": samples(shape=(3, 4, 4))}, r"test inputs must be \(3, 2, 4\), got \(3, 4, 4\)"),
        ({"class_names": ("a",)}, "3 classes, but 1 class names"),
        ({"mean": (0.5,)}, "mean must have 3 entries"),
        ({"std": (1.0, 0.0, 1.0)}, "std must be positive"),
    ],
)
def test_refuses_a_data_set_that_contradicts_itself(changes, message):
    with pytest.raises(ValueError, match=f"Dataset toy: {message}"):
        dataset(**changes)


def test_an_empty_training_set_is_refused_by_name():
    with pytest.raises(ValueError, match="Dataset toy: train has no samples"):
        Dataset.of("toy", train=samples(labels=()), test=samples(), class_names="abc")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pixels_are_shares_of_255(dtype):
    got = pixels(torch.tensor([0, 51, 255], dtype=torch.uint8), "cpu", dtype)
    assert got.dtype == dtype
    torch.testing.assert_close(got, torch.tensor([0, 0.2, 1], dtype=dtype))


def test_normalises_each_channel_by_its_own_numbers():
    image = torch.tensor([0.5, 0.9]).view(2, 1, 1).expand(2, 3, 3)
    expected = torch.tensor([1.0, -2.0]).view(2, 1, 1).expand(2, 3, 3)
    torch.testing.assert_close(normalise(image, (0.25, 1.0), (0.25, 0.05)), expected)
    torch.testing.assert_close(normalise(image[None], (0.25, 1.0), (0.25, 0.05)), expected[None])


@given(st.integers(1, 4), st.integers(1, 3), st.integers(0, 2**31))
def test_channel_statistics_are_those_of_the_pixels(count, channels, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randint(256, (count, channels, 5, 3), generator=generator, dtype=torch.uint8)
    mean, std = channel_statistics(inputs)
    values = inputs.double().transpose(0, 1).flatten(1) / 255
    torch.testing.assert_close(torch.tensor(mean), values.mean(1).float())
    torch.testing.assert_close(torch.tensor(std), values.std(1, correction=0).float())


def test_a_constant_channel_is_not_scaled():
    assert channel_statistics(torch.full((2, 1, 4, 4), 51, dtype=torch.uint8))[1] == (1.0,)


def test_rows_of_numbers_are_seen_as_they_are():
    rows = Samples(torch.tensor([[0.5, -3.0], [2.0, 7.0]]), torch.tensor([0, 1]))
    data = Dataset("rows", rows, rows, 2, (2,), (), (), ("no", "yes"))
    seen = normalise(pixels(data.train.inputs, "cpu", torch.float64), data.mean, data.std)
    assert seen.dtype == torch.float64
    assert torch.equal(seen, rows.inputs.double())


def test_rows_that_are_not_finite_are_refused():
    with pytest.raises(ValueError, match="inputs must be finite"):
        Samples(torch.tensor([[0.5, torch.nan]]), torch.tensor([0]))
