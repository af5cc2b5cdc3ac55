"""The leakage table says what its cells say: means, best images, and the worse of both forms."""

import json

import torch
from PIL import Image
from safetensors.torch import save_file

from benchmarks.leakage_table import Cell, draw_gallery, format_table


def write(folder, defense, adaptive, psnr, labels="granted"):
    path = folder / f"ig-{defense}-{adaptive}-{labels}.json"
    content = {
        "attack": "ig",
        "defense": defense,
        "adaptive": adaptive,
        "labels": labels,
        "right_labels": 0.75,
        "psnr": psnr,
        "ssim": [value / 100 for value in psnr],
        "lpips": [1 - value / 100 for value in psnr],
        "notes": [],
    }
    path.write_text(json.dumps(content))
    images = torch.rand(len(psnr), 3, 4, 4, generator=torch.Generator().manual_seed(len(defense)))
    truth = torch.rand(len(psnr), 3, 4, 4, generator=torch.Generator().manual_seed(0))
    save_file({"images": images, "truth": truth}, path.with_suffix(".safetensors"))
    return Cell.read(path)


def test_a_row_has_means_best_images_and_the_worse_form_for_the_user(tmp_path):
    cells = [
        write(tmp_path, "none", False, [20.0, 30.0]),
        write(tmp_path, "dgp", False, [10.0, 12.0]),
        write(tmp_path, "dgp", True, [18.0, 20.0]),
        write(tmp_path, "int8", False, [20.0, 24.0]),
        write(tmp_path, "int8", True, [20.0, 22.0]),
    ]
    rows = [
        line for line in format_table(cells, ["none", "dgp", "int8", "sign"]).splitlines() if line[:1] == "|"
    ]
    assert rows[2] == "| none | 25.0 / 0.25 / 0.75 | 30.0 / 0.30 / 0.70 | the same |  | 25.0 dB |"
    assert rows[3].endswith("| 19.0 / 0.19 / 0.81 | 20.0 / 0.20 / 0.80 | 19.0 dB |")
    assert rows[4].endswith("| 21.0 / 0.21 / 0.79 | 22.0 / 0.22 / 0.78 | 22.0 dB (adaptive under-tuned) |")
    assert len(rows) == 5, "a defense without cells has no row"


def test_inferred_labels_stand_beside(tmp_path):
    table = format_table([write(tmp_path, "none", False, [20.0], labels="inferred")], ["none"])
    assert table.splitlines()[-1].endswith("| 20.0 dB | 75 % |")


def test_the_gallery_has_a_row_for_each_form(tmp_path):
    cells = [write(tmp_path, "none", False, [20.0, 30.0]), write(tmp_path, "dgp", True, [10.0, 12.0])]
    draw_gallery(cells, ["none", "dgp"], tmp_path / "gallery.png")
    with Image.open(tmp_path / "gallery.png") as picture:
        assert len(picture.convert("RGB").getcolors(maxcolors=2**20)) > 3 * 2 * 4 * 4
