import pytest
import torch

from attacks.labels.class_points import class_points
from attacks.labels.counts import count_samples
from attacks.labels.numerical_rank import numerical_rank


def low_rank(seed: int, rank: int, smallest: float = 1.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(n, rank, generator=generator, dtype=torch.float64) for n in (60, 80))
    return left * torch.logspace(0, torch.tensor(smallest).log10(), rank, dtype=torch.float64) @ right.T


@pytest.mark.parametrize("size", [1e-200, 1e-13, 1.0, 1e6])
@pytest.mark.parametrize("rank", [1, 7, 40])
def test_is_that_of_the_factors_whatever_the_size(size, rank):
    assert class_points(size * low_rank(0, rank, 1e-6)).rank == rank


def test_rounding_to_single_precision_is_seen_as_rounding():
    assert class_points(low_rank(0, 7, 1e-3).float()).rank == 7


def test_the_size_of_single_rows_hides_nothing():
    rows = low_rank(0, 7, 1e-2).float() * torch.logspace(0, -20, 60)[:, None]
    assert class_points(rows).rank == 7


def test_noise_is_told_from_rounding():
    noisy = low_rank(0, 7) + 0.05 * low_rank(1, 60)
    found = class_points(noisy, samples=7)
    assert found.rank == 7
    assert any("rewritten" in note for note in found.notes)
    assert class_points(noisy).rank == 60
    little = class_points(low_rank(0, 7) + 1e-5 * low_rank(1, 60))
    assert little.rank == 7
    assert any("widest gap" in note for note in little.notes)


def test_a_rank_above_the_samples_is_not_believed():
    found = numerical_rank(torch.tensor([9.0, 8, 7, 6, 1e-3, 1e-3]).double(), 1e-3, samples=3)
    assert found.number == 3
    assert any("rank 4" in note for note in found.notes)


def test_a_step_inside_the_signal_does_not_end_it():
    assert numerical_rank(torch.tensor([1e4, 10, 8, 6, 1e-3, 1e-3]).double(), 1e-3).number == 4


def test_a_small_step_down_to_the_expected_rounding_ends_the_signal_and_no_small_step_above_it_does():
    # of an utterance, after a speech model's first 200 steps
    seen = [1.2e10, 5.9e8, 9.1e7, 1.6e7, 6.6e6, 2.7e6, 7.7e5, 7.6e3, 7.3e3, 3.8e3, 695, 82, 80, 79, 77]
    assert numerical_rank(torch.tensor(seen).double(), 69.5).number == 11
    assert numerical_rank(torch.tensor([1e6, 1e5, 2000, 500, 480]).double(), 69.5).number == 2
    # of an EfficientNet with features almost alike: all that rounding did is in one direction
    assert numerical_rank(torch.tensor([2e6, 1.9e6, 4.9, 3e-7, 1e-7]).double(), 1.0).number == 2


def test_counts_come_from_the_pull_of_each_class():
    bias = torch.full((10,), 0.01).index_put((torch.tensor([3, 7]),), torch.tensor([-0.74, -0.24]))
    assert count_samples(torch.tensor([3, 7]), bias, 4).tolist() == [3, 1]
    assert count_samples(torch.tensor([3, 7]), bias, 2) is None  # 1.5 and 0.5
    assert count_samples(torch.tensor([3, 7, 8, 9]), bias, 4) is None  # nothing pulls at 8 and 9
    assert count_samples(torch.tensor([3, 7]), bias, 6) is None  # 4.5 and 1.5
    assert count_samples(torch.tensor([3, 7]), bias, None) is None
