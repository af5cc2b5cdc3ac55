"""A filled table as Markdown, CSV and JSON, and the page around it."""

import csv
import io
import json
from pathlib import Path

import pytest
import torch
from rich.console import Console
from study_cells import attack, failed, finished, one_each, planned, study

from fl_app.config.compose import ConfigError
from fl_app.experiments.studies.claims import judge
from fl_app.experiments.studies.figures import draw, gather
from fl_app.experiments.studies.measured import Measured
from fl_app.experiments.studies.page import Findings
from fl_app.experiments.studies.protocol import Protocol
from fl_app.experiments.studies.table import (
    fill_table,
    study_table,
    table_csv,
    table_for_terminal,
    table_markdown,
)
from fl_app.experiments.studies.writing import write_study
from fl_app.report import save_images
from fl_app.report.charts.canvas import LIGHT, png_bytes
from fl_app.results import Weights, read_run

SSIM = {"part": "ig", "metric": "ssim"}
TABLE = {
    "columns": {"none": {"defense": "none"}, "DGP": {"defense": "dgp"}, "Precode": {"defense": "precode"}},
    "rows": [
        {
            "name": ["IG", "SSIM"],
            "select": {**SSIM, "form": "plain"},
            "better": "lower",
            "paper": [0.954, 7.7e-4, None],
            "without": {"Precode": "no chain of layers"},
        },
        {
            "name": "Accuracy",
            "select": {"part": "accuracy", "metric": "accuracy"},
            "better": "higher",
            "show": "percent",
            "paper": [0.9362, None, None],
        },
    ],
}
FIGURES = [
    {
        "kind": "lines",
        "title": "Curves",
        "x": "round",
        "y": "accuracy",
        "series": "defense",
        "select": {"part": "accuracy"},
    },
    {"kind": "bars", "title": "Bars", "x": "defense", "y": "ssim", "select": {"part": "ig"}},
    {"kind": "histogram", "title": "All images", "y": "ssim", "series": "defense", "select": {"part": "ig"}},
    {
        "kind": "scatter",
        "title": "Both",
        "series": "defense",
        "x": SSIM,
        "y": {"part": "accuracy", "metric": "accuracy"},
    },
    {"kind": "gallery", "title": "Images", "series": "defense", "select": {"part": "ig"}},
]
CLAIMS = [
    {
        "name": "a",
        "text": "DGP <b>below</b> none",
        "less": {**SSIM, "defense": "dgp"},
        "than": {**SSIM, "defense": "none"},
    }
]


@pytest.fixture
def cells():
    rows = [{"round": 1, "accuracy": 0.5}, {"round": 2, "accuracy": 0.6}]
    trained = [
        finished(planned("accuracy", defense=d, seed=s), rounds=rows, accuracy=0.6 + s / 100)
        for d in ("none", "dgp")
        for s in (0, 1)
    ]
    return [
        finished(planned(defense="none"), attacks=one_each([0.5, 0.7])),
        finished(planned(defense="dgp"), attacks=one_each([0.1, 0.3])),
        *trained,
        failed(planned("accuracy", defense="precode", seed=0), "failed after 2 s: out of memory"),
    ]


def everything(cells):
    own = study(table=TABLE, figures=FIGURES, claims=CLAIMS, honest="small", missing=["much"])
    figures = [gather(figure, cells) for figure in own.figures]
    verdicts = judge(own, cells, Protocol(paper="dgp", written=""))
    return Findings(own, "fl-app -m", cells, fill_table(own, cells), figures, verdicts, "abc")


def test_ours_stands_beside_the_papers_and_what_is_missing_below(cells):
    found = everything(cells)
    text = table_markdown(found.study, found.lines)
    first, second = text.splitlines()[2:4]
    assert first == "| IG | SSIM | 0.600 ± 0.141 (0.954) | **0.200 ± 0.141** (7.7e-04) | – |"
    assert second == "| Accuracy |  | 60.5 ± 0.7 % (93.6 %) | 60.5 ± 0.7 % | – |"
    assert "- No chain of layers: IG SSIM of Precode." in text
    assert "- Failed after 2 s: out of memory: Accuracy of Precode." in text
    assert "- Mean ± standard deviation over 2 images: IG SSIM." in text
    assert "- Of the plain attacker." in text


def test_a_line_of_sentences_has_words(cells):
    reads = [{"iteration": 3, "tokens": ["the", "##y"], "accuracy": 0.5}]
    entry = attack([], tokens_by_iteration={"true": ["the", "end"], "masked": [False] * 2, "reads": reads})
    row = {"select": {"part": "ig", "metric": "trace.tokens"}, "better": "none"}
    rows = [{**row, "name": "read", "show": "words"}, {**row, "name": "true", "show": "original"}]
    own = study(table={"columns": {"none": {"defense": "none"}}, "rows": rows})
    text = table_markdown(own, fill_table(own, [finished(planned(defense="none"), attacks=[entry])]))
    assert text.splitlines()[2:4] == ["| read | the ##y |", "| true | the end |"]


