from __future__ import annotations

from fl_app.report.pages.run_page import write_report


def test_notes_that_differ_in_numbers_alone_are_one_note_with_their_range(make_run):
    def change(result):
        for attack, count in zip(result["attacks"], (12.5, 7, 12, 12), strict=False):
            attack["notes"] = [f"matched {count} of 40 entries of conv2d", "alone"]

    page = write_report(make_run(change=change)).read_text()
    notes = [line for line in page.split("<li>") if line.startswith(("matched", "alone"))]
    assert len(notes) == 2
    assert notes[0].startswith("matched 7 to 12.5 of 40 entries of conv2d")


def test_a_batch_of_one_has_no_mean_and_names_of_scores_can_break(make_run):
    def change(result):
        for attack in result["attacks"]:
            attack["batch_size"] = 1

    single = write_report(make_run("single", change=change)).read_text()
    several = write_report(make_run("several")).read_text()
    table = single[single.index("Scores of each attack") :]
    assert "<small> mean" not in table
    assert several.count("<small> mean") > 0
