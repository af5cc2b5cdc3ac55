"""Equal classes, and public samples: counts, and the same draw for the same seed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fl_app.data.balance import balance
from fl_app.data.public_samples import draw_public


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(0, 5))
def test_every_class_keeps_as_many_as_the_rarest_has(labels, seed):
    labels = torch.tensor(labels)
    kept = balance(labels, torch.Generator().manual_seed(seed))
    assert len(set(kept.tolist())) == len(kept)
    counts = torch.bincount(labels)
    fewest = int(counts[counts > 0].min())
    assert torch.bincount(labels[kept])[labels.unique()].tolist() == [fewest] * len(labels.unique())
    assert torch.equal(kept, balance(labels, torch.Generator().manual_seed(seed)))


def test_other_samples_of_the_common_class_are_kept_for_another_seed_and_classes_are_mixed():
    labels = torch.tensor([1] * 30 + [0] * 300)
    one, two = (balance(labels, torch.Generator().manual_seed(seed)) for seed in (1, 2))
    assert set(one.tolist()) & set(range(30)) == set(two.tolist()) & set(range(30)) == set(range(30))
    assert set(one.tolist()) != set(two.tolist())
    assert 5 < int(labels[one[:30]].sum()) < 25


def test_nobody_is_balanced_to_nobody():
    assert len(balance(torch.zeros(0, dtype=torch.int64), torch.Generator())) == 0


def test_public_samples_are_those_of_the_seed():
    labels = torch.arange(10).repeat(40)
    one, same, other = (draw_public(labels, 10, seed) for seed in (1, 1, 2))
    assert len(set(one.tolist())) == 10
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_balanced_public_batch_has_as_many_of_each_class():
    labels = torch.tensor([0] * 300 + [1] * 20)
    chosen = draw_public(labels, 24, 0, balanced=True)
    assert torch.bincount(labels[chosen]).tolist() == [12, 12]
    assert len(set(chosen.tolist())) == 24


@pytest.mark.parametrize(("count", "balanced"), [(0, False), (321, False), (25, True), (42, True)])
def test_a_public_batch_that_cannot_be_is_refused(count, balanced):
    with pytest.raises(ValueError, match=rf"draw_public: .*got {count}"):
        draw_public(torch.tensor([0] * 300 + [1] * 20), count, 0, balanced=balanced)
