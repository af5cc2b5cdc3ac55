from __future__ import annotations

import io
import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from run_folders import draw_pictures, with_secure_aggregation

from fl_app.report import plot_partition, save_images
from fl_app.report.charts import plots as charts
from fl_app.report.charts.canvas import DARK, LIGHT
from fl_app.report.charts.plots import (
    Curve,
    Point,
    plot_accuracy,
    plot_bytes,
    plot_epsilon,
    plot_residual,
    plot_tradeoff,
)
from fl_app.report.charts.tiles import read_tiles, tile_uri
from fl_app.report.data.gallery import column_names, gallery_blocks, gallery_rows, plot_gallery
from fl_app.results import load_run


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 9),
    channels=st.sampled_from([1, 3]),
    height=st.integers(1, 12),
    width=st.integers(1, 12),
    seed=st.integers(0, 2**31),
)
def test_tiles_come_back_as_they_were_saved(tmp_path_factory, count, channels, height, width, seed):
    images = torch.rand(count, channels, height, width, generator=torch.Generator().manual_seed(seed))
    path = tmp_path_factory.mktemp("strip") / "below" / "strip.png"
    save_images(images, path)
    tiles = read_tiles(path)
    assert len(tiles) == count
    for tile, image in zip(tiles, images, strict=True):
        pixels = torch.from_numpy(np.asarray(tile.convert("RGB")).copy()).permute(2, 0, 1) / 255
        # half a step of eight bits is the most that rounding may cost
        torch.testing.assert_close(pixels, image.expand(3, -1, -1), atol=0.5 / 255 + 1e-6, rtol=0)


def test_the_strip_is_the_tiles_side_by_side_with_no_gap(tmp_path):
    images = torch.stack([torch.zeros(3, 4, 5), torch.ones(3, 4, 5)])
    save_images(images, tmp_path / "strip.png")
    strip = np.asarray(Image.open(tmp_path / "strip.png"))
    assert strip.shape == (4, 10, 3)
    assert (strip[:, :5] == 0).all()
    assert (strip[:, 5:] == 255).all()


def test_values_outside_the_range_are_cut_off_and_nan_is_black(tmp_path):
    values = torch.tensor([-1.0, 2.0, math.nan, math.inf]).view(1, 1, 1, 4)
    save_images(values, tmp_path / "strip.png")
    assert np.asarray(Image.open(tmp_path / "strip.png")).tolist() == [[0, 255, 0, 255]]


@pytest.mark.parametrize("shape", [(3, 8, 8), (0, 3, 8, 8), (1, 2, 8, 8), (1, 1, 1, 8, 8)])
def test_refuses_what_is_not_a_batch_of_grey_or_colour_images(tmp_path, shape):
    with pytest.raises(ValueError, match="save_images: expected"):
        save_images(torch.zeros(shape), tmp_path / "strip.png")


def test_a_strip_of_another_tool_is_cut_into_squares(tmp_path):
    Image.new("RGB", (24, 8)).save(tmp_path / "strip.png")
    assert [tile.size for tile in read_tiles(tmp_path / "strip.png")] == [(8, 8)] * 3


