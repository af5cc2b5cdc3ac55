"""A run that is to be attacked is attacked, or says that it was not."""

import logging

import pytest
from federations import SMALL
from flwr.app import Error, Message

from fl_app.client_app import app
from fl_app.config.compose import ConfigError, compose
from fl_app.config.trust import WHOLE
from fl_app.flower import InlineGrid
from fl_app.results import load_run
from fl_app.running.attack import NotAttacked
from fl_app.running.federation import run_federation
from fl_app.wire.messages import TRAIN, read_order


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


class Losing:
    """A grid on which chosen orders get an error."""

    def __init__(self, grid, lost):
        self._grid, self._lost = grid, lost

    def __getattr__(self, name):
        return getattr(self._grid, name)

    def send_and_receive(self, messages, **more):
        messages = list(messages)
        lost = [m for m in messages if m.metadata.message_type == TRAIN and self._lost(read_order(m))]
        kept = [m for m in messages if m not in lost]
        replies = list(self._grid.send_and_receive(kept, **more)) if kept else []
        return [*replies, *(Message(Error(code=0, reason="lost"), reply_to=m) for m in lost)]


QUICK = "attack=ig attack.steps=2 attack.adaptive=false"


def run(folder, overrides, lost=lambda order: False, attack=QUICK):
    text = f"{SMALL} {attack} defense=none {overrides} run_dir={folder}"
    run_federation(Losing(InlineGrid(app, 5, run_config={"overrides": text}), lost), text, WHOLE)
    return load_run(folder)


@pytest.mark.parametrize(
    ("aim", "key"),
    [
        ("attack.clients=[0,99]", "attack.clients"),
        ("attack.rounds=[5]", "attack.rounds"),
        ("attack.clients=[]", "attack.clients"),
    ],
)
def test_an_aim_outside_of_the_run_is_refused_before_it(aim, key):
    with pytest.raises(ConfigError, match=key):
        compose(f"rounds=2 clients=5 {aim}")
    assert compose(f"rounds=2 clients=5 attack=none {aim}")


def test_a_round_whose_attacked_client_failed_is_made_up_for_in_the_next(tmp_path):
    found = run(tmp_path, "rounds=4", lambda order: order.client == 0 and order.round < 3)
    assert found.status == "finished"
    assert [attack.round for attack in found.attacks] == [3]
    assert any("round 1" in note and "round 3" in note for note in found.notes)


def test_no_more_rounds_are_attacked_than_were_chosen(tmp_path):
    found = run(
        tmp_path, "rounds=5 attack.rounds=[1,2]", lambda order: order.client == 0 and order.round == 1
    )
    assert [attack.round for attack in found.attacks] == [2, 3]


def test_a_client_that_is_drawn_late_is_attacked_then(tmp_path):
    trained = []

    def watch(order):
        trained.append((order.round, order.client))
        return False

    found = run(tmp_path, "rounds=12 fraction=0.2 seed=1", watch)
    first = next(number for number, client in trained if client == 0)
    assert first > 1
    assert [attack.round for attack in found.attacks] == [first]


def test_a_run_that_was_never_attacked_has_failed(tmp_path):
    with pytest.raises(NotAttacked):
        run(tmp_path, "rounds=2", lambda order: order.client == 0)
    found = load_run(tmp_path)
    assert (found.status, len(found.rounds)) == ("failed", 2)


def test_an_attack_that_gave_up_on_every_update_is_a_failure_with_its_reason(tmp_path):
    with pytest.raises(NotAttacked):
        run(tmp_path, "rounds=1", attack="attack=custom attack._target_=own_parts.give_up")
    found = load_run(tmp_path)
    assert found.status == "failed"
    assert {attack.gave_up for attack in found.attacks} == {"a layer that is not there"}
    assert "a layer that is not there" in (found.error or "")
