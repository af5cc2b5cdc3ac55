"""Every partitioner deals without doubles or empty hands, and the same way for the same generator."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.data import dirichlet, fixed, iid, label_histogram, natural, shards


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@st.composite
def tasks(draw):
    clients = draw(st.integers(1, 12))
    labels = draw(st.lists(st.integers(0, 5), min_size=3 * clients, max_size=80))
    return torch.tensor(labels), clients, draw(st.integers(0, 2**31))


COVERING = st.sampled_from([iid(), dirichlet(0.01), dirichlet(0.5), dirichlet(100.0), shards(1), shards(3)])


@given(task=tasks(), partition=COVERING)
@settings(max_examples=200)
def test_every_sample_is_dealt_exactly_once_and_nobody_is_empty(task, partition):
    labels, clients, seed = task
    parts = partition(labels, clients, generator(seed))
    assert len(parts) == clients
    assert all(len(part) > 0 and part.dtype == torch.int64 for part in parts)
    assert torch.cat(parts).sort().values.tolist() == list(range(len(labels)))


@given(task=tasks(), samples=st.integers(1, 3))
def test_fixed_deals_the_same_number_to_all_and_no_sample_twice(task, samples):
    labels, clients, seed = task
    parts = fixed(samples)(labels, clients, generator(seed))
    dealt = torch.cat(parts).tolist()
    assert [len(part) for part in parts] == [samples] * clients
    assert len(set(dealt)) == len(dealt)
    assert set(dealt) <= set(range(len(labels)))


@given(task=tasks(), partition=COVERING | st.just(fixed(2)))
def test_the_same_generator_deals_the_same_hands(task, partition):
    labels, clients, seed = task
    first, second = (partition(labels, clients, generator(seed)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("partition", [iid(), dirichlet(1.0), shards(2), fixed(5)])
def test_another_seed_deals_other_hands(partition):
    labels = torch.arange(10).repeat(20)
    first, second = (partition(labels, 5, generator(seed)) for seed in (0, 1))
    assert not all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@given(task=tasks())
def test_iid_parts_differ_in_size_by_one_at_most(task):
    labels, clients, seed = task
    sizes = [len(part) for part in iid()(labels, clients, generator(seed))]
    assert max(sizes) - min(sizes) <= 1


def skew(alpha: float) -> float:
    """Mean total variation distance between a client's label shares and those of all, over draws."""
    labels = torch.arange(10).repeat(200)
    distances = []
    for seed in range(5):
        counts = label_histogram(labels, dirichlet(alpha)(labels, 10, generator(seed)), 10).double()
        shares = counts / counts.sum(1, keepdim=True)
        distances.append((shares - 0.1).abs().sum(1).mean() / 2)
    return torch.stack(distances).mean().item()


def test_dirichlet_skew_falls_with_alpha_from_one_class_to_all():
    skews = [skew(alpha) for alpha in (0.01, 0.1, 1.0, 10.0, 10_000.0)]
    assert skews == sorted(skews, reverse=True)
    assert skews[0] > 0.6
    assert skews[-1] < 0.02


def test_dirichlet_shares_have_the_mean_and_variance_of_the_law():
    # one class, K clients: each share has mean 1/K and variance (1/K)(1 - 1/K) / (K alpha + 1)
    clients, alpha, size = 4, 0.5, 1000
    labels = torch.zeros(size, dtype=torch.int64)
    source = generator(3)
    draws = torch.tensor(
        [[len(part) / size for part in dirichlet(alpha)(labels, clients, source)] for _ in range(400)]
    )
    torch.testing.assert_close(draws.mean(0), torch.full((clients,), 0.25), atol=0.04, rtol=0)
    expected = 0.25 * 0.75 / (clients * alpha + 1)
    assert draws.var(0).mean().item() == pytest.approx(expected, rel=0.15)


def test_shards_give_each_client_few_classes_and_equal_sizes():
    labels = torch.arange(10).repeat(60)[torch.randperm(600, generator=generator(5))]
    counts = label_histogram(labels, shards(2)(labels, 10, generator(0)), 10)
    # 20 shards of 30 fit into classes of 60 exactly, so a client sees two classes at most
    assert counts.sum(1).tolist() == [60] * 10
    assert ((counts > 0).sum(1) <= 2).all()


def test_hands_are_not_sorted_by_label():
    labels = torch.arange(2).repeat_interleave(100)
    for partition in (iid(), dirichlet(100.0), shards(4), fixed(50)):
        held = labels[partition(labels, 2, generator(0))[0]]
        assert held.tolist() != held.sort().values.tolist()


def test_histogram_counts_labels_by_client():
    labels = torch.tensor([0, 2, 2, 1, 0])
    parts = [torch.tensor([0, 4]), torch.tensor([1, 2, 3])]
    assert label_histogram(labels, parts, 4).tolist() == [[2, 0, 0, 0], [0, 1, 2, 0]]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dirichlet(0.0), "dirichlet: alpha must be positive and finite, got 0.0"),
        (lambda: dirichlet(float("nan")), "dirichlet: alpha must be positive and finite, got nan"),
        (lambda: shards(0), "shards: per_client must be at least 1, got 0"),
        (lambda: fixed(-1), "fixed: samples must be at least 1, got -1"),
    ],
)
def test_a_bad_setting_is_refused_when_the_partitioner_is_made(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("partition", "clients", "message"),
    [
        (iid(), 11, "iid: 11 clients need at least 11 samples, got 10"),
        (dirichlet(1.0), 11, "dirichlet: 11 clients need at least 11 samples, got 10"),
        (shards(3), 4, "shards: 4 clients need at least 12 samples, got 10"),
        (fixed(3), 4, "fixed: 4 clients need at least 12 samples, got 10"),
        (iid(), 0, "iid: num_clients must be at least 1, got 0"),
        (shards(2), 0, "shards: num_clients must be at least 1, got 0"),
    ],
)
def test_too_few_samples_are_refused_with_the_numbers(partition, clients, message):
    with pytest.raises(ValueError, match=message):
        partition(torch.zeros(10, dtype=torch.int64), clients, generator(0))


@given(task=tasks())
@settings(deadline=None)
def test_natural_deals_groups_whole_and_no_two_hands_could_be_evened_by_one_group(task):
    labels, clients, seed = task
    groups = len(labels.unique())
    if groups < clients:
        with pytest.raises(ValueError, match=f"natural: {clients} clients need .* groups, got {groups}"):
            natural()(labels, clients, generator(seed))
        return
    parts = natural()(labels, clients, generator(seed))
    assert torch.cat(parts).sort().values.tolist() == list(range(len(labels)))
    counts = label_histogram(labels, parts, 6)
    assert ((counts > 0).sum(dim=0) <= 1).all()
    sizes, last = counts.sum(dim=1), torch.where(counts > 0, counts, 10**6).amin(dim=1)
    # whoever has the most had the fewest before its smallest group came
    assert (sizes - last).max() <= sizes.min()
