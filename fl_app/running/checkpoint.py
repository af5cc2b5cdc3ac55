"""A run's checkpoint: everything that a killed server needs to go on after the last round that it finished.

It lies in ``checkpoint/`` of the run's folder and is removed when the run is finished. One file holds the
state, and is replaced in one step; the sightings of attacked clients lie beside it, written
before that step, once. A third file notes the coming requests of the current round, where
asking twice would be a second release.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from fl_app.adversary.passive import Public, Sighting
from fl_app.adversary.sightings import load_sightings, save_sightings
from fl_app.config.compose import ConfigError, key_of
from fl_app.config.hash import what_counts
from fl_app.models import ModelSpec
from fl_app.results import Resumed, Round, Row
from fl_app.running.ownership import CHECKPOINT, STATE, remove_checkpoint
from fl_app.storage.fingerprint import hash_json
from fl_app.storage.plain_folder import refuse_links
from fl_app.storage.tree_file import DamagedFile, Tree, read_tree, replace_file, sync, write_tree
from fl_app.strategies.begun import Begun

SECONDS_BETWEEN = 30.0
"""Seconds between automatic checkpoints in-process."""
_SHARE_OF_TIME = 0.05
"""Largest share of time spent on checkpoints."""
_BEGUN, _CHECKSUM = "begun.json", "checksum"
VERSION = 4
_ALLOWED = ("timeout",)
"""Settings that a resume may change, beside those that do not affect the numbers."""


_Holds = Callable[[Any], bool]


def _lists(holds: _Holds) -> _Holds:
    return lambda value: isinstance(value, list) and all(map(holds, value))


def _is(*kinds: type) -> _Holds:
    return lambda value: type(value) in kinds  # a truth value is no number here


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(_is(int), value))


def _fits(kind: type[Row]) -> _Holds:
    def holds(value: Any) -> bool:
        try:
            return bool(kind.model_validate(value))
        except ValidationError:
            return False

    return holds


_SAVED: Mapping[str, _Holds] = {
    "config": _is(dict),
    "overrides": _lists(_is(str)),
    "versions": _is(dict),
    "run_key": _is(str),
    "strategy": _is(dict),
    "refusal": _is(str, type(None)),
    "rows": _lists(_fits(Round)),
    "seconds": _is(float, int),
    "resumed": _lists(_fits(Resumed)),
    "notes": _lists(_is(str)),
    "seen": _lists(_is_pair),
    "clients": _is(dict, type(None)),
}
_NOTED: Mapping[str, _Holds] = {
    "round": _is(int),
    "attempt": _is(int),
    "clients": _lists(_is(int)),
    "unmasking": _is(bool),
}


def has_checkpoint(folder: Path) -> bool:
    """Say whether a run's folder has a checkpoint to resume from."""
    return (folder / CHECKPOINT / STATE).is_file()


@dataclass(frozen=True)
class Saved:
    """Content of a checkpoint."""

    config: dict[str, Any]
    overrides: list[str]
    """Those that the run was started with, without those that say where."""
    versions: dict[str, str]
    run_key: str
    strategy: dict[str, Tree]
    refusal: str | None
    """Why the run cannot be resumed: its strategy keeps something that no checkpoint holds."""
    rows: list[dict[str, Any]]
    seconds: float
    resumed: list[dict[str, Any]]
    notes: list[str]
    seen: list[tuple[int, int]]
    """Round and client of everything that was seen, in its order."""
    clients: dict[int, Tree] | None
    """The memories of clients that live in the server's own process."""


