"""What a report says of a sentence: token by token, as the search went on."""

from __future__ import annotations

from typing import Any

from parsed_page import ParsedPage
from run_folders import write_run

from fl_app.report import summary_lines, write_report

TRUE = ["[CLS]", "the", "<s>", "##ing", "[SEP]"]


def entry(
    client: int, reads: list[tuple[int | None, list[str], float | None]], **more: Any
) -> dict[str, Any]:
    return {
        "attack": "text_dlg",
        "update": "defended",
        "round": 1,
        "client": client,
        "labels": None,
        "token_accuracy": reads[-1][2],
        "transcript": {"found": " ".join(reads[-1][1]), "true": "the <s>ing"},
        "tokens_by_iteration": {
            "true": TRUE,
            "masked": [False, False, True, False, False],
            "reads": [
                {"iteration": step, "tokens": tokens, "accuracy": share} for step, tokens, share in reads
            ],
        },
        **more,
    }


def with_sentences(result: dict[str, Any]) -> None:
    half = ["[CLS]", "the", "<script>alert(1)</script>", "&amp;"]
    result["attacks"] = [
        entry(0, [(0, half, 0.4), (None, TRUE, 1.0)], adaptive=True, labels_from="granted"),
        entry(1, [(None, half, 0.4)], labels_from="inferred"),
    ]


def test_tokens_that_differ_are_marked_by_a_sign_too_and_nothing_is_taken_for_markup(tmp_path):
    path = write_report(write_run(tmp_path, change=with_sentences))
    page, markup = ParsedPage(path), path.read_text()
    original, first, last = page.table_with("iterations")[:3]
    assert (original["iterations"], original["tokens"].split()) == ("original", TRUE)
    assert "<u>&lt;s&gt;</u>" in markup
    assert (first["iterations"], first["right"]) == ("0", "40.0 %")
    # the third and fourth differ, and the fifth is missing
    assert first["tokens"].split() == ["[CLS]", "the", "✗<script>alert(1)</script>", "✗&amp;", "✗–"]
    assert (last["iterations"], last["right"]) == ("end", "100.0 %")
    assert "✗" not in last["tokens"]
    assert "<script>alert" not in markup
    assert "<s>" not in markup
    assert "text_dlg (adaptive), with the defense, round 1, client 0, masked places and targets granted" in (
        page.text
    )
    assert "client 1, nothing granted" in page.text


def test_the_first_screen_and_the_summary_have_the_best_one_for_the_attacker(tmp_path):
    folder = write_run(tmp_path, change=with_sentences)
    page = ParsedPage(write_report(folder))
    assert page.cards["does-leak"].startswith("100.0 %")
    assert page.values["original-text"] == "the <s>ing"
    assert page.values["masked-tokens"] == "granted"
    lines = [line for line in summary_lines(folder) if "text_dlg" in line]
    assert any("100.0 %" in line for line in lines)


def test_a_sentence_that_nobody_knows_is_shown_unmarked(tmp_path):
    def without_truth(result: dict[str, Any]) -> None:
        result["attacks"] = [entry(0, [(None, ["a", "b"], None)])]
        result["attacks"][0]["tokens_by_iteration"] |= {"true": None, "masked": None}

    path = write_report(write_run(tmp_path, change=without_truth))
    (row,) = ParsedPage(path).table_with("iterations")
    assert (row["iterations"], row["tokens"].split(), row["right"]) == ("end", ["a", "b"], "–")
    assert "<mark>" not in path.read_text()


def test_misshapen_tokens_do_not_stop_a_report(tmp_path):
    def misshapen(result: dict[str, Any]) -> None:
        result["attacks"] = [
            {"attack": "text_dlg", "tokens_by_iteration": [1]},
            {"attack": "text_dlg", "tokens_by_iteration": {"reads": [{"tokens": 7}], "true": 3, "masked": 1}},
        ]

    assert ParsedPage(write_report(write_run(tmp_path, change=misshapen))).text
