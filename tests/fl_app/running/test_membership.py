"""Membership audits of whole runs: who plays, what is revealed, and what each observer is given."""

import logging

import pytest
import torch
from federations import SMALL

from fl_app.client_app import app
from fl_app.config.build import client_parts
from fl_app.config.compose import ConfigError, compose
from fl_app.config.trust import WHOLE
from fl_app.flower import InlineGrid
from fl_app.results import MemberPoint, Membership, Statistic, load_run
from fl_app.running.attack import NotAttacked
from fl_app.running.federation import run_federation
from fl_app.running.membership import Promise, with_bound
from fl_app.running.shadows import draw_halves

GAME = "attack=membership attack.candidates=16 attack.shadows=0 clients=2 batch_size=8 data.test_per_class=2"


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


def run(folder, overrides, consent=True):
    text = f"{SMALL} {GAME} {overrides} run_dir={folder}"
    grid = InlineGrid(app, 2, run_config={"overrides": text}, node_config={"allow-audit": consent})
    run_federation(grid, text, WHOLE, client_app=app)
    return load_run(folder)


def test_strangers_are_left_out_and_members_are_trained_on():
    parts = client_parts(f"{SMALL} {GAME}")
    whole = parts.data_of(0, 2).samples
    candidates, members, kept = parts.game.deal(0, whole)
    assert len(candidates) == len(members) == 16
    assert 0 < int(members.sum()) < 16
    assert len(kept) == len(whole) - int((~members).sum())
    rows = {tuple(row.flatten().tolist()) for row in kept.inputs}
    assert [tuple(row.flatten().tolist()) in rows for row in candidates.inputs] == members.tolist()
    assert not parts.game.plays(1)


@pytest.mark.parametrize("defense", ["none", "dgp"])
def test_a_server_scores_its_candidates_in_every_form(tmp_path, defense):
    found = run(tmp_path, f"defense={defense} attack.shadows=2")
    assert [row.adaptive for row in found.membership] == ([False] if defense == "none" else [False, True])
    for row in found.membership:
        assert row.gave_up is None
        assert (row.clients, row.rounds, row.shadows) == ([0], [1, 2], 2)
        assert row.members + row.strangers == 16 == len(row.truth)
        assert {"loss", "alignment", "decomposition", "lira", "rmia"} <= set(row.statistics)
        assert all(len(one.scores) == 16 for one in row.statistics.values())
        assert row.best in row.statistics
    page = (tmp_path / "report.html").read_text()
    assert page.count('data-fact="membership"') == len(found.membership)
    assert 'data-fact="identifies"' in page


def test_a_participant_reads_models_and_a_holder_of_the_last_one_that_alone(tmp_path):
    (row,) = run(tmp_path / "p", "defense=none rounds=3 attack.viewpoint=participant").membership
    assert (row.participant, row.clients, row.rounds) == (0, [1], [1, 2])
    (row,) = run(tmp_path / "f", "defense=none attack.viewpoint=final").membership
    assert (row.rounds, set(row.statistics)) == ([], {"loss"})


def test_an_active_server_waits_for_the_candidates_and_leaves_their_client_out(tmp_path):
    found = run(tmp_path, "defense=none rounds=3 attack.active=true")
    assert [row.attacked for row in found.rounds] == [[], [0], [0]]
    (row,) = found.membership
    assert row.active
    assert row.rounds == [1, 2, 3]


def test_without_consent_nothing_is_left_out_and_the_run_says_that_it_measured_nothing(tmp_path):
    with pytest.raises(NotAttacked, match="candidates"):
        run(tmp_path, "defense=none", consent=False)
    played = run(tmp_path / "consent", "defense=none")
    refused = load_run(tmp_path)
    assert refused.membership is None
    assert refused.rounds[0].train_loss != played.rounds[0].train_loss


def test_the_promise_of_dp_stands_beside_the_points(tmp_path):
    found = run(tmp_path, "defense=dp_sgd defense.noise_multiplier=2 model=mlp attack.candidates=40")
    row = found.membership[0]
    assert row.epsilon == pytest.approx(found.summary.epsilon)
    points = [p for one in row.statistics.values() for p in one.points if p.tpr is not None]
    assert points
    for point in points:
        assert point.bound >= min(1.0, point.fpr)
        assert point.exceeds is False


def test_a_point_above_the_promise_is_named():
    point = MemberPoint(rate=0.1, tpr=0.9, fpr=0.1, hits=90, alarms=10)
    row = Membership(
        viewpoint="server",
        reporting_members=100,
        reporting_strangers=100,
        statistics={"loss": Statistic(auc=0.9, auc_low=0.8, auc_high=1.0, points=[point])},
    )
    assert with_bound(row, Promise(1.0, 1e-5)).exceeds_bound
    assert not with_bound(row, Promise(3.0, 1e-5)).exceeds_bound


def test_halves_of_shadows_are_complements():
    halves = draw_halves(9, 4, seed=1)
    assert [int(half.sum()) for half in halves] == [4, 5, 4, 5]
    assert torch.equal(halves[0], ~halves[1])
    assert not torch.equal(halves[0], halves[2])


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ("attack.viewpoint=elsewhere", "viewpoint"),
        ("attack.active=true attack.viewpoint=final", "active"),
        ("attack.active=true rounds=1", "active"),
        ("attack.candidates=many", "candidates"),
        ("attack.viewpoint=participant defense=fl_top", "viewpoint"),
    ],
)
def test_questions_that_cannot_be_asked_are_refused_before_the_run(overrides, key):
    with pytest.raises(ConfigError, match=key):
        compose(f"attack=membership {overrides}")
