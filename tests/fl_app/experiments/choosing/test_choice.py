"""The choice of a defense: limits with error bars, ties, weak attacks, and the whole command."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path

import pytest
from run_folders import write_run
from scipy import stats

from fl_app.cli import choose as command
from fl_app.config.compose import compose, join_overrides
from fl_app.experiments.choosing.candidates import candidates
from fl_app.experiments.choosing.evidence import Evidence, Measure, gather
from fl_app.experiments.choosing.trial import Trial
from fl_app.experiments.choosing.verdicts import Limits, choose
from fl_app.results import load_run


def found(leak, half=0.02, *, loss=0.0, loss_half=0.5, sent=100e3, epsilon=None):
    return Evidence(3, Measure(leak, half, 12), Measure(loss, loss_half, 3), sent, epsilon)


NONE = found(0.8, sent=600e3, loss_half=0.0)


def test_the_least_leak_within_all_limits_wins_and_the_others_have_reasons():
    choice = choose(
        {"none": NONE, "dgp": found(0.25), "sign": found(0.1, loss=9.0)}, Limits(leak=0.3, loss=2)
    )
    assert choice.best == "dgp"
    assert set(choice.lost) == {"none", "sign"}


@pytest.mark.parametrize(("half", "best"), [(0.02, "dgp"), (0.1, None)])
def test_a_limit_is_kept_only_if_the_whole_interval_keeps_it(half, best):
    assert choose({"none": NONE, "dgp": found(0.25, half)}, Limits(leak=0.3)).best == best


def test_of_candidates_that_chance_cannot_tell_apart_the_one_with_fewest_bytes_wins():
    evidence = {
        "none": NONE,
        "a": found(0.20, 0.05, sent=300e3),
        "b": found(0.22, 0.05, sent=100e3),
        "c": found(0.29, 0.005, sent=1e3),
    }
    choice = choose(evidence, Limits(leak=0.3))
    assert (choice.best, choice.tied) == ("b", ("a",))
    assert "c" in choice.lost


@pytest.mark.parametrize(
    "limits", [Limits(bytes=50e3), Limits(epsilon=1.0), Limits(leak=0.1), Limits(loss=-1.0)]
)
def test_nothing_is_recommended_if_no_candidate_keeps_every_limit(limits):
    choice = choose({"none": NONE, "dgp": found(0.2, epsilon=2.0)}, limits)
    assert choice.best is None
    assert not choice.weak
    assert set(choice.lost) == {"none", "dgp"}


def test_a_low_leak_proves_nothing_under_an_attack_that_fails_without_a_defense():
    choice = choose({"none": found(0.2), "dgp": found(0.1)}, Limits())
    assert choice.weak
    assert choice.best is None


def test_evidence_agrees_with_students_interval_over_pictures(tmp_path):
    def runs(defense):
        paths = [write_run(tmp_path / f"{defense}{s}", defense=defense, seed=s, rounds=2) for s in range(3)]
        return {seed: load_run(path) for seed, path in enumerate(paths)}

    bare, defended = runs("none"), runs("dgp")
    evidence = gather(defended, bare)
    scores = [s for run in defended.values() for a in run.attacks if a.update == "defended" for s in a.ssim]
    low, high = stats.t.interval(0.95, len(scores) - 1, statistics.mean(scores), stats.sem(scores))
    assert (evidence.leak.low, evidence.leak.high) == pytest.approx((low, high))
    assert gather(bare, bare).loss == Measure(0.0, 0.0, 3)


def test_one_seed_without_a_known_number_of_test_samples_bounds_no_loss(tmp_path):
    bare = {0: load_run(write_run(tmp_path / "a", defense="none", rounds=2))}
    other = {0: load_run(write_run(tmp_path / "b", rounds=2))}
    assert math.isinf(gather(other, bare).loss.half)


@pytest.mark.parametrize("candidate", candidates(epsilon=8.0), ids=lambda one: one.name)
def test_every_candidate_composes(candidate):
    assert compose(join_overrides([*candidate.overrides])).choices.defense == candidate.overrides[0][8:]


def test_the_command_tries_resumes_and_writes_its_words(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["data=album", "data.train_per_class=4", "data.test_per_class=2", "clients=2", "rounds=2"]
    words += ["attack.steps=2", "seeds=1", "defenses=int8", "max_loss=100", "audit.lpips=alex"]
    with pytest.raises(SystemExit) as ended:
        command.main(words)
    assert ended.value.code == command.NOTHING_HOLDS
    content = json.loads((tmp_path / "multirun/choose/choice.json").read_text())
    assert content["recommended"] is None
    assert content["weak_attack"]
    results = sorted((tmp_path / "multirun/choose/cells").glob("*/result.json"))
    before = [path.stat().st_mtime_ns for path in results]
    assert len(results) == 2
    with pytest.raises(SystemExit):
        command.main(words)
    assert [path.stat().st_mtime_ns for path in results] == before


def test_a_misspelt_limit_is_named():
    with pytest.raises(ValueError, match="did you mean max_leak"):
        command.main(["maxleak=0.1"])


def test_time_that_runs_out_is_no_verdict_on_what_was_not_tried():
    evidence = {"none": found(0.8), "dgp": found(0.2)}
    own = ["data=album", "rounds=7", "attack.steps=9"]
    trial = Trial(candidates(), own, seeds=2, minutes=1.0, root=Path())

    def words(untried):
        limits = Limits(leak=0.1, epsilon=3.0)
        choice = choose(evidence, limits)
        return command.recommendation(trial, choice, choice.lost, evidence, limits, untried)

    early, late = words(["int8", "sign"]), words([])
    assert "int8, sign" in early[0]
    assert not any("secagg=on" in line for line in early)
    fallback = next(line for line in late if "secagg=on" in line)
    assert all(word in fallback for word in ("data=album", "rounds=7", "dp.epsilon=3"))
    assert "attack" not in fallback


@pytest.mark.parametrize(
    "words",
    [
        ["max_leak=a"],
        ["seeds=0"],
        ["max_bytes=3furlongs"],
        ["defense=dgp"],
        ["defenses=dpg"],
        ["seed=0,1"],
        ["epsilon=0"],
    ],
)
def test_a_wrong_word_is_refused_before_anything_runs(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=words[0].partition("=")[0]):
        command.main(words)
    assert not list(tmp_path.iterdir())
