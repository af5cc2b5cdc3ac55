"""Earlier rounds of a client, whether it has other samples, and its public rewritings reach the attacker."""

import json
import logging

import pytest
import torch
from federations import SMALL

from attacks.base import Reconstruction
from fl_app.adversary.passive import PassiveServer, observe
from fl_app.adversary.sightings import FOLDER, load_sightings
from fl_app.cli.new_attack import attack_again
from fl_app.client_app import app
from fl_app.config.build import attacked_rounds, server_parts
from fl_app.config.compose import ConfigError, compose
from fl_app.defenses import ats, protect
from fl_app.defenses.ats import public_rewrites
from fl_app.flower import InlineGrid
from fl_app.flower.held_tensor import hold
from fl_app.flower.tapped import TappedGrid
from fl_app.running import attack as leakage
from fl_app.running.federation import run_federation
from fl_app.types import Trace


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


@pytest.fixture
def seen(monkeypatch) -> list:
    """What attackers are shown, one entry per case, instead of an attack."""
    shown: list = []

    def remember(attacker, cases, observations):
        shown.extend(zip(cases, observations, strict=True))
        return [Reconstruction(torch.zeros(1, 3, 32, 32), objective=0.0) for _ in observations]

    monkeypatch.setattr(leakage, "_run", remember)
    return shown


def run(folder, overrides: str) -> None:
    text = (
        f"{SMALL} attack=ig rounds=3 attack.clients=[1,3] attack.rounds=[3,1,2] {overrides} run_dir={folder}"
    )
    run_federation(InlineGrid(app, 5, run_config={"overrides": text}), text)


def told(observation) -> list[tuple]:
    return [(o.round, [t.tolist() for t in o.update.values()]) for o in observation.history]


def test_the_history_is_what_was_sent_in_earlier_rounds_by_the_same_client(tmp_path, seen):
    run(tmp_path, "defense=dgp")
    sightings = {(s.order.client, s.order.round): s for s in load_sightings(tmp_path)[0]}
    assert len(seen) == 3 * 2 * 3, "rounds, clients; plain, adaptive, undefended"
    for case, observation in seen:
        if case.undefended:
            assert observation.history == ()
            continue
        assert [past.round for past in observation.history] == list(range(1, observation.round))
        for past in observation.history:
            expected = sightings[case.sighting.order.client, past.round]
            assert past.history == ()
            assert past.defense == observation.defense
            torch.testing.assert_close(past.update, expected.update, rtol=0, atol=0)
            own = {name: p.detach() for name, p in past.model.named_parameters()}
            torch.testing.assert_close(own, expected.weights, rtol=0, atol=0)
            assert all(torch.equal(mask, past.update[name] != 0) for name, mask in past.sent.items())


def test_a_finished_run_has_the_same_history_when_it_is_attacked_again(tmp_path, seen):
    run(tmp_path, "defense=dgp audit.batch_size=null batch_size=32")
    live = [(told(o), o.same_batch) for _, o in seen]
    seen.clear()
    attack_again(tmp_path, ["attack=ig"])
    assert [(told(o), o.same_batch) for _, o in seen] == live
    assert any(history for history, _ in live)
    assert all(same for _, same in live)


def watched(overrides: str, asked: int | None, *, allow: bool = True) -> tuple[list, list]:
    """Return observations and sightings of one client in two rounds; it has 16 samples."""
    text = f"{SMALL} {overrides}"
    parts = server_parts(text)
    strategy = parts.strategy
    auditor = PassiveServer(
        rounds="all",
        clients=[2],
        model=lambda: (strategy.weights, strategy.buffers),
        read=strategy.see,
        public=parts.public,
        batch_size=asked,
    )
    grid = InlineGrid(app, 5, run_config={"overrides": text}, node_config={"allow-audit": allow})
    strategy.start(
        grid=TappedGrid(grid, auditor), initial_arrays=hold(parts.model.state_dict()), num_rounds=2
    )
    shown = [observe(s, parts.model, parts.public, grant_labels=False) for s in auditor.sightings]
    assert len(shown) == 2
    return shown, auditor.sightings


def pictures(sighting) -> list:
    return sorted(picture.flatten().tolist() for picture in sighting.truth.inputs)