class Checkpoint:
    """Writes one run's checkpoint, again and again."""

    def __init__(
        self,
        folder: Path,
        spec: ModelSpec,
        public: Public,
        *,
        seconds: float,
    ) -> None:
        self.folder = folder / CHECKPOINT
        self._spec, self._public = spec, public
        self._seconds = seconds
        self._last: float | None = None
        self._written = 0

    @property
    def is_due(self) -> bool:
        """Whether there is none yet, or enough time has passed for another."""
        return self._last is None or time.monotonic() - self._last >= self._seconds

    def save(self, state: Saved, sightings: Sequence[Sighting]) -> None:
        """Write the state, and the sightings since the last checkpoint."""
        start = time.monotonic()
        self.folder.mkdir(exist_ok=True)
        for path in save_sightings(self.folder, list(sightings[self._written :]), self._spec, self._public):
            sync(path)
        write_tree(self.folder / STATE, {"version": VERSION} | vars(state))
        self._written = len(sightings)
        (self.folder / _BEGUN).unlink(missing_ok=True)
        self._last = time.monotonic()
        if self._seconds:
            self._seconds = max(SECONDS_BETWEEN, (self._last - start) / _SHARE_OF_TIME)

    def begin(self, begun: Begun) -> None:
        """Note the requests of a round before they are sent."""
        content = asdict(begun)
        text = json.dumps(content | {_CHECKSUM: hash_json(content)})
        replace_file(self.folder / _BEGUN, [text.encode()])

    def go_on(self, saved: Saved) -> list[Sighting]:
        """Return the sightings before the checkpoint; files of later rounds are left to be overwritten."""
        if not saved.seen:
            return []
        found = {(s.order.round, s.order.client): s for s in load_sightings(self.folder, only=saved.seen)[0]}
        if missing := sorted(set(saved.seen) - found.keys()):
            raise ValueError(f"{self.folder}: lacks the sightings of rounds and clients {missing}")
        self._written = len(saved.seen)
        return [found[key] for key in saved.seen]

    def remove(self) -> None:
        """Remove what a finished run does not need."""
        remove_checkpoint(self.folder.parent)


def read_checkpoint(folder: Path) -> tuple[Saved, Begun | None]:
    """Return the checkpoint of the run in ``folder``, and what it was about to do then, if that was noted.

    What cannot be used is a `ConfigError` that says why; nothing is removed.
    """
    path = folder / CHECKPOINT / STATE
    try:
        refuse_links(folder)
        tree = read_tree(path)
        version = tree.pop("version")
        if version != VERSION:
            raise DamagedFile(f"{path}: is of another version of this project: {version!r}, not {VERSION}")
        saved = Saved(**tree)
        _check(path, vars(saved), _SAVED)
        begun = _read_begun(folder / CHECKPOINT / _BEGUN)
    except FileNotFoundError as error:
        raise ConfigError(
            f"resume: {folder} has no checkpoint: the run is finished, was cut short before its first one, "
            "or was made with checkpoint=false"
        ) from error
    except (DamagedFile, TypeError, AttributeError, KeyError, ValueError, RecursionError) as error:
        raise unusable(error) from error
    except OSError as error:
        raise ConfigError(f"resume: {path} cannot be read: {error}; nothing was changed") from error
    return saved, begun


def unusable(error: Exception) -> ConfigError:
    """Return the refusal of a checkpoint that is damaged."""
    return ConfigError(f"resume: {error}; nothing was changed, and the run can only start anew")


def _read_begun(path: Path) -> Begun | None:
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_bytes())
        stated = content.pop(_CHECKSUM, None)
        if stated != hash_json(content):
            raise DamagedFile("its checksum is not that of its content")
        begun = Begun(**content)
    except (TypeError, AttributeError, ValueError, RecursionError) as error:
        raise DamagedFile(f"{path}: is damaged: {error}") from error
    _check(path, vars(begun), _NOTED)
    return begun


def _check(path: Path, values: Mapping[str, Any], expected: Mapping[str, _Holds]) -> None:
    for name, holds in expected.items():
        if not holds(values[name]):
            raise DamagedFile(f"{path}: {name} cannot be {values[name]!r:.80}")


def refuse_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with a run under another config; the differences are named."""
    old, new = (_flat(what_counts(config)) for config in (before, now))
    changed = [
        f"{key} was {old.get(key)!r} and is {new.get(key)!r}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and key not in _ALLOWED
    ]
    if changed:
        raise ConfigError(f"resume: the run goes on as it was begun, but {'; '.join(changed)}")


def own_overrides(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that describe a run, without those that say where it is."""
    return [override for override in overrides if key_of(override) not in ("run_dir", "resume")]


def on_device(tree: Tree, device: torch.device) -> Tree:
    """Return ``tree`` with its tensors on ``device``."""
    if isinstance(tree, dict):
        return {key: on_device(value, device) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(on_device(value, device) for value in tree)
    return tree.to(device) if isinstance(tree, Tensor) else tree


def _flat(config: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(config, Mapping):
        return {prefix.removesuffix("."): config}
    return {key: value for name in config for key, value in _flat(config[name], f"{prefix}{name}.").items()}
