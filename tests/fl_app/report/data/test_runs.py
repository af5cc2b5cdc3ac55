from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_folders import read_result, with_two_classes, with_validation

from fl_app.report import find_runs
from fl_app.results import load_run


def put(folder: Path, content: str | bytes = "{}") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def test_finds_runs_at_any_depth_each_once_and_in_the_order_a_person_counts(tmp_path):
    ten, two, deep = put(tmp_path / "10"), put(tmp_path / "2"), put(tmp_path / "2/again/deep")
    assert find_runs([tmp_path, ten]) == [two, deep, ten]
    assert find_runs([ten, tmp_path]) == [ten, two, deep]


def test_takes_the_result_file_itself_for_its_folder(tmp_path):
    run = put(tmp_path / "run")
    assert find_runs([run / "result.json"]) == [run]


def test_a_run_that_lies_directly_in_the_path_is_found(tmp_path):
    assert find_runs([put(tmp_path)]) == [tmp_path]


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_names_the_path_that_leads_to_no_run(tmp_path, name):
    put(tmp_path / "good")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=name):
        find_runs([tmp_path / "good", tmp_path / name])


@pytest.mark.parametrize("content", ["{", "", b"\xff\xfe{}", "[1, 2]", "3"])
def test_names_the_result_that_is_not_a_json_object(tmp_path, content):
    put(tmp_path / "good")
    put(tmp_path / "broken", content)
    with pytest.raises(ValueError, match=r"broken.result\.json"):
        find_runs([tmp_path])


def test_counts_rounds_where_the_summary_is_missing(make_run):
    folder = make_run(change=lambda result: result.pop("summary"))
    rounds = read_result(folder)["rounds"]
    run = load_run(folder)
    assert run.totals.accuracy == rounds[-1]["accuracy"]
    assert run.totals.best_accuracy == max(r["accuracy"] for r in rounds)
    assert run.totals.uplink_bytes == sum(r["uplink_bytes"] for r in rounds)
    assert run.totals.downlink_bytes == sum(r["downlink_bytes"] for r in rounds)
    assert run.totals.seconds == sum(r["seconds"] for r in rounds)
    # four bytes a number, both directions, ten clients in each of twelve rounds
    assert run.totals.dense_bytes == 4 * 15826 * 2 * 10 * 12


@pytest.mark.parametrize("complete", [True, False])
def test_the_best_round_is_told_with_what_chose_it(make_run, complete):
    def validated(result):
        with_validation(result)
        if not complete:
            del result["summary"]

    run = load_run(make_run("validated", change=validated))
    accuracies = [row["accuracy"] for row in read_result(run.folder)["rounds"]]
    assert (run.totals.best_accuracy, run.totals.best_round, run.totals.best_chosen_by) == (
        accuracies[1],
        2,
        "validation",
    )
    assert run.totals.best_accuracy < max(accuracies)

    def plain(result):
        # two rounds are equally good: the first one counts
        result["rounds"][4]["accuracy"] = result["rounds"][7]["accuracy"] = 0.99
        result["summary"]["best_accuracy"] = 0.99
        if not complete:
            del result["summary"]

    run = load_run(make_run("plain", change=plain))
    assert (run.totals.best_accuracy, run.totals.best_round, run.totals.best_chosen_by) == (0.99, 5, "test")


def test_scores_of_two_classes_are_those_of_the_last_evaluation(make_run):
    def change(result):
        with_two_classes(result)
        del result["summary"]
        # the last round was not evaluated, and the one before has diverged
        result["rounds"][-1].update(accuracy=None, balanced_accuracy=None, auroc=None)
        result["rounds"][-2].update(balanced_accuracy=0.5, auroc=None)

    run = load_run(make_run(change=change))
    assert (run.two_classes, run.totals.balanced_accuracy, run.totals.auroc) == (True, 0.5, None)
    assert not load_run(make_run("other")).two_classes


def test_buffers_belong_to_a_dense_exchange(make_run):
    def change(result):
        del result["summary"]
        result["model"]["buffers"] = 100

    assert load_run(make_run(change=change)).totals.dense_bytes == 4 * (15826 + 100) * 2 * 10 * 12


def test_the_summary_is_believed_where_it_is_there(make_run):
    folder = make_run(
        change=lambda result: result["summary"].update(uplink_bytes=7, dense_bytes=11, accuracy=0.5)
    )
    run = load_run(folder)
    assert (run.totals.uplink_bytes, run.totals.dense_bytes, run.totals.accuracy) == (7, 11, 0.5)


def test_the_last_known_accuracy_counts_when_the_last_round_was_not_evaluated(make_run):
    def change(result):
        del result["summary"]
        result["rounds"][-1]["accuracy"] = None

    folder = make_run(change=change)
    assert load_run(folder).totals.accuracy == read_result(folder)["rounds"][-2]["accuracy"]


@pytest.mark.parametrize(
    "path", ["../outside.png", "/etc/hostname", "attacks/../../outside.png", "", 3, None]
)
def test_pictures_outside_the_run_folder_are_not_taken(make_run, path):
    folder = make_run(change=lambda result: result["attacks"][0].update(images=path))
    assert load_run(folder).attacks[0].file("images") is None


@pytest.mark.parametrize(
    ("choices", "label"),
    [
        ({"defense": "dgp"}, "dgp"),
        ({"defense": "none", "dp": "none", "secagg": "off"}, "none"),
        ({"defense": "none", "dp": "client", "secagg": "on"}, "dp=client + secagg=on"),
        ({"defense": "fl_top", "dp": "client"}, "fl_top + dp=client"),
        ({}, "unknown"),
    ],
)
def test_the_label_of_a_defense_names_everything_that_protects(tmp_path, choices, label):
    run = put(tmp_path, json.dumps({"config": {"choices": choices}}))
    assert load_run(run).defense == label
