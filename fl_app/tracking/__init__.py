"""Copy of a run for TensorBoard, MLflow or Weights & Biases: rounds, bytes, ε, leaks and galleries.

Each is an optional extra (``pip install 'fl-app[tensorboard]'``), imported only where it is asked for, and
asked for before the run starts. What is copied is `result.json` with its pictures, after the run ended.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from fl_app.results import Run, load_run
from fl_app.results.attack import METRICS

TRACKERS = {"tensorboard": "tensorboard", "mlflow": "mlflow", "wandb": "wandb"}
"""Packages by choice."""
_OF_ROUNDS = (
    *("accuracy", "loss", "train_loss", "validation_accuracy", "uplink_bytes", "downlink_bytes"),
    *("epsilon", "epsilon_server", "residual_norm", "seconds"),
)


class Value(NamedTuple):
    """One number at one round."""

    name: str
    step: int
    value: float


def check_tracker(choice: str | None) -> None:
    """Raise a ValueError if the package of the choice is not installed, or there is no such choice."""
    if choice is None:
        return
    if choice not in TRACKERS:
        raise ValueError(f"log: expected one of {', '.join(TRACKERS)} or null, got {choice!r}")
    if importlib.util.find_spec(TRACKERS[choice]) is None:
        raise ValueError(f"log: {choice} is not installed; get it with: pip install 'fl-app[{choice}]'")


def copy_run(folder: Path, choice: str) -> None:
    """Copy the run in ``folder`` to the tracker of this name."""
    run = load_run(folder)
    {"tensorboard": _to_tensorboard, "mlflow": _to_mlflow, "wandb": _to_wandb}[choice](run)


def values_of(run: Run) -> Iterator[Value]:
    """Go through the run's numbers: those of rounds, then scores of attacks as means over their pictures."""
    for row in run.rounds:
        for name in _OF_ROUNDS:
            if (value := getattr(row, name, None)) is not None:
                yield Value(f"round/{name}", row.round, float(value))
    for attack in run.attacks:
        form = "adaptive" if attack.adaptive else "plain"
        for metric in METRICS:
            known = [score for score in attack.scores(metric) if score is not None]
            if known:
                name = f"leak/{attack.update}/{attack.name}-{form}/client{attack.sender}/{metric}"
                yield Value(name, attack.round or 0, sum(known) / len(known))


def _pictures(run: Run) -> list[Path]:
    return [path for name in ("gallery.png", "accuracy.png") if (path := run.folder / name).is_file()]


def _settings(run: Run) -> dict[str, str]:
    plain = {key: str(value)[:250] for key, value in run.config.items() if not isinstance(value, dict)}
    return plain | {f"choices.{group}": str(name) for group, name in run.config.get("choices", {}).items()}


def _to_tensorboard(run: Run) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(run.folder / "tensorboard"))
    for name, step, value in values_of(run):
        scalar = Summary.Value(tag=name, simple_value=value)
        writer.add_event(Event(step=step, summary=Summary(value=[scalar])))
    for path in _pictures(run):
        image = Summary.Image(encoded_image_string=path.read_bytes(), colorspace=3)
        summary = Summary(value=[Summary.Value(tag=path.stem, image=image)])
        writer.add_event(Event(step=len(run.rounds), summary=summary))
    writer.close()


def _to_mlflow(run: Run) -> None:
    import mlflow

    # a folder of plain files is refused by recent releases; SQLite needs no server either
    where = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{Path('mlflow.db').resolve()}"
    client = mlflow.MlflowClient(tracking_uri=where)
    found = client.get_experiment_by_name("fl-app")
    experiment = client.create_experiment("fl-app") if found is None else found.experiment_id
    made = client.create_run(experiment, run_name=run.folder.name)
    for name, text in _settings(run).items():
        client.log_param(made.info.run_id, name, text)
    for name, step, value in values_of(run):
        client.log_metric(made.info.run_id, name, value, step=step)
    for path in _pictures(run):
        client.log_artifact(made.info.run_id, str(path))
    client.set_terminated(made.info.run_id, "FINISHED" if run.status == "finished" else "FAILED")


def _to_wandb(run: Run) -> None:
    import wandb

    # offline unless the user asks for more: nothing leaves the machine by itself
    mode: Any = os.environ.get("WANDB_MODE", "offline")
    with wandb.init(
        project="fl-app", name=run.folder.name, config=_settings(run), dir=str(run.folder), mode=mode
    ) as made:
        by_step: dict[int, dict[str, float]] = {}
        for name, step, value in values_of(run):
            by_step.setdefault(step, {})[name] = value
        for step in sorted(by_step):
            made.log(by_step[step], step=step)
        for path in _pictures(run):
            made.log({path.stem: wandb.Image(str(path))})
