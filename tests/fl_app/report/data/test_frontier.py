"""Which runs make a point of the frontier, which points are on it, and how it is drawn."""

from __future__ import annotations

import io
import re
import statistics
from collections import Counter
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsed_page import ParsedPage
from PIL import Image
from run_folders import read_result

from fl_app.report import compare_runs, comparison_rows, write_frontier
from fl_app.report.charts.drawing import Circle, Drawing, Line, Words, drawn_png, inline_svg, stack, svg_file
from fl_app.report.charts.frontier_chart import NARROW, WIDE, draw_frontier, epsilon_color
from fl_app.report.charts.label_places import Box, Bubble, place_labels
from fl_app.report.data.comparison import Spread
from fl_app.report.data.frontier import frontier_panels, pareto

SVG = "{http://www.w3.org/2000/svg}"


def only_trained(result):
    result["attacks"] = []
    result["config"]["choices"]["attack"] = "none"


def panels_of(*runs):
    return frontier_panels(comparison_rows(runs))


def test_a_point_has_the_accuracy_and_the_worse_form_of_the_attack_over_seeds(make_run):
    def attack_harder(result):
        plain = result["attacks"][1]
        result["attacks"].append({**plain, "adaptive": True, "ssim": [s + 0.2 for s in plain["ssim"]]})

    runs = [make_run(f"s{seed}", seed=seed, change=attack_harder) for seed in range(3)]
    ((point,),) = [panel.points for panel in panels_of(*runs)]
    results = [read_result(run) for run in runs]
    accuracy = [r["summary"]["accuracy"] for r in results]
    means = [statistics.mean(r["attacks"][2]["ssim"]) for r in results]
    assert point.accuracy == pytest.approx((statistics.mean(accuracy), statistics.stdev(accuracy)))
    assert point.leaks["mean"] == pytest.approx((statistics.mean(means), statistics.stdev(means)))
    assert point.leaks["best"].mean == pytest.approx(
        statistics.mean(max(r["attacks"][2]["ssim"]) for r in results)
    )
    assert point.worst_form.adaptive
    sent = [r["summary"]["uplink_bytes"] + r["summary"]["downlink_bytes"] for r in results]
    assert point.bytes == pytest.approx(statistics.mean(sent))
    assert not point.joined


def test_accuracy_of_long_runs_is_joined_with_the_leakage_of_short_ones(make_run, tmp_path):
    runs = [
        make_run("attacked", rounds=1),
        make_run("long0", rounds=9, seed=0, change=only_trained),
        make_run("long1", rounds=9, seed=1, change=only_trained),
    ]
    (panel,) = panels_of(*runs)
    (point,) = panel.points
    assert point.joined
    assert point.rounds == 9
    assert point.accuracy.mean == statistics.mean(read_result(r)["summary"]["accuracy"] for r in runs[1:])
    assert point.leaks["mean"].mean == statistics.mean(read_result(runs[0])["attacks"][1]["ssim"])
    assert panel.labels == ["dgp"]
    page = ParsedPage(compare_runs(runs, tmp_path / "c.html"))
    assert "accuracy of 2 runs of 9 rounds, leakage of 1 run of 1 round (dgp)" in page.text


@pytest.mark.parametrize(
    ("key", "value"), [("lr", 0.5), ("clients", 99), ("defense", {"dgp": {"k1": 0.5}}), ("data", {"size": 8})]
)
def test_runs_that_differ_in_what_a_client_sends_are_not_joined(make_run, key, value):
    def change(result):
        only_trained(result)
        result["config"][key] = value

    (panel,) = panels_of(make_run("attacked", rounds=1), make_run("long", rounds=9, change=change))
    assert panel.points == []
    assert Counter(left.reason for left in panel.left_out) == {
        "no accuracy of a trained model": 1,
        "no attack whose images were scored": 1,
    }


@pytest.mark.parametrize(("multiplier", "joined"), [(None, False), (1.1, True)])
def test_noise_that_must_last_for_all_rounds_is_another_in_a_shorter_run(make_run, multiplier, joined):
    def noisy(result):
        rounds = result["config"]["rounds"]
        result["config"]["dp"] = {"epsilon": 3, "noise_multiplier": multiplier, "rounds": rounds}

    def trained(result):
        noisy(result)
        only_trained(result)

    (panel,) = panels_of(make_run("a", rounds=1, change=noisy), make_run("b", rounds=9, change=trained))
    assert [point.joined for point in panel.points] == ([True] if joined else [])


