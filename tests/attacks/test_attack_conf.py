from dataclasses import replace

import pytest
from hydra.utils import instantiate

from attacks.analytic import complete_low_rank, first_linear, rgap
from attacks.optimisation import dlg, gradinversion, idlg, inverting_gradients
from fl_app.config.build import attack_node
from fl_app.config.compose import compose


def made(overrides):
    return instantiate(attack_node(compose(overrides)))


@pytest.mark.parametrize("name", ["none", "ig"])
def test_an_attack_says_whom_it_attacks_and_what_it_is_granted(name):
    cfg = compose(f"attack={name}").attack
    assert cfg.name == name
    assert isinstance(cfg.grant.labels, bool)
    assert len(cfg.rounds) == len(cfg.clients) == (0 if name == "none" else 1)


@pytest.mark.parametrize("name", ["none", "ig"])
def test_only_an_attack_that_does_something_has_a_factory(name):
    assert ("_target_" in attack_node(compose(f"attack={name}"))) == (name != "none")


# a run attacks in both forms; the library's attack has one
FACTORIES = {
    "ig": inverting_gradients,
    "dlg": dlg,
    "idlg": idlg,
    "gi": gradinversion,
    "low_rank": complete_low_rank,
}


@pytest.mark.parametrize("name", FACTORIES)
@pytest.mark.parametrize("adaptive", [True, False])
def test_the_group_has_the_defaults_of_the_library(name, adaptive):
    assert made(f"attack={name} attack.adaptive={adaptive}") == FACTORIES[name](adaptive=adaptive)


@pytest.mark.parametrize(("name", "make"), [("first_linear", first_linear), ("rgap", rgap)])
def test_the_group_of_an_attack_without_settings_makes_it(name, make):
    assert made(f"attack={name}") == make()


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("ig", {"steps": 7, "restarts": 2, "tv": 0.5}),
        ("dlg", {"steps": 7, "restarts": 2}),
        ("idlg", {"steps": 7, "restarts": 2}),
        ("gi", {"steps": 7, "statistics": 0.5, "group": 0.0}),
        ("low_rank", {"rank": 2, "starts": 5, "iterations": 9}),
    ],
)
def test_settings_of_the_group_reach_the_attack(name, changes):
    given = " ".join(f"attack.{key}={value}" for key, value in changes.items())
    changed = made(f"attack={name} attack.adaptive=true {given}")
    assert changed == replace(FACTORIES[name](adaptive=True), **changes) != FACTORIES[name](adaptive=True)
