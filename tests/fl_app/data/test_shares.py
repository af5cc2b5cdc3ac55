"""Validation samples: a share of every class of the test samples, always the same ones, never both."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fl_app.data import Dataset, Samples, split_validation


def numbered(labels: list[int]) -> Dataset:
    """Rows that are known by their number."""
    rows = torch.arange(len(labels), dtype=torch.float32).view(-1, 1)
    samples = Samples(rows, torch.tensor(labels))
    return Dataset("numbered", samples, samples, 4, (1,), (), (), ("a", "b", "c", "d"))


def numbers(samples: Samples) -> list[int]:
    return samples.inputs.flatten().int().tolist()


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=80).filter(lambda rows: len(rows) > len(set(rows))),
    st.floats(0.01, 0.99),
)
def test_each_class_gives_its_share_and_nothing_is_lost_or_twice(labels, share):
    data = numbered(labels)
    rest, validation = split_validation(data, share)
    assert sorted(chain(numbers(rest.test), numbers(validation))) == list(range(len(labels)))
    for part in (rest.test, validation):
        assert numbers(part) == sorted(numbers(part))
        assert part.labels.tolist() == [labels[number] for number in numbers(part)]
    held = Counter(validation.labels.tolist())
    for label, count in Counter(labels).items():
        # rounded to the nearest, unless that would leave one side without the class
        nearest = abs(held[label] - share * count) <= 0.5
        assert nearest or held[label] in (1, count - 1)
        assert held[label] < count
        assert held[label] > 0 or count == 1
    assert torch.equal(rest.train.inputs, data.train.inputs)


def test_the_same_data_give_the_same_samples_whatever_else_is_drawn():
    torch.manual_seed(1)
    _, one = split_validation(numbered([0, 1] * 50), 0.3)
    torch.manual_seed(2)
    _, two = split_validation(numbered([0, 1] * 50), 0.3)
    assert numbers(one) == numbers(two)
    # drawn, not the first ones
    assert numbers(one) != list(range(30))


def test_no_share_is_no_split():
    data = numbered([0, 1, 2])
    assert split_validation(data, 0.0) == (data, None)


def test_one_sample_of_each_class_cannot_be_split():
    with pytest.raises(ValueError, match="split_validation: numbered must have two test samples"):
        split_validation(numbered([0, 1, 2]), 0.5)