def test_one_round_is_no_training_where_others_have_more(make_run):
    (panel,) = panels_of(make_run("a", rounds=1, defense="ats"), make_run("b", rounds=5))
    assert [point.defense for point in panel.points] == ["dgp"]
    assert panel.left_out == [("ats", "no accuracy of a trained model")]
    (alone,) = panels_of(make_run("c", rounds=1, defense="ats"))
    assert [point.defense for point in alone.points] == ["ats"]


def test_unfinished_runs_are_left_out_by_name(make_run):
    (panel,) = panels_of(make_run("a", change=lambda result: result.update(status="interrupted")))
    assert (panel.points, panel.left_out) == ([], [("dgp", "interrupted")])


def test_other_models_or_data_have_a_panel_of_their_own(make_run):
    panels = panels_of(
        make_run("a"),
        make_run("b", change=lambda result: result["config"]["choices"].update(model="mlp")),
    )
    assert [(panel.model, len(panel.points)) for panel in panels] == [("lenet", 1), ("mlp", 1)]


def test_settings_that_differ_name_the_points_without_their_path_in_the_chart(make_run):
    def with_k(k):
        return lambda result: result["config"].update(defense={"topk": {"k": k}})

    (panel,) = panels_of(
        make_run("a", defense="topk", change=with_k(0.1)), make_run("b", defense="topk", change=with_k(0.2))
    )
    assert panel.labels == ["topk, k=0.1", "topk, k=0.2"]
    assert [point.full_name for point in panel.points] == [
        "topk, defense.topk.k=0.1",
        "topk, defense.topk.k=0.2",
    ]


def test_a_label_has_one_setting_at_most_and_only_where_it_tells_the_point_apart(make_run):
    def with_settings(**settings):
        return lambda result: result["config"].update(defense=settings)

    (panel,) = panels_of(
        make_run("a", change=with_settings(k1=0.05, k2=0.75, on="true")),
        make_run("b", change=with_settings(k1=0.05, k2=0.5, on="false")),
        make_run("c", change=with_settings(k1=0.1, k2=0.25, on="true")),
        make_run("d", defense="noise", change=with_settings(k1=0.05, k2=0.75, on="true")),
    )
    assert panel.labels == ["dgp, k2=0.75", "dgp, k2=0.5", "dgp, k2=0.25", "noise"]
    assert panel._replace(points=panel.points[2:]).labels == ["dgp", "noise"]
    (panel,) = panels_of(
        make_run("e", change=with_settings(k1=1, k2=1)),
        make_run("f", change=with_settings(k1=1, k2=2)),
        make_run("g", change=with_settings(k1=2, k2=1)),
    )
    assert panel.labels == ["dgp"] * 3  # the numbers beside them stand for rows of the table


def test_epsilon_is_the_one_against_the_server_and_has_a_colour(make_run):
    def private(result):
        result["summary"] |= {"epsilon": 2.0, "epsilon_server": 5.5}

    (panel,) = panels_of(make_run("a", change=private), make_run("b", defense="none"))
    assert [point.epsilon for point in panel.points] == [5.5, None]
    assert panel.labels[0] == "dgp, ε 5.5"
    colors = [epsilon_color(value) for value in (None, 0.5, 1.0, 2.0, 5.5, 11.0, float("inf"))]
    assert colors[1] == colors[2]
    assert colors[5] == colors[6]
    assert len(set(colors)) == 5


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=9))
def test_a_point_is_on_the_frontier_if_no_other_beats_it(values):
    class Stub:
        def __init__(self, accuracy, leak):
            self.accuracy = Spread(accuracy, None)
            self.leaks = {"mean": Spread(leak, None)}

    best = pareto([Stub(*value) for value in values], "mean")
    for i, (accuracy, leak) in enumerate(values):
        beaten = any(a >= accuracy and b <= leak and (a > accuracy or b < leak) for a, b in values)
        assert (i in best) != beaten
    assert best


