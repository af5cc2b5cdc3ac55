"""An attack never sees the truth: its types have no place for it, and a poisoned one changes nothing."""

import dataclasses
import inspect
import logging
import typing
from collections.abc import Callable, Sequence

import pytest
import torch
from hydra.utils import instantiate
from shipped import shipped
from torch import Tensor, nn

import attacks.base
from fl_app.adversary.passive import PassiveServer, observe
from fl_app.client_app import app
from fl_app.config.build import attack_node, attack_parts, server_parts
from fl_app.config.compose import compose
from fl_app.flower import InlineGrid
from fl_app.flower.held_tensor import hold
from fl_app.flower.tapped import TappedGrid
from fl_app.running.attack import attack_sightings
from fl_app.running.result import Results
from fl_app.types import Observation, Truth

ATTACKS = shipped("attack")
RUN = (
    "data.train_per_class=8 data.test_per_class=4 clients=2 batch_size=4 rounds=1 threads=1 "
    "attack=ig attack.steps=3 attack.grant.labels=false"
)
TENSORS = {"update", "sent", "labels", "buffers", "locations", "known"}
"""Fields of an observation that hold tensors: what travelled, labels if granted, and the attacker's own."""


def types_within(hint: object) -> set[object]:
    """Return every type that a hint is made of, and those of the fields of our own dataclasses."""
    found: set[object] = set()
    open_ones = [hint]
    while open_ones:
        one = open_ones.pop()
        if isinstance(one, list):  # the arguments of a callable
            open_ones += one
            continue
        if one in found:
            continue
        found.add(one)
        open_ones += typing.get_args(one)
        if dataclasses.is_dataclass(one):
            open_ones += typing.get_type_hints(one).values()
    return found


def test_the_walk_through_types_finds_a_truth_that_is_hidden_deep():
    @dataclasses.dataclass
    class Careless:
        past: Sequence[dict[str, tuple[Callable[[Truth], int], ...]]] | None = None

    assert Truth in types_within(list[Careless])


def test_an_observation_is_made_of_nothing_that_holds_client_data():
    assert Truth not in types_within(Observation)
    hints = typing.get_type_hints(Observation)
    direct = {
        name
        for name, hint in hints.items()
        if name not in ("history", "rewrites", "defend", "rehearse") and Tensor in types_within(hint)
    }
    assert direct == TENSORS
    assert types_within(hints["model"]) == {nn.Module}
    assert Observation in types_within(hints["history"])


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "none"])
def test_no_attack_takes_a_truth(name):
    attack = instantiate(attack_node(compose(f"attack={name}")))
    calls = [attack if inspect.isfunction(attack) else type(attack).__call__]
    calls += [type(attack).many] if hasattr(attack, "many") else []
    for call in calls:
        hints = typing.get_type_hints(call)
        assert any(Observation in types_within(hint) for hint in hints.values())
        assert all(Truth not in types_within(hint) for hint in hints.values())


def test_only_the_score_knows_the_truth(repository):
    named = {p.name for p in (repository / "attacks").rglob("*.py") if "Truth" in p.read_text()}
    assert named == {"score.py"}


class Poison:
    """Raises on any access, until the score may see the truth behind it."""

    def __init__(self, truth: Truth, opened: list[bool]) -> None:
        object.__setattr__(self, "_hidden", (truth, opened))

    def __getattribute__(self, name: str):
        truth, opened = object.__getattribute__(self, "_hidden")
        if not opened[0]:
            raise AssertionError(f"somebody looked at the truth's {name} before the score")
        return getattr(truth, name)


def sightings_of(overrides: str):
    text = f"{RUN} {overrides}"
    parts = server_parts(text)
    strategy = parts.strategy
    auditor = PassiveServer(
        rounds=[1],
        clients=[0],
        model=lambda: (strategy.weights, strategy.buffers),
        read=strategy.see,
        public=parts.public,
        batch_size=1,
    )
    grid = InlineGrid(app, 2, run_config={"overrides": text}, node_config={"allow-audit": True})
    strategy.start(
        grid=TappedGrid(grid, auditor), initial_arrays=hold(parts.model.state_dict()), num_rounds=1
    )
    return auditor.sightings, parts, text


def other_truth(truth: Truth) -> dict[str, Truth]:
    return {
        "not a number": dataclasses.replace(truth, inputs=torch.full_like(truth.inputs, torch.nan)),
        "other labels": dataclasses.replace(truth, labels=(truth.labels + 1) % 10),
    }


@pytest.mark.parametrize("defense", ["dgp", pytest.param("ats", marks=pytest.mark.slow)])
def test_a_poisoned_truth_changes_no_reconstruction(tmp_path, defense):
    logging.getLogger("flwr").setLevel(logging.ERROR)
    (sighting,), parts, text = sightings_of(f"defense={defense}")

    def attacked(truth, folder: str) -> list[Tensor]:
        made: list[Tensor] = []
        opened = [False]
        attacker, model = attack_parts(text, parts.spec)

        def score(result, _, **more):
            made.append(result.images)
            return {}

        def aligned(result, _):
            return result.images

        shown = Poison(truth, opened) if folder == "poison" else truth

        def opening(attack):
            # the truth may be looked at only after the attack has ended
            def run(observation, **more):
                opened[0] = False
                result = attack(observation, **more)
                opened[0] = True
                return result

            return run

        forms = {form: opening(attack) for form, attack in attacker.forms.items()}
        attacker = dataclasses.replace(attacker, forms=forms, score=score, aligned=aligned)
        seen = dataclasses.replace(sighting, truth=shown)
        results = Results(tmp_path / folder, parts.config, {"parameters": 1, "buffers": 0})
        attack_sightings([seen], attacker, model, parts.public, results)
        return made

    expected = attacked(sighting.truth, "true")
    assert len(expected) >= 3
    for folder, truth in {"poison": sighting.truth, **other_truth(sighting.truth)}.items():
        for ours, theirs in zip(attacked(truth, folder), expected, strict=True):
            assert torch.equal(ours, theirs)


def test_granted_labels_are_the_only_way_from_the_truth_to_the_attacker():
    logging.getLogger("flwr").setLevel(logging.ERROR)
    (sighting,), parts, _ = sightings_of("defense=dgp")
    closed = dataclasses.replace(sighting, truth=Poison(sighting.truth, [False]))
    observe(closed, parts.model, parts.public, grant_labels=False)
    with pytest.raises(AssertionError, match="truth's labels"):
        observe(closed, parts.model, parts.public, grant_labels=True)


def test_the_protocol_of_attacks_takes_an_observation_and_a_listener():
    parameters = inspect.signature(attacks.base.Attack.__call__).parameters
    assert list(parameters) == ["self", "obs", "on_step"]
    assert typing.get_type_hints(attacks.base.Attack.__call__)["obs"] is Observation
