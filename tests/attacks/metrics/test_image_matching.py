from itertools import permutations

import pytest
import torch

from attacks.metrics import match


def test_finds_the_order_that_was_shuffled():
    truth = torch.rand(6, 3, 8, 8)
    order = torch.randperm(6)
    noisy = truth[order] + 0.05 * torch.randn(6, 3, 8, 8)
    assert torch.equal(order[match(noisy, truth)], torch.arange(6))


@pytest.mark.parametrize("seed", range(5))
def test_no_permutation_has_a_smaller_total_error(seed):
    images, truth = torch.rand(2, 4, 1, 3, 3, generator=torch.Generator().manual_seed(seed)).double()

    def total(order):
        return sum((images[i] - truth[row]).square().sum() for row, i in enumerate(order))

    best = min(permutations(range(4)), key=total)
    assert match(images, truth) == list(best)


def test_true_images_without_a_counterpart_get_none():
    truth = torch.rand(4, 1, 5, 5)
    assert match(truth[[2, 0]], truth) == [1, None, 0, None]
    assert match(truth[:0], truth) == [None] * 4


def test_surplus_images_stay_unused():
    truth = torch.rand(2, 1, 5, 5)
    images = torch.cat([torch.rand(3, 1, 5, 5), truth])
    assert match(images, truth) == [3, 4]


def test_images_of_another_size_are_refused():
    with pytest.raises(ValueError, match="one image size"):
        match(torch.zeros(1, 3, 4, 4), torch.zeros(1, 3, 5, 5))
