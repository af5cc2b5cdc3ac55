import json

from parsed_page import ParsedPage
from run_folders import with_secure_aggregation, with_two_classes, with_validation, write_run

from fl_app.report import BASELINE, summary_lines, write_report


def test_the_lines_carry_the_numbers_of_the_run(tmp_path):
    folder = write_run(tmp_path / "run", rounds=3, batch=2)
    result = json.loads((folder / "result.json").read_text())
    text = "\n".join(summary_lines(folder))
    worst = {a["update"]: max(a["psnr"]) for a in result["attacks"]}
    assert f"leak before the defense: PSNR {worst['undefended']:.2f} dB" in text
    assert f"leak as sent (dgp): PSNR {worst['defended']:.2f} dB" in text
    assert f"{100 * result['summary']['accuracy']:.1f} % after 3 rounds" in text
    assert f"best {100 * result['summary']['best_accuracy']:.1f} % (chosen by test)" in text
    assert "balanced" not in text


def test_with_secure_aggregation_the_sum_is_what_was_sent(tmp_path):
    def change(result):
        with_secure_aggregation(result)
        masked, raw, total = result["attacks"]
        masked["psnr"], raw["psnr"], total["psnr"] = [9.0, 9.5], [30.0, 20.0], [12.0, 13.25]
        result["attacks"].append({**total, "summed": 4, "psnr": None, "ssim": None})

    lines = summary_lines(write_run(tmp_path / "run", rounds=2, change=change))
    before, sent, masked, accuracy, *_ = lines
    assert before.startswith("leak before the defense: PSNR 30.00 dB")
    words = "leak as sent (fl_top + dp=client + secagg=on), the sum of 3 clients: PSNR 13.25 dB"
    assert sent.startswith(words)
    assert masked.startswith("leak of one client under masks, which is noise: PSNR 9.50 dB")
    assert accuracy.startswith("accuracy")


def test_two_classes_and_validation_samples_are_told(tmp_path):
    def change(result):
        with_two_classes(result)
        with_validation(result)

    folder = write_run(tmp_path / "run", rounds=3, change=change)
    summary = json.loads((folder / "result.json").read_text())["summary"]
    text = "\n".join(summary_lines(folder))
    assert f"best {100 * summary['best_accuracy']:.1f} % (chosen by validation)" in text
    balanced = f"{100 * summary['balanced_accuracy']:.1f} %"
    assert f"balanced accuracy: {balanced}; AUROC {summary['auroc']:.3f}" in text


def test_a_run_without_attacks_or_rounds_still_has_a_summary(tmp_path):
    def empty(result):
        result["attacks"], result["rounds"], result["summary"] = [], [], {}

    lines = summary_lines(write_run(tmp_path / "run", rounds=1, batch=1, change=empty))
    assert not any(line.startswith("leak") for line in lines)
    assert lines[0].startswith("accuracy: –")


def test_the_baseline_in_a_runs_folder_says_what_the_defense_cost(tmp_path):
    def reached(accuracy):
        def change(result):
            result["summary"]["accuracy"] = accuracy

        return change

    folder = write_run(tmp_path / "run", rounds=2, change=reached(0.612))
    assert "without the defense" not in summary_lines(folder)[2]
    write_run(folder / BASELINE, defense="none", rounds=2, change=reached(0.65))
    assert summary_lines(folder)[2].endswith("without the defense 65.0 %")
    path = write_report(folder)
    page, values = path.read_text(), ParsedPage(path).values
    assert (values["baseline-accuracy"], values["accuracy-change"]) == ("65.0 %", "-3.8")
    best = json.loads((folder / BASELINE / "result.json").read_text())["summary"]["best_accuracy"]
    assert f"{100 * best:.1f} % (chosen by test)" in page
    assert "fl-app-report A B" not in page


def test_each_form_of_each_attack_has_a_line_with_its_own_score(tmp_path):
    def three_forms(result):
        raw, sent = result["attacks"]
        raw["psnr"], sent["psnr"] = [30.0, 20.0], [12.0, 13.25]
        adaptive = {**sent, "adaptive": True, "psnr": [19.5, 18.0]}
        result["attacks"] = [raw, sent, adaptive, {**sent, "attack": "dlg", "psnr": [None, 9.0]}]

    lines = summary_lines(write_run(tmp_path / "run", rounds=2, change=three_forms))
    forms = ["dlg plain", "ig adaptive", "ig plain"]
    for form, psnr in zip(forms, ["9.00", "19.50", "13.25"], strict=True):
        (line,) = [line for line in lines[1:4] if f"({form}," in line]
        assert line.startswith(f"leak as sent (dgp): PSNR {psnr} dB")
