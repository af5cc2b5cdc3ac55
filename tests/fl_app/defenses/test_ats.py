"""Images are rewritten by one of the policies each, before anything is computed from them."""

import logging

import pytest
import torch
from federations import SMALL, train

from fl_app.config.build import client_parts, server_parts
from fl_app.config.compose import ConfigError, compose
from fl_app.data import Samples
from fl_app.defenses import LIBRARY, Defense, ats, protect
from fl_app.defenses.operations import follow
from fl_app.seeding import generator_for
from fl_app.training import LocalData, evaluate
from fl_app.transforms import keep_topk
from fl_app.wire import decode
from fl_app.wire.messages import unpack_reply

FIRST, SECOND = [3, 1, 7], [47, 24, 13]


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


def draws(number: int = 0) -> torch.Generator:
    return generator_for(0, 1, number, "test")


def augment(defense: Defense, images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    assert defense.rules.augment is not None
    return defense.rules.augment(images, generator)


def test_one_policy_is_the_composition_of_its_operations():
    images = torch.rand(5, 3, 16, 16)
    before = images.clone()
    expected = LIBRARY[13](LIBRARY[24](LIBRARY[47](images)))
    assert torch.equal(augment(ats([SECOND]), images, draws()), expected)
    assert torch.equal(images, before)


@pytest.mark.parametrize("channels", [1, 3])
def test_every_image_follows_one_of_the_policies(channels):
    images = torch.rand(40, channels, 12, 12, dtype=torch.float64)
    changed = augment(ats([FIRST, SECOND]), images, draws())
    assert (changed.shape, changed.dtype) == (images.shape, images.dtype)
    by_first = (changed - follow(FIRST, images)).abs().amax(dim=(1, 2, 3)) < 1e-9
    by_second = (changed - follow(SECOND, images)).abs().amax(dim=(1, 2, 3)) < 1e-9
    assert (by_first ^ by_second).all()
    # 40 fair draws: outside of 8..32 once in 20,000 seeds
    assert 8 <= by_first.sum() <= 32


def test_the_same_generator_draws_the_same_policies_and_another_does_not():
    images, defense = torch.rand(30, 3, 8, 8), ats([FIRST, SECOND])
    changed = augment(defense, images, draws(1))
    assert torch.equal(augment(defense, images, draws(1)), changed)
    assert not torch.equal(augment(defense, images, draws(2)), changed)


def test_an_empty_batch_stays_empty():
    assert augment(ats([FIRST, SECOND]), torch.rand(0, 3, 8, 8), draws()).shape == (0, 3, 8, 8)


def test_a_batch_keeps_its_labels_and_its_own_pixels():
    samples = Samples(torch.randint(256, (6, 3, 8, 8), dtype=torch.uint8), torch.arange(6))
    data = LocalData(samples, (0.5, 0.4, 0.3), (0.2, 0.2, 0.2), seed=0, client=0)
    rules = ats([FIRST]).rules
    indices = torch.tensor([4, 0, 2])
    batch = data.batch(indices, torch.device("cpu"), torch.float32, augment=rules.augment, generator=draws())
    plain = data.batch(indices, torch.device("cpu"), torch.float32)
    assert torch.equal(batch.labels, plain.labels)
    assert torch.equal(batch.pixels, plain.pixels)
    assert torch.equal(batch.trained, follow(FIRST, plain.pixels))
    mean = torch.tensor([0.5, 0.4, 0.3]).view(3, 1, 1)
    torch.testing.assert_close(batch.inputs, (batch.trained - mean) / 0.2)


@pytest.mark.parametrize(
    ("policies", "words"),
    [
        ([], "policies must be a list with at least one entry, got \\[\\]"),
        ([[]], "a policy must be a list with at least one entry"),
        ([3, 1, 7], "a policy must be a list with at least one entry, got 3"),
        ("3-1-7", "policies must be a list"),
        (None, "policies must be a list"),
        ([[3, 50]], "0 to 49, got 50 in \\[3, 50\\]"),
        ([[-1]], "got -1"),
        ([[True]], "got True"),
        ([[1.0]], "got 1.0"),
        ([["3"]], "got '3'"),
    ],
)
def test_policies_that_cannot_be_are_refused(policies, words):
    with pytest.raises(ValueError, match=f"ats: .*{words}"):
        ats(policies)


def test_a_config_with_an_unknown_operation_is_refused_with_its_place():
    with pytest.raises(ConfigError, match=r"defense: ats: .*got 77"):
        server_parts(f"{SMALL} defense=ats defense.policies=[[77]]")


def test_it_works_beside_a_defense_of_the_update_and_not_beside_itself():
    both = protect(ats=ats([FIRST]), topk=keep_topk(0.5))
    images = torch.rand(2, 3, 8, 8)
    assert torch.equal(augment(both, images, draws()), follow(FIRST, images))
    with pytest.raises(ValueError, match="both 'one' and 'two' change augment"):
        protect(one=ats([FIRST]), two=ats([SECOND]))


def updates(overrides: str) -> list[dict[str, torch.Tensor]]:
    parts, tap = train(overrides)
    return [decode(unpack_reply(reply).update, parts.strategy.weights) for _, reply in tap.exchanges]


def test_the_updates_of_a_federation_change_and_repeat():
    plain, changed, again = (updates(f"defense={name} rounds=1 clients=2") for name in ("none", "ats", "ats"))
    for one, other, third in zip(plain, changed, again, strict=True):
        assert all(not torch.equal(one[name], other[name]) for name in one)
        assert all(torch.equal(other[name], third[name]) for name in other)


@pytest.mark.slow
def test_a_federation_learns_from_transformed_images():
    parts, _ = train("defense=ats rounds=150 clients=2 batch_size=16 lr=0.05 data.train_per_class=20")
    assert not any(record.failures for record in parts.strategy.records)
    data = parts.dataset
    before = evaluate(parts.model, data.train, data.mean, data.std).accuracy
    parts.model.load_state_dict(parts.strategy.weights)
    after = evaluate(parts.model, data.train, data.mean, data.std).accuracy
    assert before < 0.2
    assert after > 0.3


def test_the_configured_policies_have_three_operations_each():
    policies = compose("defense=ats").defense.policies
    assert [len(policy) for policy in policies] == [3, 3]
    client_parts(f"{SMALL} defense=ats")