@pytest.mark.parametrize(("bar", "expected"), [(0.001, {0}), (0.05, {0, 1})])
def test_a_difference_within_the_error_bars_keeps_a_point_on_the_frontier(bar, expected):
    def point(accuracy, leak):
        return SimpleNamespace(accuracy=Spread(accuracy, bar), leaks={"mean": Spread(leak, bar)})

    assert pareto([point(0.9, 0.4), point(0.89, 0.41)], "mean") == expected


def test_runs_of_other_lengths_share_no_frontier(make_run):
    def long(result):
        result["config"]["rounds"] = 24

    runs = [
        make_run("a"),
        make_run("b", defense="topk"),
        make_run("c", defense="adgp", rounds=24, change=long),
    ]
    panels = frontier_panels(comparison_rows(runs))
    assert [[point.defense for point in panel.points] for panel in panels] == [["dgp", "topk"], ["adgp"]]


boxes = st.tuples(st.floats(0, 300), st.floats(0, 200), st.floats(1, 15))


@given(st.lists(boxes, max_size=14), st.lists(st.floats(5, 200), min_size=14, max_size=14))
def test_labels_cover_neither_each_other_nor_a_bubble_and_stay_inside(spots, widths):
    bubbles = [Bubble(*spot) for spot in spots]
    sizes = [[(width, 12.0), (8.0, 12.0)] for width in widths[: len(bubbles)]]
    inside = Box(0, 0, 300, 200)
    places = place_labels(bubbles, sizes, inside=inside, order=range(len(bubbles)))
    found = [place.box for place in places if place is not None]
    assert all(inside.holds(box) for box in found)
    assert not any(box.meets(bubble.box) for box in found for bubble in bubbles)
    assert not any(a.meets(b) for i, a in enumerate(found) for b in found[:i])
    for place, choices in zip(places, sizes, strict=True):
        if place is not None:
            assert place.box.right - place.box.left == pytest.approx(choices[place.choice][0])


def test_a_label_without_room_is_its_number_or_nothing():
    crowd = [Bubble(50, 50, 40)]
    inside = Box(0, 0, 100, 100)
    assert place_labels(crowd, [[(200, 12), (5, 5)]], inside=inside, order=[0])[0].choice == 1
    assert place_labels(crowd, [[(200, 12), (50, 50)]], inside=inside, order=[0]) == [None]


def test_an_error_bar_crosses_a_label_only_where_there_is_no_other_place():
    point, room = [Bubble(100, 50, 5)], Box(0, 0, 200, 100)
    bar = Box(20, 49, 180, 51)
    (place,) = place_labels(point, [[(60, 12)]], inside=room, order=[0], lines=[bar])
    assert place is not None
    assert not place.box.meets(bar)
    everywhere = [Box(0, y, 200, y + 1) for y in range(100)]
    (place,) = place_labels(point, [[(60, 12)]], inside=room, order=[0], lines=everywhere)
    assert place is not None


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_drawing_has_every_point_with_its_numbers_and_stays_within_its_size(make_run, width):
    runs = [make_run(name, defense=name, noise=noise) for name, noise in (("dgp", 0.4), ("none", 0.1))]
    (panel,) = panels_of(*runs)
    drawing = draw_frontier(panel, "mean", width=width)
    discs = [shape for shape in drawing.shapes if isinstance(shape, Circle)]
    titles = [disc.title for disc in discs if disc.title]
    for run in runs:
        summary = read_result(run)["summary"]
        assert any(f"accuracy {100 * summary['accuracy']:.1f} %" in title for title in titles)
    words = {shape.text for shape in drawing.shapes if isinstance(shape, Words)}
    assert {"1 dgp", "2 none", "no ε", "on the frontier"} <= words
    assert all(disc.x - disc.radius >= 0 and disc.x + disc.radius <= width for disc in discs)
    assert all(disc.y - disc.radius > 0 and disc.y + disc.radius <= drawing.height for disc in discs)
    # less leakage is further left, more accuracy further up
    by_name = {disc.title.partition(":")[0]: disc for disc in discs if disc.title}
    assert by_name["dgp"].x < by_name["none"].x