@pytest.mark.parametrize(
    ("overrides", "asked", "expected"),
    [
        ("batch_size=32", None, True),  # 16 of 32
        ("batch_size=32", 20, True),  # 16 of 20
        ("batch_size=32", 16, None),  # as many as were asked for: there might be more
        ("batch_size=32", 1, None),
        ("batch_size=4", None, None),
        ("batch_size=4", 20, None),  # all of them once, but a round starts in the middle of a pass
        ("batch_size=32 strategy=fed_avg", None, True),
        ("batch_size=32 strategy=fed_avg", 20, True),
        ("batch_size=32 strategy=fed_avg", 2, None),
        ("batch_size=4 strategy=fed_avg", None, None),  # the same samples, but in other batches
    ],
)
def test_a_client_that_gives_fewer_samples_than_asked_has_no_others(overrides, asked, expected):
    shown, sightings = watched(f"defense=none {overrides}", asked)
    assert [observation.same_batch for observation in shown] == [expected, expected]
    if expected:
        assert pictures(sightings[0]) == pictures(sightings[1])


def test_an_audit_that_shrinks_the_batch_takes_other_samples_in_other_rounds():
    _, sightings = watched("defense=none batch_size=4", 1)
    assert pictures(sightings[0]) != pictures(sightings[1])


def test_a_client_that_refuses_audits_was_asked_for_nothing():
    shown, sightings = watched("defense=none batch_size=32", 1, allow=False)
    assert [s.asked for s in sightings] == [0, 0]
    assert [observation.same_batch for observation in shown] == [True, True]


def test_of_runs_that_did_not_keep_what_was_asked_nothing_is_claimed(tmp_path, seen):
    run(tmp_path, "defense=none audit.batch_size=null batch_size=32")
    sightings, _, public = load_sightings(tmp_path)
    old = [vars(s) | {"asked": None} for s in sightings]
    template = seen[0][1].model
    for facts in old:
        sighting = type(sightings[0])(**facts)
        assert observe(sighting, template, public, grant_labels=False).same_batch is None


def test_rewritings_are_those_of_the_policies_in_the_traces():
    images = torch.rand(2, 3, 8, 8)
    first, second = public_rewrites(protect(a=protect(deep=ats([[47], [1, 24]]))).traces)
    torch.testing.assert_close(first(images), 1 - images)
    assert str(second) == "shear_x -0.15, brightness 0.3"
    with pytest.raises(ValueError, match="ats: a policy must hold numbers of operations"):
        public_rewrites((Trace(policies=((10**6,),)),))


@pytest.mark.parametrize(("defense", "number"), [("ats", 2), ("dgp", 0), ("none", 0)])
def test_the_attacker_knows_rewritings_of_the_sent_update_alone(tmp_path, seen, defense, number):
    run(tmp_path, f"defense={defense} attack.rounds=[1]")
    live = [(case.undefended, len(o.rewrites)) for case, o in seen]
    assert all(count == (0 if undefended else number) for undefended, count in live)
    assert {undefended for undefended, _ in live} == ({False} if defense == "none" else {False, True})
    seen.clear()
    attack_again(tmp_path, ["attack=ig"])
    assert [(case.undefended, len(o.rewrites)) for case, o in seen] == live
    stored = json.loads((tmp_path / FOLDER / "public.json").read_text())["public"]
    assert sum(len(trace["policies"]) for trace in stored["defense"]) == number


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [("all", "all"), ("last", [7]), ([1, "last"], [1, 7]), (["last", 7], [7]), ([3, 1], [1, 3]), ([], [])],
)
def test_last_is_the_final_round(chosen, expected):
    assert attacked_rounds(chosen, 7) == expected


@pytest.mark.parametrize("chosen", ["first", "3", "null", "[0]", "[first]", "[true]", "[1.5]"])
def test_rounds_that_cannot_be_are_refused(chosen):
    with pytest.raises(ConfigError, match=r"attack\.rounds: .*'last'"):
        compose(f"attack.rounds={chosen}")


def test_the_rounds_of_a_run_are_numbers_in_order():
    assert server_parts(f"{SMALL} attack=ig attack.rounds=[last,1] rounds=2").config["attack"]["rounds"] == [
        1,
        2,
    ]
