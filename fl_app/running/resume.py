"""State that must outlive the server of a run: saved after rounds, and restored by a resume."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from flwr.app import RecordDict
from flwr.serverapp import Grid
from torch import nn

from fl_app.adversary.passive import PassiveServer
from fl_app.client.records import from_tree, to_tree
from fl_app.client.state import check
from fl_app.config.build import ServerParts
from fl_app.config.compose import ConfigError, split_overrides
from fl_app.config.hash import hash_config
from fl_app.console.interruption import asked_to_stop
from fl_app.results import RESULT, Resumed, Round, Run
from fl_app.running.checkpoint import (
    SECONDS_BETWEEN,
    Checkpoint,
    Saved,
    on_device,
    own_overrides,
    read_checkpoint,
    refuse_differences,
    unusable,
)
from fl_app.running.ownership import MODEL, refuse_folders
from fl_app.running.result import Results, find_run, versions
from fl_app.strategies import FedSGD
from fl_app.strategies.begun import Begun
from fl_app.strategies.persistence import Rehearsal

logger = logging.getLogger(__name__)


@runtime_checkable
class ResidentClients(Protocol):
    """A grid whose clients live and die with the server, as those of the inline engine do."""

    def memories(self) -> dict[int, RecordDict]:
        """Return what the clients remember."""
        ...

    def restore(self, memories: Mapping[int, RecordDict]) -> None:
        """Let the clients remember."""
        ...


class Past(NamedTuple):
    """State of a run before its interruption."""

    saved: Saved
    begun: Begun | None
    reason: str
    resumed: list[Resumed]
    """Earlier times; result.json may know of some after the checkpoint."""
    is_finished: bool
    """Whether the run had its result, and only its pages and the end of its checkpoint are missing."""


def read_past(config: dict[str, Any], folder: Path) -> Past:
    """Return the past of the run in the claimed ``folder``; ``config`` becomes that run's."""
    saved, begun = read_checkpoint(folder)
    refuse_folders(folder)
    if saved.refusal is not None:
        raise ConfigError(f"resume: {folder}: {saved.refusal}")
    refuse_differences(saved.config, config)
    if config["checkpoint"] is False:
        raise ConfigError("checkpoint: a run that is resumed goes on making them: expected auto or true")
    config["run_dir"] = saved.config["run_dir"]
    run = find_run(folder)
    status = "running" if run is None else run.status or "running"
    reason = "killed" if run is None or status == "running" else run.error or status
    resumed = [Resumed.model_validate(entry) for entry in saved.resumed]
    later = [] if run is None else run.resumed or []
    finished = run is not None and status == "finished" and run.config_hash == hash_config(saved.config)
    if finished and run is not None and not _is_of(run, saved, folder):
        raise ConfigError(
            f"resume: {folder / RESULT}: is finished, and not the result of this folder's checkpoint; "
            "nothing was changed. To go on from the checkpoint, move that file away"
        )
    return Past(saved, begun, reason, max(resumed, later, key=len), finished)


