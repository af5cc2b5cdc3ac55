"""Bounds on reconstructions in whole runs: attacks on noisy updates keep them, missing noise is found out."""

import importlib
import json
import logging
import math
from types import SimpleNamespace

import pytest
import torch
from parsed_page import ParsedPage

from fl_app.adversary.passive import SUM
from fl_app.cli.new_attack import attack_again
from fl_app.client_app import app
from fl_app.data import Samples
from fl_app.flower import InlineGrid
from fl_app.privacy import Release, client_noise
from fl_app.privacy.reconstruction import Exposure, reconstruction_bound
from fl_app.results import Attack, Recovery, load_run
from fl_app.running.bounds import bound_attack, describe_recovery, exceeded_notes
from fl_app.running.federation import run_federation
from fl_app.strategies.charges import Charges

ONE_IMAGE = (
    "data=random data.classes=10 data.shape=[3,8,8] data.train=80 data.test=300 model=mlp model.hidden=[16] "
    "clients=4 batch_size=4 rounds=2 lr=0.1 threads=1 attack=first_linear attack.rounds=[1] "
    "attack.clients=[0,1,2] audit.batch_size=1"
)
CLIENT = "defense=fl_std dp=client dp.secure=false dp.epsilon=null training.steps=1"
RECORD = "defense=dp_sgd"
NOISE = {CLIENT: "dp.noise_multiplier", RECORD: "defense.noise_multiplier"}


@pytest.fixture(autouse=True)
def _quick(quick_charts):
    logging.getLogger("flwr").setLevel(logging.ERROR)


def finished(folder, overrides):
    text = f"{ONE_IMAGE} {overrides} run_dir={folder}"
    run_federation(InlineGrid(app, 4, run_config={"overrides": text}), text)
    return load_run(folder)


def sent(run):
    return [attack for attack in run.attacks if attack.update != "undefended"]


@pytest.mark.parametrize("level", [CLIENT, RECORD], ids=["client", "record"])
def test_attacks_on_noisy_updates_find_no_more_than_their_bound(level, tmp_path):
    strong = finished(tmp_path / "strong", f"{level} {NOISE[level]}=8")
    weak = finished(tmp_path / "weak", f"{level} {NOISE[level]}=1e-6")
    for run in (strong, weak):
        assert len(sent(run)) == 3
        assert all(one.found <= one.bound for one in sent(run))
        assert all(one.bound is None for one in run.attacks if one.update == "undefended")
        assert ParsedPage(run.report).values["reconstruction-bound"] == "kept"
    assert all(one.bound_prior <= one.bound < 0.2 for one in sent(strong))
    assert all(one.found == one.bound == 1 for one in sent(weak))


def test_the_bound_of_a_server_that_sees_vectors_is_that_of_one_share_of_the_noise(tmp_path):
    run = finished(tmp_path, f"{CLIENT} dp.noise_multiplier=8 fraction=1")
    # four clients share the noise; two rounds
    prior, mu = run.recovery.prior_of_class, math.sqrt(2) / (8 / math.sqrt(4))
    assert run.recovery.prior == 1 / 300
    assert {one.bound_prior for one in sent(run)} == {prior}
    expected = reconstruction_bound(prior, Exposure(mu**2))
    assert [one.bound for one in sent(run)] == pytest.approx([expected] * 3)
    assert run.recovery.unit == "client"
    assert run.recovery.candidates == 300


def test_the_bound_of_a_record_counts_its_round_in_full_and_others_by_their_rate(tmp_path):
    run = finished(tmp_path, f"{RECORD} defense.noise_multiplier=2 rounds=3")
    (one, *_) = run.recovery.exposed
    rate = 4 / 20  # 80 samples among four clients, batches of four
    assert (one.signal, one.noise_multiplier, one.rate, one.steps) == (0.25, 2, rate, 2)
    expected = reconstruction_bound(run.recovery.prior_of_class, Exposure(0.25, 2, rate, 2))
    assert [attack.bound for attack in sent(run)] == pytest.approx([expected] * 3)
    assert run.recovery.unit == "record"