def test_searches_are_drawn_by_iteration_and_by_layer(tmp_path):
    save_images(torch.rand(3, 3, 8, 8), tmp_path / "trace.png")
    save_images(torch.rand(1, 3, 8, 8), tmp_path / "truth.png")
    trace = [
        {"iteration": i, "distance": 1 / (1 + i), "layers": {"conv1": 2 / (1 + i)}, "mse": 0.5 / (1 + i)}
        for i in (0, 4, 9)
    ]
    entry = attack([0.5], trace=trace, trace_images="trace.png", truth="truth.png")
    cell = planned(defense="none")
    raw = {"status": "finished", "config": cell.config, "attacks": [entry], "rounds": []}
    found = [Measured(cell, tmp_path, read_run(tmp_path, raw), None)]
    lines = {"kind": "lines", "title": "t", "x": "iteration", "log": True}
    own = study(
        figures=[
            {**lines, "y": ["trace.mse", "trace.layers.conv1"]},
            {"kind": "gallery", "title": "t", "series": "iteration"},
        ]
    )
    chart, gallery = (gather(figure, found) for figure in own.figures)
    assert [curve.label for curve in chart.curves] == ["MSE of images", "conv1"]
    assert list(chart.curves[1].x) == [0, 4, 9]
    assert list(chart.curves[1].y) == pytest.approx([2, 0.4, 0.2])
    assert gallery.gallery is not None
    assert gallery.gallery.columns == ("original", "0", "4", "9")
    assert gallery.gallery.captions == (("none", "MSE 0.5", "MSE 0.1", "MSE 0.05"),)
    for drawn in (chart, gallery):
        assert png_bytes(draw(drawn, LIGHT)).startswith(b"\x89PNG")


def marked(cells, mark, select=None):
    row = {"name": "IG", "select": select or {**SSIM, "form": "plain"}, "better": "none", "mark": mark}
    columns = {"none": {"defense": "none"}, "DGP": {"defense": "dgp"}}
    own = study(table={"columns": columns, "rows": [row]})
    lines = fill_table(own, cells)
    return [place.mark for place in lines[0].ours], table_markdown(own, lines).splitlines()[2]


def test_a_line_may_have_check_marks(cells):
    assert marked(cells, {"at_most": 0.5}) == ([False, True], "| IG | ✗ 0.600 ± 0.141 | ✓ 0.200 ± 0.141 |")
    assert marked(cells, {"at_least": 0.5})[0] == [True, False]


def test_marks_are_in_the_files_and_below_the_table(cells):
    row = {"name": "Defends", "select": {**SSIM, "form": "plain"}, "better": "none", "mark": {"at_most": 0.3}}
    own = study(table={**TABLE, "rows": [{**row, "paper": ["✗", "✓", None]}]})
    lines = fill_table(own, cells)
    text = table_markdown(own, lines)
    assert text.splitlines()[2] == "| Defends | ✗ 0.600 ± 0.141 (✗) | ✓ 0.200 ± 0.141 (✓) | – |"
    assert "- ✓: at most 0.3: Defends." in text
    found = csv.DictReader(io.StringIO(table_csv(own, lines)))
    assert [place["mark"] for place in found] == ["False", "True", ""]
    (line,) = study_table(own, lines).rows
    assert line.mark == {"at_most": 0.3}
    assert [place.mark for place in line.ours] == [False, True, None]


def test_a_mark_may_be_about_what_is_lost(cells):
    base = {"part": "ig", "defense": "none", "metric": "ssim", "form": "plain"}
    assert marked(cells, {"loses_at_most": 0.3, "from": base})[0] == [True, False]


@pytest.mark.parametrize("note", ["the attack gave up: too little was sent", "refused: 4 of 5 were not sent"])
def test_an_attack_that_gave_up_is_a_check_mark_and_one_that_is_missing_none(note):
    gave_up = {**attack([None]), "notes": ["cross-entropy assumed", note]}
    unlucky = [
        finished(planned(defense="none"), attacks=[gave_up]),
        failed(planned(defense="dgp"), "out of memory"),
    ]
    assert marked(unlucky, {"at_most": 0.5}) == ([True, None], "| IG | ✓ | – |")


def test_a_mark_has_one_bound(cells):
    with pytest.raises(ConfigError, match="expected one of at_most, at_least, loses_at_most"):
        marked(cells, {"at_most": 0.5, "at_least": 0.1})
    with pytest.raises(ConfigError, match="from is missing"):
        marked(cells, {"loses_at_most": 0.5})


@pytest.mark.parametrize(("width", "tables"), [(80, 1), (29, 2), (19, 3)])
def test_a_narrow_terminal_has_every_column(cells, width, tables):
    found = everything(cells)
    drawn = table_for_terminal(found.study, found.lines, width)
    headers = [[str(column.header) for column in table.columns[1:]] for table in drawn.renderables]
    assert len(headers) == tables
    assert [name for names in headers for name in names] == list(found.study.columns)
    console = Console(width=width, file=io.StringIO())
    console.print(drawn)
    assert all(number in console.file.getvalue() for number in ("0.600", "0.200", "60.5"))


