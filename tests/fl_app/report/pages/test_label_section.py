"""What a report says of attacks on labels alone."""

from __future__ import annotations

import json
import logging
from typing import Any

from parsed_page import ParsedPage
from run_folders import write_run

from fl_app.experiments.job import run_job
from fl_app.report import summary_lines, write_report


def entry(client: int, true: list[int], found: list[int]) -> dict[str, Any]:
    right = len(set(true) & set(found))
    precision, recall = right / len(found), right / len(set(true))
    return {
        "attack": "rlg",
        "update": "defended",
        "round": 1,
        "client": client,
        "psnr": None,
        "ssim": None,
        "labels": {
            "precision": precision,
            "recall": recall,
            "f1": 0.5,
            "exact": float(set(true) == set(found)),
        },
        "found_labels": found,
        "true_labels": true,
        "rank": len(true),
    }


def with_labels(result: dict[str, Any]) -> None:
    result["attacks"] = [entry(0, [1, 1, 3], [1, 3]), entry(1, [3, 4], [3, 7])]


def test_every_class_is_counted_over_the_updates(tmp_path):
    page = ParsedPage(write_report(write_run(tmp_path, change=with_labels)))
    rows = {row["class"]: row for row in page.table_with("updates with it")}
    assert list(rows) == ["4", "7", "1", "3"]  # what went wrong comes first
    assert [rows["3"][c] for c in ("updates with it", "precision", "recall")] == ["2", "1.00", "1.00"]
    assert [rows["7"][c] for c in ("updates with it", "precision", "recall")] == ["0", "0.00", "–"]
    assert [rows["4"][c] for c in ("updates with it", "precision", "recall")] == ["1", "–", "0.00"]
    (total,) = page.table_with("exact")
    assert (total["updates"], total["precision"], total["recall"], total["exact"]) == (
        "2",
        "0.750",
        "0.750",
        "0.500",
    )
    assert total["answered by"] == "–"
    assert "highest PSNR" not in page.text


def test_the_rules_that_answered_are_counted(tmp_path):
    def with_rules(result: dict[str, Any]) -> None:
        rules = ("hyperplanes", "none", "none")
        result["attacks"] = [entry(c, [1], [1]) | {"rule": rule} for c, rule in enumerate(rules)]

    (total,) = ParsedPage(write_report(write_run(tmp_path, change=with_rules))).table_with("answered by")
    assert (total["updates"], total["answered by"]) == ("3", "none (2), hyperplanes (1)")


def test_the_summary_speaks_of_labels_where_there_are_no_images(tmp_path):
    lines = "\n".join(summary_lines(write_run(tmp_path, change=with_labels)))
    assert "precision 0.75, recall 0.75, f1 0.50, exact 0.50 (rlg plain, mean over 2 updates)" in lines
    assert "PSNR" not in lines


def test_a_run_keeps_what_an_attack_on_labels_named(tmp_path):
    logging.getLogger("flwr").setLevel(logging.ERROR)
    small = "data.train_per_class=8 data.test_per_class=4 clients=2 rounds=1 lr=0.1 threads=1 defense=none"
    folder = run_job([*small.split(), "attack=rlg", "audit.batch_size=4"], folder=tmp_path)
    (found,) = json.loads((folder / "result.json").read_text())["attacks"]
    assert sorted(found["found_labels"]) == sorted(set(found["true_labels"]))
    assert len(found["true_labels"]) == 4
    assert found["rank"] is not None
    assert found["rule"] == "hyperplanes"
    assert found["labels"]["exact"] == 1.0
