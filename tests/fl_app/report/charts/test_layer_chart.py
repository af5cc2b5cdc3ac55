"""The picture of where coordinates fall."""

import io

import numpy as np
import pytest
from PIL import Image

from fl_app.report.charts.canvas import DARK, LIGHT
from fl_app.report.charts.layer_chart import plot_layers, save_layers

SIZES = {
    "conv1.weight": 800,
    "conv1.bias": 32,
    "hidden.weight": 1_605_632,
    "output.weight": 5120,
    "output.bias": 10,
}
CHOSEN = {
    "conv1.weight": 640,
    "conv1.bias": 0,
    "hidden.weight": 6000,
    "output.weight": 1670,
    "output.bias": 6,
}


def blue(png: bytes, theme=LIGHT) -> int:
    """How many pixels the bars have."""
    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)
    colour = [int(theme.series[0][i : i + 2], 16) for i in (1, 3, 5)]
    return int((abs(pixels - colour).sum(axis=2) < 30).sum())


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_it_is_a_picture_whose_bars_grow_with_what_was_chosen(theme):
    few = plot_layers({"a": 10, "b": 50}, {"a": 100, "b": 100}, theme)
    more = plot_layers({"a": 40, "b": 50}, {"a": 100, "b": 100}, theme)
    assert blue(more, theme) > 1.3 * blue(few, theme)


def test_shares_far_apart_a_layer_without_any_and_names_with_signs_are_drawn(tmp_path):
    save_layers(CHOSEN, SIZES, tmp_path / "new" / "layers.png")
    assert blue((tmp_path / "new" / "layers.png").read_bytes()) > 1000
    assert plot_layers({"_$a$": 0, "b": 0}, {"_$a$": 3, "b": 1})[:4] == b"\x89PNG"
    assert blue(plot_layers({"all": 7}, {"all": 7})) > 1000


def test_counts_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"plot_layers: a: expected 0 to 3 coordinates, got 4"):
        plot_layers({"a": 4}, {"a": 3})
    with pytest.raises(ValueError, match=r"expected counts of \['a'\], got \['b'\]"):
        plot_layers({"b": 1}, {"a": 3})
