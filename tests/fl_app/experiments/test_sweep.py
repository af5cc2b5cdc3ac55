"""Sweeps in this process: real runs, a few rounds long, that are interrupted, fail, and are gone on with."""

import json
from contextlib import ExitStack
from pathlib import Path

import pytest
from cut_runs import strike_defense
from federations import SMALL
from omegaconf import OmegaConf

from fl_app.config.compose import compose, join_overrides, split_overrides
from fl_app.experiments import sweep
from fl_app.experiments.job import is_done
from fl_app.experiments.sweep import Cell, cell_name, run_sweep
from fl_app.report import comparison_rows
from fl_app.storage.locks import claim

DEFENSES = ("none", "topk")


def cells(folder: Path, *more: str, defenses=DEFENSES) -> list[Cell]:
    return [Cell([*split_overrides(SMALL), *more, f"defense={name}"], folder) for name in defenses]


def run(planned: list[Cell]) -> tuple[sweep.SweepEnd, list[str]]:
    lines: list[str] = []
    return run_sweep(planned, lines.append), lines


def read(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def without_timings(value):
    """Return a result without its times, and without what says how it came to its end."""
    if isinstance(value, dict):
        left_out = ("seconds", "checkpoint", "resumed")
        return {key: without_timings(item) for key, item in value.items() if key not in left_out}
    return [without_timings(item) for item in value] if isinstance(value, list) else value


def folder_of(cell: Cell) -> Path:
    config = OmegaConf.to_container(compose(join_overrides(cell.overrides)))
    return cell.sweep_folder / cell_name(config)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    end, _ = run(cells(tmp_path_factory.mktemp("whole")))
    return end


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_sweep_that_was_interrupted_goes_on_to_the_same_results(
    tmp_path, monkeypatch, uninterrupted, checkpoint
):
    planned = cells(tmp_path, f"checkpoint={str(checkpoint).lower()}")
    with monkeypatch.context() as patch:
        strike_defense(patch, KeyboardInterrupt(), defense="topk")
        with pytest.raises(KeyboardInterrupt):
            run(planned)
    first, second = map(folder_of, planned)
    assert (read(first)["status"], read(second)["status"]) == ("finished", "interrupted")
    (second / "left over").write_text("of the run that was cut short")
    written = (first / "result.json").stat().st_mtime_ns

    end, lines = run(planned)

    assert [line.split(" in ")[0] for line in lines] == [
        "cell 1 of 2: defense=none: skipped, finished already",
        "cell 2 of 2: defense=topk: finished",
    ]
    assert end.finished == [first, second]
    assert (first / "result.json").stat().st_mtime_ns == written
    # a run that starts over leaves nothing of the one that was cut short
    assert (second / "left over").exists() is checkpoint
    whole = [without_timings(read(folder)) for folder in uninterrupted.finished]
    assert [without_timings(read(folder)) for folder in end.finished] == whole
    accuracies = [row.accuracy for row in comparison_rows(uninterrupted.finished)]
    assert [row.accuracy for row in comparison_rows(end.finished)] == accuracies
    assert not list(tmp_path.glob("*.lock"))


def test_a_cell_that_fails_is_named_does_not_stop_the_others_and_is_run_again(tmp_path, monkeypatch):
    planned = cells(tmp_path, "rounds=2", defenses=("none", "topk"))
    planned.insert(0, Cell([*planned[0].overrides, "fraction=2"], tmp_path))  # no strategy can be built
    with monkeypatch.context() as patch:
        strike_defense(patch, RuntimeError("out of memory"), defense="none")
        end, lines = run(planned)
    assert end.failed == ["defense=none fraction=2", "defense=none"]
    assert end.finished == [folder_of(planned[2])]
    assert "fraction_train must be in" in lines[0]
    assert lines[1].endswith("RuntimeError: out of memory")
    assert read(folder_of(planned[1]))["status"] == "failed"

    end, lines = run(planned)
    assert end.failed == ["defense=none fraction=2"]
    assert end.finished == [folder_of(planned[1]), folder_of(planned[2])]
    assert lines[2] == "cell 3 of 3: defense=topk: skipped, finished already"


def test_a_changed_setting_is_another_cell_and_leaves_the_old_one_alone(uninterrupted):
    old = uninterrupted.finished[0]
    before = (old / "result.json").read_bytes()
    end, lines = run(cells(old.parent, "lr=0.2", defenses=["none"]))
    assert "finished in" in lines[0]
    assert end.finished != [old]
    assert read(end.finished[0])["config"]["lr"] == 0.2
    assert (old / "result.json").read_bytes() == before


def test_what_another_process_works_on_is_left_to_it_and_come_back_to(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "_LOOK_AGAIN_SECONDS", 0.01)
    planned = cells(tmp_path, "rounds=1", defenses=("none", "topk"))
    locked = folder_of(planned[0])
    lines: list[str] = []
    with ExitStack() as other_process:
        assert other_process.enter_context(claim(locked.with_name(f"{locked.name}.lock"))) is None

        def say(line: str) -> None:
            lines.append(line)
            if line.startswith("cell 2"):
                other_process.close()

        end = run_sweep(planned, say)
    assert [line.split(": ", 2)[2].split()[0] for line in lines] == ["left", "finished", "finished"]
    assert [line[:6] for line in lines] == ["cell 1", "cell 2", "cell 1"]
    assert end.finished == [folder_of(cell) for cell in planned]


def test_a_job_is_not_done_before_its_baseline_and_its_report(tmp_path):
    (cell,) = cells(tmp_path, "rounds=1", "baseline=true", defenses=["topk"])
    (folder,) = run([cell])[0].finished
    config = OmegaConf.to_container(compose(join_overrides(cell.overrides)))
    assert is_done(folder, config, sweep=True)
    for part in ("report.html", "baseline/result.json", "result.json"):
        content = (folder / part).read_bytes()
        (folder / part).unlink()
        assert not is_done(folder, config, sweep=True), part
        (folder / part).write_bytes(content)
    (folder / "result.json").write_bytes(content[: len(content) // 2])
    assert not is_done(folder, config, sweep=True)


def test_a_sweep_refuses_one_folder_for_all_its_cells(tmp_path):
    end, lines = run(cells(tmp_path, "run_dir=x", defenses=["none"]))
    assert not end.finished
    assert "run_dir: a sweep names the folders of its cells" in lines[0]


def test_a_cell_is_named_by_defense_privacy_seed_and_hash():
    config = {"choices": {"defense": "fl_top", "dp": "client"}, "seed": 3}
    name, _, digits = cell_name(config).rpartition("-")
    assert name == "fl_top-client-s3"
    assert len(digits) == 8
    assert cell_name({"choices": {"defense": "topk", "dp": "none"}, "seed": 0}).startswith("topk-s0-")
