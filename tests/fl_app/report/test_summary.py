import json

from run_folders import with_two_classes, with_validation, write_run

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
    page = write_report(folder).read_text()
    assert "Without the defense, same seed: 65.0 %" in page
    best = json.loads((folder / BASELINE / "result.json").read_text())["summary"]["best_accuracy"]
    assert f"at best {100 * best:.1f} % (chosen by test). " in page
    assert "That is 3.8 points less with the defense" in page
    assert "fl-app-report A B" not in page
