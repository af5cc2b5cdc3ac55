"""A setting is searched at every place with the same effort, and the study's cells take what was found."""

from __future__ import annotations

import shlex

import pytest
from federations import SMALL
from study_cells import SKELETON, failed, finished

from fl_app.config.compose import ConfigError
from fl_app.experiments.studies import StudyOrder, plan_cells, read_study, run_study
from fl_app.experiments.studies.search import plan_trials, settle

SEARCH = {"key": "lr", "values": [0.1, 0.2], "by": {"metric": "validation_accuracy", "round": "best"}}
PARTS = {"ig": {"sweep": {"defense": ["none", "dgp"], "seed": [3, 4]}, "search": SEARCH}}


def planned(*more, **part):
    raw = {**SKELETON, "parts": {"ig": {**PARTS["ig"], **part}}}
    return plan_cells(read_study("own", raw), more)


def scored(trials, scores):
    rows = [[{"round": 1, "validation_accuracy": score}] for score in scores]
    for trial in trials:  # not composed: there is no such experiment
        trial.__dict__["config"] = {"choices": {}, "seed": 3}
    return [
        failed(trial, "failed: no data")
        if row[0]["validation_accuracy"] is None
        else finished(trial, rounds=row, best_round=1)
        for trial, row in zip(trials, rows, strict=True)
    ]


def rates(cells):
    return [[o for o in cell.overrides if o.startswith("lr=")] for cell in cells]


def test_every_place_has_one_run_for_each_value_at_the_first_seed():
    trials = plan_trials(planned())
    assert [trial.at for trial in trials] == [
        {"defense": defense, "seed": "3", "lr": lr} for defense in ("none", "dgp") for lr in ("0.1", "0.2")
    ]
    assert rates(trials) == [["lr=0.1"], ["lr=0.2"]] * 2


def test_all_seeds_of_a_place_take_the_value_with_the_highest_score_and_the_first_of_equals():
    cells = planned()
    settled, (words,) = settle(cells, scored(plan_trials(cells), [0.5, 0.6, 0.7, 0.7]))
    assert rates(settled) == [["lr=0.2"], ["lr=0.2"], ["lr=0.1"], ["lr=0.1"]]
    assert [cell.at for cell in settled] == [cell.at for cell in cells]
    assert "none: 0.2" in words
    assert "dgp: 0.1" in words


def test_what_is_found_replaces_the_value_of_a_place():
    cells = planned(sweep={"defense": {"dgp": ["defense=dgp", "lr=9"]}, "seed": [3]})
    settled, _ = settle(cells, scored(plan_trials(cells), [0.5, 0.6]))
    assert rates(settled) == [["lr=0.2"]]


def test_a_trial_without_a_result_ends_the_study():
    cells = planned()
    with pytest.raises(RuntimeError, match="no data"):
        settle(cells, scored(plan_trials(cells), [0.5, 0.6, None, 0.7]))


@pytest.mark.parametrize("override", ["lr=0.3", "ig:lr=0.3", "lr=0.3,0.4"])
def test_a_value_of_the_command_is_not_searched_for(override):
    cells = planned(override)
    assert plan_trials(cells) == []
    assert ["lr=0.3"] in rates(cells)


def test_a_scale_may_have_a_search_of_its_own():
    raw = {**SKELETON, "parts": {"ig": {"sweep": {"seed": [0]}, "scale": {"cpu": {"search": SEARCH}}}}}
    trials = {scale: plan_trials(plan_cells(read_study("own", raw, scale))) for scale in ("cpu", "paper")}
    assert [len(found) for found in trials.values()] == [2, 0]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"values": []}, "values: expected at least one"),
        ({"by": {"metric": "ssim"}}, "one number a run"),
        ({"by": {}}, "names no metric"),
        ({"seeds": 3}, "unknown key 'seeds'"),
    ],
)
def test_a_wrong_search_is_refused(wrong, words):
    with pytest.raises(ConfigError, match=words):
        planned(search={**SEARCH, **wrong})


def test_a_study_runs_its_search_and_then_its_cells(tmp_path):
    raw = {
        **SKELETON,
        "scale": {"cpu": [*shlex.split(SMALL), "validation=0.5", "defense=none"]},
        "parts": {"a": {"sweep": {"seed": [0]}, "search": {**SEARCH, "values": [0.0001, 0.1]}}},
        "claims": [{"name": "x", "text": "x", "at_least": 0, "of": {"metric": "accuracy"}}],
    }
    lines = []
    end = run_study(StudyOrder(name="quick", raw=raw, command="fl-app -m", root=tmp_path), lines.append)
    assert len(lines) == 3
    assert "skipped" in lines[2]  # the best trial is the cell
    (cell,) = end.found.cells
    best = max(
        load["rounds"][-1]["validation_accuracy"]
        for load in map(_read, (tmp_path / "cells").glob("*/result.json"))
    )
    assert cell.run.rounds[-1].validation_accuracy == best
    assert any(note.startswith("lr by search") for note in end.found.study.notes)


def _read(path):
    import json

    return json.loads(path.read_text())
