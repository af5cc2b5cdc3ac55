"""What a report says of transcripts that were read off an update."""

from __future__ import annotations

from typing import Any

from parsed_page import ParsedPage
from run_folders import write_run

from fl_app.report import summary_lines, write_report


def entry(client: int, found: str, true: str | None, wer: float | None) -> dict[str, Any]:
    return {
        "attack": "transcript",
        "update": "defended",
        "round": 1,
        "client": client,
        "psnr": None,
        "ssim": None,
        "labels": None,
        "token_wer": wer,
        "token_exact": 0.0,
        "transcript": {"found": found, "true": true},
    }


def with_transcripts(result: dict[str, Any]) -> None:
    result["attacks"] = [
        entry(0, "no <b>weight</b> now", "no wait now", 1 / 3),
        entry(1, "he said no", "he said he will go", 0.6),
        entry(2, "nobody knows", None, None),
    ]


def test_words_that_differ_are_marked_and_escaped(tmp_path):
    path = write_report(write_run(tmp_path, change=with_transcripts))
    page, markup = ParsedPage(path), path.read_text()
    first, second, third = page.table_with("said")
    assert (first["said"], first["read"], first["word errors"]) == (
        "no wait now",
        "no <b>weight</b> now",
        "33.3 %",
    )
    assert "<mark>&lt;b&gt;weight&lt;/b&gt;</mark>" in markup
    assert "<mark>wait</mark>" in markup
    assert "<mark>he will go</mark>" in markup
    assert second["word errors"] == "60.0 %"
    assert (third["said"], third["read"]) == ("–", "nobody knows")


def test_the_first_screen_and_the_summary_have_the_best_one_for_the_attacker(tmp_path):
    folder = write_run(tmp_path, change=with_transcripts)
    page = ParsedPage(write_report(folder))
    assert page.cards["does-leak"].startswith("33.3 %")
    assert page.values["original-text"] == "no wait now"
    assert "masked-tokens" not in page.values
    (line,) = [line for line in summary_lines(folder) if "transcript" in line]
    assert "33.3 %" in line
