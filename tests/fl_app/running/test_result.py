"""What result.json says of a run's rounds: every score in its row, and which round was the best."""

import json
import math

import pytest

from fl_app.results import Round
from fl_app.running.result import Results
from fl_app.training import Evaluation


def scored(accuracy, auroc=None):
    return Evaluation(accuracy=accuracy, loss=1.0, balanced_accuracy=accuracy / 2, auroc=auroc)


def results_of(folder, rounds):
    """Write rounds of (test scores, validation scores) and return what stands in the file."""
    results = Results(folder, {}, {"parameters": 1, "buffers": 0})
    for number, (tested, validated) in enumerate(rounds, 1):
        results.add_round(Round.begin(number), tested=tested, validated=validated, seconds=0.1)
    results.finish("finished")
    return json.loads((folder / "result.json").read_text())


def test_a_row_has_every_score_and_null_where_nothing_was_evaluated(tmp_path):
    first, second, third = results_of(
        tmp_path, [(None, None), (scored(0.6, auroc=0.7), scored(0.5)), (scored(0.4), scored(0.1))]
    )["rounds"]
    keys = ("accuracy", "balanced_accuracy", "auroc", "validation_accuracy")
    assert [first[key] for key in keys] == [None] * 4
    assert [second[key] for key in keys] == [0.6, 0.3, 0.7, 0.5]
    assert [third[key] for key in keys] == [0.4, 0.2, None, 0.1]


def test_the_summary_has_the_scores_of_the_last_evaluation(tmp_path):
    rounds = [(scored(0.6, auroc=0.7), None), (scored(0.5, auroc=math.nan), None), (None, None)]
    summary = results_of(tmp_path, rounds)["summary"]
    assert (summary["accuracy"], summary["balanced_accuracy"], summary["auroc"]) == (0.5, 0.25, None)


def test_without_validation_samples_the_best_is_the_first_of_the_highest_test_accuracies(tmp_path):
    rounds = [(scored(accuracy), None) for accuracy in (0.2, 0.7, 0.5, 0.7)]
    summary = results_of(tmp_path, [(None, None), *rounds])["summary"]
    assert (summary["best_accuracy"], summary["best_round"], summary["best_chosen_by"]) == (0.7, 3, "test")


def test_validation_samples_choose_the_round_whose_test_accuracy_counts(tmp_path):
    pairs = [(0.9, 0.3), (0.6, 0.8), (0.7, 0.8), (0.95, 0.7)]
    rounds = [(None, None), *((scored(test), scored(held)) for test, held in pairs)]
    summary = results_of(tmp_path, rounds)["summary"]
    assert summary["best_chosen_by"] == "validation"
    assert (summary["best_accuracy"], summary["best_round"]) == (0.6, 3)


def test_a_run_without_an_evaluation_has_no_best_round(tmp_path):
    summary = results_of(tmp_path, [(None, None)])["summary"]
    keys = ("accuracy", "balanced_accuracy", "auroc", "best_accuracy", "best_round", "best_chosen_by")
    assert [summary[key] for key in keys] == [None] * 6


@pytest.mark.parametrize("key", ["validation_accuracy", "balanced_accuracy", "auroc"])
def test_an_older_run_can_be_reopened(tmp_path, key):
    content = results_of(tmp_path, [(scored(0.4), None), (scored(0.3), None)])
    for row in content["rounds"]:
        del row[key]
    (tmp_path / "result.json").write_text(json.dumps(content))
    results = Results.reopen(tmp_path)
    results.finish("finished")
    assert (results.run.summary.best_accuracy, results.run.summary.best_round) == (0.4, 1)
