"""FL-BASIC's sets: the same for everybody who has the seed, and uniform over seeds."""

import hashlib

import numpy as np
import pytest
import torch
from scipy.stats import chi2, chisquare

from fl_app.sketches import check_coordinates, draw_coordinates


@pytest.mark.parametrize(
    ("n", "count"), [(1, 1), (2, 1), (7, 7), (100, 3), (100, 60), (100, 99), (5000, 2500)]
)
def test_a_set_has_its_size_and_is_in_order(n, count):
    drawn = draw_coordinates(n, count, seed=3)
    check_coordinates("test", drawn, n)
    assert len(drawn) == count


def test_the_set_is_written_down_so_that_no_version_of_anything_changes_it():
    assert draw_coordinates(1000, 6, seed=42).tolist() == by_hand(1000, 6, 42)
    large = draw_coordinates(1_663_370, 8316, seed=7)
    assert large.tolist() == by_hand(1_663_370, 8316, 7)


def by_hand(n: int, count: int, seed: int) -> list[int]:
    """One word after the other, as the module describes it."""
    stream = hashlib.shake_256(f"coordinates/{seed}".encode()).digest(80 * count)
    found: list[int] = []
    seen: set[int] = set()
    for start in range(0, len(stream), 8):
        word = int.from_bytes(stream[start : start + 8], "little")
        if word < 2**64 // n * n and word % n not in seen and len(found) < count:
            seen.add(word % n)
            found.append(word % n)
    return sorted(found)


def test_neither_torchs_nor_numpys_own_state_matters():
    first = draw_coordinates(1000, 50, seed=1)
    torch.manual_seed(5)
    np.random.seed(5)
    assert torch.equal(draw_coordinates(1000, 50, seed=1), first)


def test_every_set_is_equally_likely():
    """All 10 pairs of 5, and (by what is left out) all 10 triples."""
    for count in (2, 3):
        seen: dict[tuple[int, ...], int] = {}
        for seed in range(4000):
            key = tuple(draw_coordinates(5, count, seed).tolist())
            seen[key] = seen.get(key, 0) + 1
        assert len(seen) == 10
        assert chisquare(list(seen.values())).pvalue > 1e-4


def test_every_coordinate_is_drawn_as_often_in_large_sets():
    n, count, rounds = 1000, 100, 400
    times = sum(torch.bincount(draw_coordinates(n, count, seed), minlength=n) for seed in range(rounds))
    share = count / n
    # without replacement: each coordinate is binomial, and their sum is fixed
    statistic = float(((times - rounds * share) ** 2).sum() / (rounds * share * (1 - share)))
    assert chi2.ppf(1e-4, n - 1) < statistic < chi2.ppf(1 - 1e-4, n - 1)


def test_two_rounds_share_as_much_as_chance_has_it():
    n, count = 20_000, 1000
    common = len(set(draw_coordinates(n, count, 1).tolist()) & set(draw_coordinates(n, count, 2).tolist()))
    assert abs(common - count * count / n) < 5 * (count * count / n) ** 0.5


@pytest.mark.parametrize("count", [0, 11])
def test_a_count_outside_its_range_is_refused(count):
    with pytest.raises(ValueError, match=rf"count must be in 1\.\.10, got {count}"):
        draw_coordinates(10, count, 0)