def test_a_damaged_or_missing_strip_has_no_tiles(tmp_path):
    save_images(torch.rand(2, 3, 16, 16), tmp_path / "strip.png")
    whole = (tmp_path / "strip.png").read_bytes()
    for length in (0, 10, len(whole) // 2):
        (tmp_path / "cut.png").write_bytes(whole[:length])
        assert read_tiles(tmp_path / "cut.png") == []
    assert read_tiles(tmp_path / "nothing.png") == []
    assert read_tiles(None) == []


def test_large_tiles_are_scaled_down_for_a_page():
    noise = torch.randint(
        0, 256, (400, 400, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8
    )
    assert len(tile_uri(Image.fromarray(noise.numpy()))) < 120_000


def test_gallery_has_a_row_per_image_and_marks_the_closest_of_each_column(make_run):
    def change(result):
        raw, sent = result["attacks"]
        raw["psnr"], sent["psnr"] = [20.0, 30.0, 25.0], [9.0, 8.0, 7.0]

    rows = gallery_rows(load_run(make_run(batch=3, change=change)))
    assert column_names(rows) == ["without the defense", "with the defense"]
    assert [row.shots["without the defense"].worst for row in rows] == [False, True, False]
    assert [row.shots["with the defense"].worst for row in rows] == [True, False, False]
    assert [row.shots["with the defense"].caption.split(",")[0] for row in rows] == [
        "9.00 dB",
        "8.00 dB",
        "7.00 dB",
    ]


def test_gallery_shows_each_original_beside_its_own_reconstruction(make_run):
    rows = gallery_rows(load_run(make_run(batch=4, noise=0.0, seed=3)))
    truth = draw_pictures(4, 32, torch.Generator().manual_seed(3))
    for row, picture in zip(rows, truth, strict=True):
        expected = (picture.permute(1, 2, 0) * 255).round().to(torch.uint8).numpy()
        assert (np.asarray(row.original) == expected).all()
        assert (np.asarray(row.shots["with the defense"].tile) == expected).all()


def test_batches_that_leaked_most_come_first(make_run):
    def change(result):
        other = {**result["attacks"][1], "client": 5, "psnr": [40.0, 12.0]}
        result["attacks"] = [{**entry, "psnr": [10.0, 11.0]} for entry in result["attacks"]] + [other]

    rows = gallery_rows(load_run(make_run(change=change)))
    assert [row.title for row in rows] == [
        f"ig, round 1, client {c}, image {i}" for c in (5, 0) for i in (1, 2)
    ]


def test_an_adaptive_attack_gets_a_column_of_its_own(make_run):
    def change(result):
        result["attacks"].insert(0, {**result["attacks"][1], "adaptive": True})

    rows = gallery_rows(load_run(make_run(change=change)))
    assert column_names(rows) == [
        "without the defense",
        "with the defense",
        "with the defense, adaptive attacker",
    ]


def test_sums_and_single_clients_have_blocks_of_their_own(make_run, tmp_path):
    def change(result):
        with_secure_aggregation(result)
        masked, raw, total = result["attacks"]
        masked["psnr"], raw["psnr"], total["psnr"] = [9.0, 9.5], [30.0, 20.0], [12.0, 13.0]
        # another round has another number of clients, of whom one allows no audit
        unscored = {**total, "round": 3, "summed": 4, "truth": None, "psnr": None, "ssim": None}
        result["attacks"].append(unscored)

    rows = gallery_rows(load_run(make_run(change=change)))
    sums, single = gallery_blocks(rows)
    assert [row.title for row in sums] == [
        *(f"ig, round 1, 3 clients, image {i}" for i in (1, 2)),
        *(f"ig, round 3, 4 clients, image {i}" for i in (1, 2)),
    ]
    assert [row.title for row in single] == [f"ig, round 1, client 0, image {i}" for i in (1, 2)]
    assert column_names(sums) == ["from the sum"]
    assert column_names(single) == ["without the defense", "one client under masks"]
    # framed: the closest of what the server saw, and of the raw update; a guess is neither
    assert [row.shots["from the sum"].worst for row in sums] == [False, True, False, False]
    assert [row.shots["without the defense"].worst for row in single] == [True, False]
    assert not any(row.shots["one client under masks"].worst for row in single)
    plot_gallery(rows, tmp_path / "gallery.png")
    plot_gallery(single, tmp_path / "single.png")
    sizes = [Image.open(tmp_path / name).size for name in ("gallery.png", "single.png")]
    assert sizes[0][0] == sizes[1][0]
    assert sizes[0][1] == pytest.approx(3 * sizes[1][1], rel=0.1)


def test_gallery_picture_grows_with_its_rows_up_to_a_limit(make_run, tmp_path):
    rows = gallery_rows(load_run(make_run(batch=3)))
    heights = []
    for count in (1, 2, 3):
        plot_gallery(rows, tmp_path / "gallery.png", limit=count)
        heights.append(Image.open(tmp_path / "gallery.png").height)
    assert heights[0] < heights[1] < heights[2]
    assert heights[2] - heights[1] == pytest.approx(heights[1] - heights[0], abs=1)


@pytest.mark.parametrize("shape", [(10, 10), (1, 2), (300, 100)])
def test_partition_is_drawn_for_few_and_many_clients_and_depends_on_the_counts(tmp_path, shape):
    histogram = torch.randint(0, 50, shape, generator=torch.Generator().manual_seed(1))
    names = [f"class $ {i}" for i in range(shape[1])]
    drawn = []
    for index, counts in enumerate((histogram, histogram.flip(1))):
        plot_partition(counts, names, tmp_path / f"{index}.png")
        drawn.append((tmp_path / f"{index}.png").read_bytes())
    assert drawn[0] != drawn[1]
    assert max(Image.open(io.BytesIO(drawn[0])).size) < 1600


@pytest.mark.parametrize("shape", [(10,), (10, 9), (0, 10)])
def test_partition_refuses_a_histogram_that_does_not_fit_the_names(tmp_path, shape):
    with pytest.raises(ValueError, match="plot_partition: histogram must be"):
        plot_partition(torch.zeros(shape), ["x"] * 10, tmp_path / "partition.png")


@pytest.mark.parametrize("theme", [LIGHT, DARK])
@pytest.mark.parametrize("values", [[0.0], [1e-9, 1e18], [5.0, 5.0, 5.0], [0.0, 0.0]])
def test_charts_of_odd_values_are_drawn_without_a_warning(theme, values):
    curve = Curve("_$x_{2", list(range(len(values))), values, [0.0] * len(values))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pictures = [
            plot_accuracy([curve, curve], theme),
            plot_bytes(curve, Curve("down", [], []), 1e6, theme),
            plot_epsilon([curve, curve], 3.0, theme),
            plot_residual(curve, theme),
            plot_tradeoff([Point("a$", 1.0, v) for v in values], theme),
        ]
    assert all(Image.open(io.BytesIO(picture)).width > 600 for picture in pictures)


def test_charts_follow_the_theme():
    curve = Curve("a", [1, 2], [0.1, 0.2])
    corner = [
        Image.open(io.BytesIO(plot_residual(curve, theme))).convert("RGB").getpixel((0, 0))
        for theme in (LIGHT, DARK)
    ]
    assert corner == [(255, 255, 255), (0x1D, 0x20, 0x26)]


@pytest.fixture
def drawn(monkeypatch):
    """Return the figures in the place of their PNGs."""
    monkeypatch.setattr(charts, "png_bytes", lambda figure: figure)


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize(("server", "budget", "scale"), [(8.0, 3.0, "linear"), (90.0, 3.0, "log")])
def test_both_epsilons_and_the_budget_share_one_axis(server, budget, scale):
    curves = [Curve("models only", [1, 2, 3], [0.1, 1.0, 2.0]), Curve("the server", [1, 3], [1.0, server])]
    figure = plot_epsilon(curves, budget)
    (axes,) = figure.axes
    assert axes.get_yscale() == scale
    models, its, level = axes.get_lines()
    assert (list(models.get_ydata()), list(its.get_ydata())) == ([0.1, 1.0, 2.0], [1.0, server])
    assert set(level.get_ydata()) == {budget}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "models only",
        "the server",
        "budget",
    ]
    low, high = axes.get_ylim()
    assert low <= 0.1
    assert high >= server


@pytest.mark.usefixtures("drawn")
def test_one_epsilon_that_only_grows_stays_on_a_linear_scale():
    figure = plot_epsilon([Curve("ε", [1, 2], [0.1, 9.0])], None)
    assert figure.axes[0].get_yscale() == "linear"
    assert len(figure.axes[0].get_lines()) == 1
    assert not figure.legends
