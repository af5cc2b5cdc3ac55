import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from attacks.optimisation.group_consistency import REACH, WARM_UP, GroupConsistency
from attacks.optimisation.priors import squared_length
from attacks.optimisation.registration import find_shifts, registered_mean, translate


def views(scene: torch.Tensor, shifts: list[tuple[int, int]], reach: int) -> torch.Tensor:
    """What a camera sees of a larger scene that is moved by each shift: new things come in at the edge."""
    height, width = (size - 2 * reach for size in scene.shape[-2:])
    return torch.stack(
        [scene[:, reach - y : reach - y + height, reach - x : reach - x + width] for y, x in shifts]
    )


@given(
    seed=st.integers(0, 1000),
    shifts=st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=1, max_size=4),
    size=st.tuples(st.integers(8, 14), st.integers(8, 14)),
    level=st.sampled_from([0.0, 5.0]),
)
@settings(max_examples=60, deadline=None)
def test_known_shifts_are_found_exactly(seed, shifts, size, level):
    generator = torch.Generator().manual_seed(seed)
    scene = level + torch.randn(3, size[0] + 6, size[1] + 6, generator=generator)
    reference = views(scene, [(0, 0)], 3)[0]
    found = find_shifts(views(scene, shifts, 3), reference, 3)
    assert found.tolist() == [list(shift) for shift in shifts]
    moved, covered = translate(views(scene, shifts, 3), found)
    torch.testing.assert_close(moved * covered, reference * covered)


def test_the_least_difference_is_the_one_that_a_search_by_hand_finds():
    scene, noise = torch.randn(2, 2, 13, 15, generator=torch.Generator().manual_seed(1)).double()
    reference = views(scene, [(0, 0)], 3)[0]
    image = views(scene + 0.7 * noise, [(1, -2)], 3)[0]
    best = {}
    for y in range(-2, 3):
        for x in range(-2, 3):
            moved, covered = translate(image, torch.tensor([y, x]))
            square = ((moved - reference).square() * covered).sum() / (covered.sum() * 2)
            best[y, x] = float(square)
    assert find_shifts(image, reference, 2).tolist() == list(min(best, key=best.get)) == [1, -2]


@given(seed=st.integers(0, 1000), contrast=st.sampled_from([0.0, 1e-4, 1.0]))
@settings(max_examples=30, deadline=None)
def test_identical_and_flat_images_stay_where_they_are(seed, contrast):
    image = 0.7 + contrast * torch.randn(3, 9, 8, generator=torch.Generator().manual_seed(seed))
    assert not find_shifts(image.expand(3, -1, -1, -1), image, 4).any()
    torch.testing.assert_close(registered_mean(image.expand(3, -1, -1, -1), 4), image)


def test_noise_is_not_moved_about():
    noise = torch.randn(20, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert not find_shifts(noise, noise.flip(0), 4).any()


def test_nothing_wraps_around():
    image = torch.arange(12.0).view(1, 3, 4)
    moved, covered = translate(image, torch.tensor([1, -2]))
    expected = torch.tensor([[0.0, 0, 4, 5], [0, 0, 8, 9], [0, 0, 0, 0]])
    assert torch.equal((moved * covered)[0], expected)
    assert torch.equal(covered[0] > 0, expected > 0)


def test_a_small_image_is_not_compared_by_a_corner():
    image = torch.randn(1, 4, 4, generator=torch.Generator().manual_seed(0))
    assert find_shifts(image.flip(0), image, 50).abs().max() <= 2


def test_the_registered_mean_is_sharper_than_the_plain_one():
    generator = torch.Generator().manual_seed(2)
    scene = torch.randn(3, 22, 22, generator=generator)
    # most restarts are in place: their mean is a target that the others find
    group = views(scene, [(0, 0), (0, 0), (0, 0), (1, 2), (-2, 0)], 3)
    truth = group[0]
    plain = (group.mean(dim=0) - truth).square().mean()
    assert (registered_mean(group, 3) - truth).square().mean() < 1e-9 < plain


@pytest.fixture
def restarts() -> torch.Tensor:
    return torch.randn(6, 3, 2, 10, 10, generator=torch.Generator().manual_seed(4)).double()


LABELS = torch.tensor([[0, 1, 2]] * 6)
OWNERS = [5, 5, 5, 8, 8, 8]


def test_restarts_that_agree_have_no_penalty(restarts):
    same = restarts[[0, 0, 0, 3, 3, 3]]
    penalty = GroupConsistency(2.0, OWNERS, LABELS)({"images": same}, 0.9)
    torch.testing.assert_close(penalty, torch.zeros(6).double())


def test_restarts_pay_for_their_distance_to_their_own_groups_mean(restarts):
    penalty = GroupConsistency(2.0, OWNERS, LABELS)({"images": restarts}, 0.9)
    expected = [
        2 * (restarts[i] - _mean_by_image(restarts[group])).square().mean()
        for group in (slice(0, 3), slice(3, 6))
        for i in range(group.start, group.stop)
    ]
    torch.testing.assert_close(penalty, torch.stack(expected))


def _mean_by_image(group: torch.Tensor) -> torch.Tensor:
    return torch.stack([registered_mean(group[:, b], REACH) for b in range(group.shape[1])])


def test_nothing_is_agreed_on_before_the_warm_up_is_over(restarts):
    guide = GroupConsistency(2.0, OWNERS, LABELS)
    assert not guide({"images": restarts}, 0.99 * WARM_UP).any()
    assert guide({"images": restarts}, WARM_UP).all()


def test_the_mean_is_held_for_a_while_and_then_renewed(restarts):
    guide = GroupConsistency(1.0, OWNERS, LABELS)
    guide({"images": restarts}, 0.5)
    held = guide.agreed
    guide({"images": 3 * restarts}, 0.5001)
    assert guide.agreed is held
    guide({"images": 3 * restarts}, 0.6)
    torch.testing.assert_close(guide.agreed, 3 * held)


def test_only_the_guess_itself_is_pulled(restarts):
    guide = GroupConsistency(1.0, OWNERS, LABELS)
    agreed = guide.agree(restarts)
    leaf = restarts.clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(guide({"images": leaf}, 0.5).sum(), leaf)
    torch.testing.assert_close(slope, 2 * (restarts - agreed) / restarts[0].numel())


def test_samples_of_one_label_may_come_in_any_order():
    images = torch.rand(3, 2, 8, 8, generator=torch.Generator().manual_seed(6)) - 0.5
    swapped = torch.stack([images, images[[1, 0, 2]], images])
    guide = GroupConsistency(1.0, [0, 0, 0], torch.tensor([[4, 4, 7]] * 3))
    torch.testing.assert_close(guide.agree(swapped), swapped)
    apart = GroupConsistency(1.0, [0, 0, 0], torch.tensor([[4, 5, 7]] * 3))
    assert not np.allclose(apart.agree(swapped), swapped)


def test_the_mean_square_is_counted_by_hand_and_by_guess():
    images = torch.tensor([[1.0, -2.0], [0.0, 3.0]]).view(2, 1, 1, 1, 2)
    torch.testing.assert_close(squared_length(images), torch.tensor([2.5, 4.5]))
    assert gradcheck(squared_length, images.double().requires_grad_(True))
