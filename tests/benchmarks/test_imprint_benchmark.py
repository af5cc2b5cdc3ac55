from itertools import product

import pytest
import torch

from benchmarks.imprint import Recovered, bound, measure, observe, victims
from fl_app.data import Dataset
from fl_app.data.dataset import Samples
from fl_app.models import mlp


@pytest.fixture
def data() -> Dataset:
    generator = torch.Generator().manual_seed(0)
    parts = {
        name: Samples(
            torch.randint(256, (count, 3, 4, 4), dtype=torch.uint8, generator=generator),
            torch.arange(count) % 2,
        )
        for name, count in (("train", 20), ("test", 12))
    }
    return Dataset.of("noise", **parts, class_names=("a", "b"))


@pytest.mark.parametrize(("bins", "size"), [(2, 3), (3, 4), (5, 2)])
def test_the_bound_is_the_share_of_all_ways_to_sort_a_batch(bins, size):
    ways = list(product(range(bins), repeat=size))
    alone = sum(way.count(place) == 1 for way in ways for place in way)
    assert bound(bins, size) == pytest.approx(alone / (len(ways) * size))


def test_only_exact_images_count(data):
    batches = list(victims(data, 5, 2))
    shown = iter(batches)

    def attack(obs):
        images = next(shown).inputs[:3].float() / 255
        images[0] += 0.01  # 40 dB
        return type("Result", (), {"images": images.clamp(0, 1)})

    found = measure(attack, mlp(2, (3, 4, 4), hidden=(4,)), data, iter(batches))
    torch.testing.assert_close(found.shares, torch.tensor([0.4, 0.4]))


def test_the_error_is_that_of_the_mean():
    assert Recovered(torch.tensor([0.0, 1.0, 0.0, 1.0]), 0.0).error == pytest.approx((1 / 3) ** 0.5 / 2)


def test_a_batch_has_no_picture_twice(data):
    for batch in victims(data, 12, 3):
        assert len(batch.inputs.flatten(1).unique(dim=0)) == 12


def test_one_local_step_is_a_multiple_of_the_gradient(data):
    model, batch = mlp(2, (3, 4, 4), hidden=(4,)), next(victims(data, 5, 1))
    gradient, delta = (observe(model, data, batch, steps, lr=0.5).update for steps in (None, 1))
    for name, entries in gradient.items():
        torch.testing.assert_close(delta[name], -0.5 * entries, rtol=1e-3, atol=1e-6)
        assert entries.any() or "hidden" in name
