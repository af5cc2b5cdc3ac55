"""Copies of a run: every tracker that is installed holds the run's own numbers."""

from __future__ import annotations

import math

import pytest
from run_folders import write_run

from fl_app.report import write_report
from fl_app.results import load_run
from fl_app.tracking import check_tracker, copy_run, values_of


@pytest.fixture
def run(tmp_path):
    folder = write_run(tmp_path / "run", rounds=3)
    write_report(folder)
    return load_run(folder)


def test_values_are_those_of_the_rounds_and_of_the_attacks(run):
    values = list(values_of(run))
    accuracies = [v.value for v in values if v.name == "round/accuracy"]
    assert accuracies == [row.accuracy for row in run.rounds if row.accuracy is not None]
    leaks = {v.name.split("/")[1] for v in values if v.name.startswith("leak/")}
    assert leaks == {"undefended", "defended"}
    assert all(math.isfinite(v.value) for v in values)


def test_an_unknown_or_missing_tracker_is_refused_by_name(monkeypatch):
    check_tracker(None)
    with pytest.raises(ValueError, match="tensorbord"):
        check_tracker("tensorbord")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="fl-app\\[mlflow\\]"):
        check_tracker("mlflow")


def test_tensorboard_reads_the_numbers_and_the_gallery(run):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    copy_run(run.folder, "tensorboard")
    found = EventAccumulator(str(run.folder / "tensorboard"))
    found.Reload()
    shown = [(event.step, event.value) for event in found.Scalars("round/uplink_bytes")]
    assert shown == [(row.round, pytest.approx(row.uplink_bytes)) for row in run.rounds]
    assert "gallery" in found.Tags()["images"]


def test_mlflow_reads_the_numbers_and_the_gallery(run, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    copy_run(run.folder, "mlflow")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    (made,) = client.search_runs([client.get_experiment_by_name("fl-app").experiment_id])
    history = client.get_metric_history(made.info.run_id, "round/uplink_bytes")
    assert [(m.step, m.value) for m in history] == [(r.round, float(r.uplink_bytes)) for r in run.rounds]
    assert "gallery.png" in {one.path for one in client.list_artifacts(made.info.run_id)}


def test_wandb_writes_offline(run, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    copy_run(run.folder, "wandb")
    assert list(run.folder.glob("wandb/offline-run-*/*.wandb"))