def test_more_bytes_make_a_larger_bubble(make_run):
    (panel,) = panels_of(make_run("a", sparsity=0.01), make_run("b", defense="none", sparsity=0.5))
    drawing = draw_frontier(panel, "mean")
    small, large = (
        next(s.radius for s in drawing.shapes if isinstance(s, Circle) and s.title.startswith(name))
        for name in ("dgp", "none")
    )
    assert small < large


def test_a_panel_without_points_is_not_drawn(make_run):
    (panel,) = panels_of(make_run("a", change=only_trained))
    with pytest.raises(ValueError, match="draw_frontier: expected points of lenet on photos"):
        draw_frontier(panel, "mean")


def test_files_are_written_as_png_and_svg(make_run, tmp_path):
    runs = [make_run("a"), make_run("b", change=lambda r: r["config"]["choices"].update(data="<other>"))]
    png, svg = write_frontier(runs, tmp_path / "out" / "frontier.png", by="best")
    root = ElementTree.parse(svg).getroot()
    assert root.tag == f"{SVG}svg"
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert {"lenet on photos, 12 rounds", "lenet on <other>, 12 rounds"} <= set(texts)
    assert any("best image" in text for text in texts)
    width, height = Image.open(png).size
    assert (width, height) == (
        round(2 * float(root.get("width"))),
        pytest.approx(2 * float(root.get("height")), abs=2),
    )


def test_a_frontier_of_nothing_is_refused(make_run, tmp_path):
    with pytest.raises(ValueError, match="write_frontier: expected a configuration with an accuracy"):
        write_frontier([make_run("a", change=only_trained)], tmp_path / "f.png")


def test_both_forms_of_a_drawing_show_the_same_shapes():
    red, blue = (255, 0, 0), (0, 0, 255)
    drawing = Drawing(
        100,
        50,
        [
            Circle(20, 20, 10, "#ff0000", "#ff0000"),
            Line([(50, 5), (50, 45)], "#0000ff", 6),
            Words(60, 40, "<&$x"),
        ],
    )
    picture = Image.open(io.BytesIO(drawn_png(drawing))).convert("RGB")
    assert picture.size == (200, 100)
    assert [picture.getpixel(spot) for spot in ((40, 40), (100, 50), (5, 5))] == [red, blue, (255, 255, 255)]
    root = ElementTree.fromstring(svg_file(drawing))
    (circle,), (line,), (text,) = (list(root.iter(f"{SVG}{tag}")) for tag in ("circle", "polyline", "text"))
    assert (circle.get("cx"), circle.get("r"), line.get("points")) == ("20", "10", "50,5 50,45")
    assert "#ff0000" in circle.get("style")
    assert text.text == "<&$x"
    inline = inline_svg(drawing, alt='a "b"', class_="c")
    assert "var(--ink)" in inline
    assert not re.search(r"https?:", inline)
    assert ElementTree.fromstring(inline).get("aria-label") == 'a "b"'


def test_stacked_drawings_do_not_overlap():
    one = Drawing(10, 30, [Circle(5, 5, 1, "ink", "ink"), Line([(0, 7), (1, 8)], "ink"), Words(1, 9, "w")])
    both = stack([one, one])
    assert (both.width, both.height) == (10, 60)
    circle, line, words = both.shapes[3:]
    assert (circle.y, line.points, words.y) == (35, [(0, 37), (1, 38)], 39)


def test_the_comparison_shows_the_frontier_with_the_same_numbers_in_a_table(make_run, tmp_path):
    runs = [make_run("a", defense="dgp"), make_run("b", defense="soteria", change=only_trained)]
    page = ParsedPage(compare_runs(runs, tmp_path / "c.html"))
    (row,) = page.table_with("on the frontier")
    result = read_result(runs[0])
    assert row["defense"] == "dgp"
    assert row["on the frontier"] == "● yes"
    assert row["accuracy"] == f"{100 * result['summary']['accuracy']:.1f} %"
    assert row["mean SSIM"] == f"{statistics.mean(result['attacks'][1]['ssim']):.3f}"
    assert row["best SSIM"] == f"{max(result['attacks'][1]['ssim']):.3f}"
    assert "Not shown of lenet on photos: soteria (no attack whose images were scored)." in page.text
    assert len([svg for svg in page.named("svg") if "frontier" in svg["class"]]) == 2
    assert page.unbalanced == []
