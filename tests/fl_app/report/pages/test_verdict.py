"""The first sentence of a page says what the numbers say."""

import pytest
from run_folders import write_run

from fl_app.report.pages.verdict import verdict_sentence
from fl_app.results import load_run


def said(folder, undefended, defended):
    def change(result):
        for attack in result["attacks"]:
            scores = undefended if attack["update"] == "undefended" else defended
            attack["ssim"] = [scores] * len(attack["ssim"])
            attack["psnr"] = [10.0] * len(attack["psnr"])

    return verdict_sentence(load_run(write_run(folder, rounds=2, change=change)))


@pytest.mark.parametrize(
    ("undefended", "defended", "recognised", "too_weak"),
    [(0.9, 0.9, "2 of 2", False), (0.9, 0.1, "0 of 2", False), (0.1, 0.1, "0 of 2", True)],
)
def test_an_attack_that_fails_anyway_does_not_speak_for_the_defense(
    tmp_path, undefended, defended, recognised, too_weak
):
    sentence = said(tmp_path, undefended, defended)
    assert recognised in sentence
    assert ("raw update" in sentence) == too_weak
    assert ("still" in sentence) == (recognised == "2 of 2")
