"""The benchmark of R-GAP recovers small pictures, names the layer that is left open, and draws the errors."""

from functools import partial

import torch
from PIL import Image

from benchmarks import rgap
from benchmarks.rgap import draw_errors, main, recover
from fl_app.models import cnn6, fcn3


def pictures(count: int = 2) -> torch.Tensor:
    return torch.rand(count, 3, 12, 12, generator=torch.Generator().manual_seed(0))


def test_pictures_are_recovered_with_an_error_for_every_layer():
    for make, layers in ((cnn6, 7), (fcn3, 3)):
        for image in recover(make, pictures()):
            assert image.psnr > 80
            assert len(image.errors) == len(image.layers) == layers
            assert max(image.errors.values()) < 1e-3
            assert all(layer.determined for layer in image.layers)


def test_a_narrow_layer_is_where_the_error_begins():
    narrow = partial(cnn6, second=2)
    for image in recover(narrow, pictures()):
        assert next(layer.name for layer in image.layers if not layer.determined) == "conv2.weight"
        assert image.errors["conv3.weight"] < 1e-3 < 0.05 < image.errors["conv2.weight"]
        assert image.psnr < 30


def test_the_command_prints_its_tables_and_writes_the_picture(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(rgap, "photographs", lambda folder: pictures())
    main(tmp_path, tmp_path / "figures" / "rgap.png")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0] for line in lines[2:5]] == ["| CNN6", "| CNN6-d", "| FCN3"]
    assert sum(line.startswith("| conv2.weight") for line in lines) == 2
    with Image.open(tmp_path / "figures" / "rgap.png") as picture:
        assert picture.format == "PNG"
        assert picture.width > 600


def test_the_picture_shows_what_it_is_given():
    good, bad = recover(cnn6, pictures(1)), recover(partial(cnn6, second=2), pictures(1))
    assert draw_errors({"CNN6": good}) == draw_errors({"CNN6": good})
    assert draw_errors({"CNN6": good}) != draw_errors({"CNN6": bad})


def test_without_photographs_it_says_where_they_were_expected(tmp_path, capsys):
    main(tmp_path / "nowhere")
    assert "expected the photographs of CIFAR-10 at" in capsys.readouterr().out
