"""The table of active attacks says what the runs say."""

import json

import pytest

from benchmarks.active_leakage import LEAKY, SAFE, Cell, _cells, _order


def entry(adaptive: bool, psnr: list[float | None]) -> dict:
    ssim = [None if value is None else value / 100 for value in psnr]
    return {"adaptive": adaptive, "psnr": psnr, "ssim": ssim, "lpips": psnr, "images": None, "truth": None}


def write(folder, attacks: list[dict]) -> None:
    (folder / "result.json").write_text(json.dumps({"attacks": attacks}))


def test_images_that_were_not_found_count_as_unlike(tmp_path):
    write(tmp_path, [entry(False, [80.0, None]), entry(False, [40.0, None]), entry(True, [90.0, 60.0, 0.0])])
    (_, _, plain), (_, adaptive, other) = _cells(tmp_path, "dgp")
    assert plain.forms == "plain"
    assert plain.recovered == 1 / 4
    assert plain.likeness == pytest.approx((0.8 + 0.4) / 4)
    assert adaptive
    assert other.forms == "adaptive"
    assert other.likeness == pytest.approx(0.5)


def test_attackers_who_get_the_same_share_a_row(tmp_path):
    write(tmp_path, [entry(False, [80.0]), entry(True, [80.0])])
    ((name, _, cell),) = _cells(tmp_path, "none")
    assert (name, cell.forms) == ("none", "both")


def test_the_order_is_that_of_the_least_leaky_and_the_least_safe():
    cells = {(name, False): Cell([90.0], [0.5], [0.1], None, None) for name in LEAKY}
    cells |= {(name, False): Cell([10.0], [0.2], [0.1], None, None) for name in SAFE}
    assert _order(cells).count(": holds") == 2
    cells[SAFE[1], True] = Cell([10.0], [0.6], [0.1], None, None)
    assert ": holds" in _order(cells).splitlines()[0]
    assert f"does not hold ({LEAKY[0]} 0.500, {SAFE[1]} 0.600)" in _order(cells).splitlines()[1]
