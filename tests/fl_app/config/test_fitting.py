"""A config is refused if it does not go with what its defense says about itself."""

import pytest
from shipped import defense_of, sends_vectors, shipped

from fl_app.config.build import client_parts, server_parts
from fl_app.config.compose import ConfigError
from fl_app.defenses import Defense, protect
from fl_app.sketches import everything
from fl_app.types import Trace

TINY = "data.train_per_class=4 data.test_per_class=2 clients=4"


CHOICES = shipped("defense")


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("group", ["dp=client", "secagg=on"])
def test_vectors_alone_are_masked_or_get_noise_of_clients(name, group):
    text = f"{TINY} defense={name} {group}"
    if not sends_vectors(name):
        with pytest.raises(
            ConfigError, match=f"^{group.split('=')[0]}: {group} needs .* got defense={name}$"
        ):
            client_parts(text)
    else:
        client_parts(text)


@pytest.mark.parametrize("name", filter(sends_vectors, CHOICES))
def test_weight_decay_is_refused_where_it_would_move_what_must_stay(name):
    text = f"{TINY} defense={name} training.weight_decay=0.01"
    if defense_of(name).confined:
        with pytest.raises(ConfigError, match=f"weight_decay: must be 0 with defense={name}"):
            client_parts(text)
    else:
        client_parts(text)


def test_noise_of_clients_needs_a_known_number_of_steps():
    client_parts(f"{TINY} defense=fl_cs training.steps=null")
    with pytest.raises(ConfigError, match="with dp=client it must be a number"):
        server_parts(f"{TINY} defense=fl_cs training.steps=null dp=client")


@pytest.mark.parametrize(
    ("rounds", "refused"), [("[1]", True), ("all", True), ("[2]", False), ("last", False)]
)
def test_a_round_of_votes_cannot_be_attacked(rounds, refused):
    text = f"{TINY} defense=fl_top defense.chosen_by=vote attack.rounds={rounds}"
    if refused:
        with pytest.raises(ConfigError, match="in round 1 clients vote"):
            client_parts(text)
    else:
        client_parts(text)


@pytest.mark.parametrize("name", CHOICES)
def test_a_baseline_is_its_own_baseline_and_of_the_same_kind(name):
    defense = defense_of(name)
    baseline = defense_of(defense.baseline)
    assert baseline.baseline == defense.baseline
    assert sends_vectors(defense.baseline) == sends_vectors(name)


def test_together_defenses_have_every_trait_that_one_of_them_has():
    confined = Defense(scheme=everything(), trained=(Trace(confined=True),), baseline="x")
    both = protect(a=Defense(images_only=True), b=confined)
    assert (both.images_only, both.confined, both.votes_first, both.baseline) == (True, True, False, "x")


@pytest.mark.parametrize(
    ("text", "most"),
    [
        ("secagg.min_clients=5", 4),
        ("fraction=0.5", 2),
        ("fraction=0.5 dp=client dp.sampling=fixed", 2),
        ("fraction=0.5 dp=client dp.epsilon=null dp.noise_multiplier=1 secagg.min_clients=5", 4),
    ],
)
def test_a_crowd_that_no_round_can_have_is_refused(text, most):
    with pytest.raises(ConfigError, match=f"secagg.min_clients: no round has more than {most} clients"):
        server_parts(f"{TINY} defense=fl_std secagg=on {text}")