@pytest.mark.parametrize("level", [CLIENT, RECORD], ids=["client", "record"])
def test_noise_that_is_accounted_for_but_left_out_is_found_out(level, tmp_path, monkeypatch):
    real = client_noise.clip_and_share
    monkeypatch.setattr(
        client_noise, "clip_and_share", lambda values, **given: real(values, **given | {"multiplier": 0.0})
    )
    records = importlib.import_module("fl_app.defenses.dp_sgd")
    monkeypatch.setattr(records, "with_gaussian", lambda total, std, generator: total)
    run = finished(tmp_path, f"{level} {NOISE[level]}=8")
    assert all(one.exceeds_bound for one in sent(run))
    assert set(exceeded_notes(run.attacks)) <= set(run.notes)
    assert len(exceeded_notes(run.attacks)) == 3
    attack_again(tmp_path, ["attack=first_linear"])
    assert load_run(tmp_path).notes == run.notes
    page = ParsedPage(run.report)
    assert page.values["reconstruction-bound"] == "exceeded"
    assert sum(span.get("data-bound") == "exceeded" for span in page.named("span")) == 3


def test_an_attack_on_labels_has_no_bound_and_says_so(tmp_path):
    run = finished(tmp_path, f"{RECORD} attack=bias_labels")
    assert all(one.bound is None and one.bound_note for one in sent(run))
    assert ParsedPage(run.report).values["reconstruction-bound"] == "none"


def test_a_run_without_noise_has_no_facts_of_bounds(tmp_path):
    finished(tmp_path, "defense=none")
    result = json.loads((tmp_path / "result.json").read_text())
    assert "recovery" not in result
    assert not {"found", "bound", "bound_note"} & set().union(*result["attacks"])
    page = ParsedPage(tmp_path / "report.html")
    assert "reconstruction-bound" not in page.values
    assert "protection-level" not in page.values


def test_a_run_that_is_attacked_again_has_the_same_bound(tmp_path):
    before = sent(finished(tmp_path, f"{RECORD} defense.noise_multiplier=2"))
    attack_again(tmp_path, ["attack=first_linear"])
    after = sent(load_run(tmp_path))
    assert [one.bound for one in after] == [one.bound for one in before]


def seen(client, participant=None):
    """A sighting, as far as bounds look at it."""
    return SimpleNamespace(
        order=SimpleNamespace(client=client), answer=SimpleNamespace(steps=0), participant=participant
    )


def recovery(**facts):
    return Recovery(
        **{
            "unit": "client",
            "mse_below": 0.001,
            "candidates": 100,
            "prior": 0.01,
            "prior_of_class": 0.1,
            "exposed": [{"client": 2, "signal": 1.0}],
        }
        | facts
    )


def bound(facts, client=2, errors=(0.5,), guesses=1, granted=False, mse_below=0.001):
    return bound_attack(
        facts, seen(client), list(errors), guesses=guesses, granted=granted, mse_below=mse_below
    )


def test_every_guess_and_a_known_class_raise_the_prior():
    assert bound(recovery())["bound_prior"] == 0.01
    assert bound(recovery(), guesses=7)["bound_prior"] == pytest.approx(0.07)
    assert bound(recovery(), granted=True)["bound_prior"] == 0.1
    assert bound(recovery(), guesses=1000)["bound"] == 1


def test_images_without_a_counterpart_count_as_not_found():
    assert bound(recovery(), errors=(0.0005, None, 0.001, 0.2))["found"] == 0.25


@pytest.mark.parametrize(
    "case",
    [
        {"facts": recovery(prior=None, prior_of_class=None)},
        {"facts": recovery(), "guesses": 0},
        {"facts": recovery(), "mse_below": 0.01},
        {"facts": recovery(), "client": 3},
    ],
    ids=["no images", "no guesses", "another criterion", "another client"],
)
def test_where_a_bound_would_be_wrong_there_is_none(case):
    assert bound(**case).keys() == {"bound_note"}


def test_only_more_than_the_bound_is_noted():
    rows = [Attack(found=found, bound=0.25, round=1, client=0) for found in (0.0, 0.25, 0.5)]
    assert [one.exceeds_bound for one in rows] == [False, False, True]
    assert len(exceeded_notes(rows)) == 1


def test_samples_that_are_no_images_have_no_prior():
    strategy = SimpleNamespace(charges=Charges(), privacy=None)
    strategy.charges.charge([0, 1], {0: Release(0.5, 2.0, 3, 1e-5), 1: Release(0.25, 4.0, 1, 1e-5)})
    rows = Samples(torch.rand(4, 2), torch.zeros(4, dtype=torch.int64))
    facts = describe_recovery(strategy, [seen(SUM, participant=1)], rows, 0.001)
    assert (facts.candidates, facts.prior) == (None, None)
    (one,) = facts.exposed
    assert (one.client, one.participant, one.signal, one.rate, one.steps) == (SUM, 1, 0.25, 0.5, 3)