class LastingRun:
    """One run that may be killed at any time."""

    def __init__(
        self,
        grid: Grid,
        parts: ServerParts,
        overrides: str,
        results: Results,
        auditor: PassiveServer,
        past: Past | None = None,
    ) -> None:
        self._parts, self._results, self._auditor = parts, results, auditor
        self._overrides = own_overrides(split_overrides(overrides))
        self._resident = grid if isinstance(grid, ResidentClients) else None
        strategy = parts.strategy
        self._rehearsal = Rehearsal(strategy)
        strategy.run_key = "" if self._resident else os.urandom(16).hex()
        self._repeats = self._resident is not None and strategy.repeats
        """Whether rounds may be trained again: they give the same bits, and reveal nothing new."""
        self._past = past
        self._checkpoint = self._checkpoint_of(parts.config["checkpoint"])
        if self._checkpoint is not None and not self._repeats:
            strategy.on_begin = self._checkpoint.begin
        if self._checkpoint is not None and past is not None:
            try:
                self._recall(past, self._checkpoint)
            except Exception as error:  # whatever a damaged value makes the parts meet
                raise unusable(error) from error
        if strategy.run_key:
            results.run.run = strategy.run_key

    def begin(self) -> None:
        """Write the first result, of a resumed run with its earlier rounds; nothing was written before."""
        past, checkpoint, strategy = self._past, self._checkpoint, self._parts.strategy
        self._results.begin()
        if past is None or checkpoint is None:
            return
        done = past.saved.rows[-1]["round"] if past.saved.rows else 0
        self._say_what_differs(past.saved, done)
        begun = past.begun
        if begun is not None and not self._repeats and begun.round == done + 1:
            strategy.begin_again(begun)
            self._save(checkpoint)

    def round_ended(self, server_round: int) -> None:
        """Make a checkpoint if it is time for one; round 0 is the start."""
        checkpoint = self._checkpoint
        if asked_to_stop():
            if server_round:
                self.save_now()
            raise KeyboardInterrupt
        if checkpoint is None or not checkpoint.is_due or (server_round == 0 and self._repeats):
            return
        self._save(checkpoint)

    def save_now(self) -> None:
        """Make a checkpoint whether it is time for one or not; only between rounds."""
        if self._checkpoint is not None:
            self._save(self._checkpoint)

    def end(self) -> None:
        """Remove the checkpoint of a finished run: there is nothing to resume."""
        if self._checkpoint is not None:
            self._checkpoint.remove()

    def _checkpoint_of(self, wanted: bool | str) -> Checkpoint | None:
        if wanted is False:
            return None
        # a client keeps only its memories around its last two answers
        seconds = SECONDS_BETWEEN if wanted == "auto" and self._repeats else 0.0
        return Checkpoint(self._results.folder, self._parts.spec, self._parts.public, seconds=seconds)

    def _recall(self, past: Past, checkpoint: Checkpoint) -> None:
        """Take over the state of the checkpoint, in memory alone: it may turn out to be unusable."""
        saved, strategy = past.saved, self._parts.strategy
        strategy.restore(on_device(saved.strategy, next(self._parts.model.parameters()).device))
        _check_weights(strategy, self._parts.model)
        strategy.run_key = saved.run_key
        self._auditor.sightings[:] = checkpoint.go_on(saved)
        self._auditor.notes[:] = saved.notes
        if self._resident is not None and saved.clients is not None:
            memories = {client: from_tree(tree) for client, tree in saved.clients.items()}
            for memory in memories.values():
                check(memory)
            self._resident.restore(memories)
        rows = [Round.model_validate(row) for row in saved.rows]
        at = datetime.now().isoformat(timespec="seconds")
        entry = Resumed(round=rows[-1].round if rows else 0, at=at, reason=past.reason)
        self._results.resume(rows, saved.seconds, [*past.resumed, entry])

    def _save(self, checkpoint: Checkpoint) -> None:
        strategy, results, auditor = self._parts.strategy, self._results, self._auditor
        memories = None if self._resident is None else self._resident.memories()
        history = strategy.history()
        refusal = self._rehearsal.refusal(history)
        if refusal is not None and refusal not in results.run.notes:
            logger.warning("%s", refusal)
            results.run.notes.append(refusal)
        state = Saved(
            config=self._parts.config,
            overrides=self._overrides,
            versions=versions(),
            run_key=strategy.run_key,
            strategy=history if refusal is None else {},
            refusal=refusal,
            rows=[row.as_json() for row in results.run.rounds],
            seconds=results.seconds,
            resumed=[entry.as_json() for entry in results.run.resumed or []],
            notes=auditor.notes,
            seen=[(sighting.order.round, sighting.order.client) for sighting in auditor.sightings],
            clients=None if memories is None else {client: to_tree(m) for client, m in memories.items()},
        )
        checkpoint.save(state, auditor.sightings)

    def _say_what_differs(self, saved: Saved, done: int) -> None:
        notes, now = [], versions()
        changed = [
            f"{name} {saved.versions.get(name)} is {now.get(name)}"
            for name in sorted(saved.versions.keys() | now.keys())
            if saved.versions.get(name) != now.get(name)
        ]
        if changed:
            notes.append(f"resumed with other versions, so the last bits may differ: {', '.join(changed)}")
        if self._resident is None:
            notes.append(
                f"resumed after round {done}: clients that keep no memory on their disks (state-dir) "
                "have forgotten what they had not sent by then"
            )
        for note in notes:
            logger.warning("%s", note)
        self._results.run.notes += notes


def _is_of(run: Run, saved: Saved, folder: Path) -> bool:
    """Say whether a result continues the rounds of a checkpoint, which no two runs take as long for."""
    times = [(row.round, row.seconds) for row in run.rounds[: len(saved.rows)]]
    same = times == [(row["round"], row.get("seconds")) for row in saved.rows]
    return same and (folder / MODEL).is_file()


def _check_weights(strategy: FedSGD, model: nn.Module) -> None:
    """Refuse, as a ValueError, weights that are not those of this model; before round 1 there are none."""
    own = model.state_dict()
    for name, tensor in (strategy.weights | strategy.buffers).items():
        if name not in own or (own[name].shape, own[name].dtype) != (tensor.shape, tensor.dtype):
            raise ValueError(f"its model's {name} does not fit the model of its config")