def test_the_csv_has_a_line_for_every_place(cells):
    found = everything(cells)
    rows = list(csv.DictReader(io.StringIO(table_csv(found.study, found.lines))))
    assert len(rows) == 6
    assert (rows[1]["row"], rows[1]["column"], float(rows[1]["mean"]), rows[1]["paper"]) == (
        "IG SSIM",
        "DGP",
        pytest.approx(0.2),
        "0.00077",
    )


def test_everything_is_written_and_the_json_is_as_promised(cells, tmp_path):
    page = write_study(everything(cells), tmp_path)
    content = json.loads((tmp_path / "study.json").read_text())
    assert set(content) >= {
        *("name", "paper", "what", "title", "scale", "honest", "missing", "command", "seeds"),
        *("cells", "table", "figures", "claims", "versions", "finished"),
    }
    assert (content["finished"], content["seeds"]) == (False, [0, 1])
    assert content["cells"][-1]["reason"] == "failed after 2 s: out of memory"
    place = content["table"]["rows"][0]["ours"][1]
    assert (place["mean"], place["n"], place["unit"], place["missing"]) == (
        pytest.approx(0.2),
        2,
        "image",
        None,
    )
    assert content["table"]["rows"][0]["ours"][2]["missing"] == "no chain of layers"
    for figure in content["figures"]:
        assert (tmp_path / figure["file"]).read_bytes().startswith(b"\x89PNG")
        assert b"<svg" in (tmp_path / figure["svg"]).read_bytes()[:600]
    assert [figure["title"] for figure in content["figures"]] == ["Curves", "Bars", "All images", "Both"]
    assert json.loads((tmp_path / "claims.json").read_text()) == content["claims"]
    markup = page.read_text()
    assert "DGP &lt;b&gt;below&lt;/b&gt; none" in markup
    assert 'data-verdict="not decided"' in markup
    assert not list(tmp_path.glob("*.part"))


def test_writing_twice_gives_the_same_bytes(cells, tmp_path):
    for name in ("a", "b"):
        write_study(everything(cells), tmp_path / name)
    for path in (tmp_path / "a").iterdir():
        if path.name != "study.json" and path.name != "study.html":  # these know where the cells lie
            assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes(), path.name


def test_a_curve_has_the_mean_of_its_seeds_and_a_band(cells):
    (curve, _) = everything(cells).figures[0].curves
    assert (list(curve.x), list(curve.y), list(curve.spread)) == ([1.0, 2.0], [0.5, 0.6], [0.0, 0.0])


def test_a_distribution_is_that_of_the_runs_on_common_bins():
    wide = {"counts": [2, 2], "edges": [0, 2, 4]}
    narrow = {"counts": [1, 3], "edges": [0, 1, 2]}
    cells = []
    for defense, seed, weights in (("none", 0, wide), ("dgp", 0, wide), ("dgp", 1, narrow)):
        cell = finished(planned("accuracy", defense=defense, seed=seed))
        cell.run.weights = Weights(**weights)
        cells.append(cell)
    order = {"kind": "distribution", "title": "Weights", "y": "weights.counts", "series": "defense"}
    drawn = gather(study(figures=[order]).figures[0], cells)
    alone, two = drawn.densities["none"], drawn.densities["dgp"]
    assert alone.edges == two.edges
    assert (alone.edges[0], alone.edges[-1], len(alone.shares)) == (0, 4, 40)
    assert list(alone.shares) == pytest.approx([1 / 40] * 40)
    # up to 1, up to 2, above: of "wide" 1/4, 1/4, 1/2, of "narrow" 1/4, 3/4, 0
    assert sum(two.shares[:10]) == pytest.approx((0.25 + 0.25) / 2)
    assert sum(two.shares[10:20]) == pytest.approx((0.25 + 0.75) / 2)
    assert sum(two.shares[20:]) == pytest.approx(0.5 / 2)
    assert png_bytes(draw(drawn, LIGHT)).startswith(b"\x89PNG")
    nothing = [finished(planned("accuracy", defense="none"))]
    assert gather(study(figures=[order]).figures[0], nothing).empty


def test_a_gallery_shows_the_same_images_under_every_defense(make_strips):
    cells = make_strips(("none", "dgp"))
    own = study(figures=[FIGURES[4]])
    drawn = gather(own.figures[0], cells)
    assert drawn.gallery is not None
    assert drawn.gallery.columns == ("original", "none", "dgp")
    assert [len(row) for row in drawn.gallery.rows] == [3, 3]
    assert png_bytes(draw(drawn, LIGHT)).startswith(b"\x89PNG")


@pytest.fixture
def make_strips(tmp_path):
    def make(defenses):
        cells = []
        for defense in defenses:
            folder: Path = tmp_path / defense
            save_images(torch.rand(2, 3, 8, 8), folder / "found.png")
            save_images(torch.rand(2, 3, 8, 8), folder / "truth.png")
            cell = planned(defense=defense)
            entry = attack([0.5, 0.6], images="found.png", truth="truth.png")
            raw = {"config": cell.config, "attacks": [entry]}
            cells.append(Measured(cell, folder, read_run(folder, raw), None))
        return cells

    return make
