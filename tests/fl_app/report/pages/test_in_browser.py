from __future__ import annotations

from browser import look_at, needs_browser
from run_folders import with_secure_aggregation, write_model
from study_cells import finished, one_each, planned, study

from fl_app.experiments.studies.claims import judge
from fl_app.experiments.studies.figures import gather
from fl_app.experiments.studies.page import Findings
from fl_app.experiments.studies.protocol import Protocol
from fl_app.experiments.studies.table import fill_table
from fl_app.experiments.studies.writing import write_study
from fl_app.report import compare_runs, write_report

pytestmark = needs_browser


def test_all_pictures_of_a_report_load_and_nothing_is_fetched_or_cut_off_on_a_narrow_screen(
    make_run, tmp_path
):
    def change(result):
        result["rounds"][0]["failures"] = [{"client": 3, "reason": "x" * 300}]
        with_secure_aggregation(result)
        result["attacks"] += [{**result["attacks"][i], "adaptive": True} for i in (0, 2)]
        result["config"]["choices"]["model"] = "a_model_with_a_very_long_name_that_does_not_fit_on_a_phone"

    folder = make_run(change=change)
    write_model(folder)
    seen = look_at(write_report(folder), tmp_path / "profile", width=390)
    assert seen["pictures"] > 10
    assert seen["broken"] == 0
    assert seen["requests"] == 0
    assert seen["blocked"] == []
    assert seen["console"] == []
    assert seen["width"] == 390
    assert seen["overflow"] <= 0


def test_the_comparison_sorts_by_a_click_and_rows_without_a_value_stay_last(make_run, tmp_path):
    def forget(result):
        del result["summary"]["accuracy"]
        for r in result["rounds"]:
            r["accuracy"] = None

    runs = [
        make_run("a", defense="topk", reach=0.5, rounds=2),
        make_run("b", defense="dgp", reach=0.9, rounds=2),
        make_run("c", defense="none", rounds=2, change=forget),
        make_run("d", defense="adgp", reach=0.2, rounds=2),
    ]
    seen = look_at(compare_runs(runs, tmp_path / "comparison.html"), tmp_path / "profile", width=1400)
    up, down, by_name = seen["sorts"]
    assert up == ["adgp", "topk", "dgp", "none"]
    assert down == ["dgp", "topk", "adgp", "none"]
    assert by_name == ["adgp", "dgp", "none", "topk"]
    assert seen["pictures"] == 5  # those that explain PSNR
    assert (seen["broken"], seen["requests"], seen["blocked"]) == (0, 0, [])


def test_a_study_loads_nothing_and_fits_a_phone(tmp_path):
    own = study(
        honest="small",
        table={
            "columns": {"without": {"defense": "none"}, "DGP": {"defense": "dgp"}},
            "rows": [{"name": ["IG", "SSIM"], "select": {"metric": "ssim"}, "better": "lower"}],
        },
        figures=[{"kind": "bars", "title": "SSIM", "x": "defense", "y": "ssim"}],
        claims=[{"name": "a", "text": "low", "at_most": 0.5, "of": {"defense": "dgp", "metric": "ssim"}}],
    )
    cells = [finished(planned(defense=d), attacks=one_each([0.4] * 20)) for d in ("none", "dgp")]
    lines, figures = fill_table(own, cells), [gather(figure, cells) for figure in own.figures]
    verdicts = judge(own, cells, Protocol(paper="dgp", written=""))
    found = Findings(own, "fl-app -m", cells, lines, figures, verdicts, "abc")
    seen = look_at(write_study(found, tmp_path / "study"), tmp_path / "profile", width=390)
    assert seen["pictures"] == 2  # one for each colour scheme
    assert (seen["broken"], seen["requests"], seen["blocked"]) == (0, 0, [])
    assert seen["overflow"] <= 0
