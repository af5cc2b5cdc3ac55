"""A client's memory on its own disk, so that a restarted node continues where it stopped.

Flower keeps `Context.state` in a SuperNode's memory and gives a resumed run a new, empty one. The
client writes its memory before an answer leaves: a node killed at any moment either has
not answered or remembers its answer. The client keeps the memories after its last two
answers: a server that was killed too may repeat the last round, and the client then
starts from its memory before that round.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flwr.app import ConfigRecord, RecordDict

from fl_app.client.records import from_tree, to_tree
from fl_app.client.state import check, has_answered, last_round, of_models
from fl_app.storage.tree_file import read_tree, write_tree
from fl_app.wire.messages import Parcel

logger = logging.getLogger(__name__)

MOST_RUNS = 8
"""Number of runs whose memory a client keeps."""
MOST_MEGABYTES = 4096
"""Megabytes that all memories together may take, unless the node-config sets ``state-megabytes``."""
_DAMAGED = "damaged"
_HELD, _KEY = "run", "key"

Look = Mapping[str, tuple[int, int]]
"""Snapshot of a run's files: by name, the time of writing and the inode of each."""


@dataclass(frozen=True)
class DurableMemory:
    """One client's folder: a folder for every run, a file for each of its last two answers there."""

    folder: Path
    client: int
    most_bytes: int = MOST_MEGABYTES * 2**20

    def recall(
        self, records: RecordDict, parcel: Parcel, *, locating: bool = False, newest: bool = False
    ) -> Look:
        """Load into ``records`` the memory for the answer to ``parcel``.

        ``records`` stay if they belong to this run, are no older than the disk's memory, and precede this
        round or hold its answer; else the disk's memory replaces them. The return value, the state of the
        disk, is for `keep`. ``newest``: always load the last memory, for a client that never repeats a round.
        """
        if parcel.run is None:
            return {}
        self._recall(records, parcel, parcel.run.key, locating, newest)
        return _look(self._runs / parcel.run.key)

    def _recall(self, records: RecordDict, parcel: Parcel, key: str, locating: bool, newest: bool) -> None:
        order = parcel.order

        def answered(memory: RecordDict) -> bool:
            return not locating and has_answered(memory, order.model_hash, parcel.digest)

        # Flower stores a context after the answer has left: after a crash in between, the disk is ahead
        held, kept = last_round(records), max(_by_round(self._runs / key), default=0)
        wanted = newest or held < order.round or answered(records)
        if _key_of(records) == key and held >= kept and wanted:
            return
        for name in of_models(records):
            del records[name]
        before = kept + 1 if newest else order.round
        records.update(self._find(key, before, answered))
        records[_HELD] = ConfigRecord({_KEY: key})

    def keep(self, records: RecordDict, parcel: Parcel, since: Look) -> None:
        """Write ``records`` after an answer; on an OSError the answer must not leave.

        ``since`` is what `recall` returned. A node may give up a hanging process and start another for the
        next order: the late answer is then outdated, and refused.
        """
        if parcel.run is None:
            return
        run = self._runs / parcel.run.key
        try:
            run.mkdir(parents=True, exist_ok=True, mode=0o700)
            with _alone(run):
                if _look(run) != since:
                    raise OSError("another process has answered for this client in the meantime")
                self._write(records, run, parcel.order.round)
        except OSError as error:
            raise OSError(
                f"client {self.client}: cannot write its memory, so it does not answer: {error}"
            ) from error

    def _write(self, records: RecordDict, run: Path, round: int) -> None:
        files = _by_round(run)
        for number in [number for number in files if number > round]:
            files.pop(number).unlink()  # rounds that the server has undone
        self._make_room(run)
        write_tree(run / f"round-{round}", to_tree(records), limit=self._most_bytes_of_one)
        for number in sorted(number for number in files if number < round)[:-1]:
            files[number].unlink()

    @property
    def _most_bytes_of_one(self) -> int:
        return self.most_bytes // 4  # two stored files, one being written, and other runs

    @property
    def _runs(self) -> Path:
        return self.folder / f"client-{self.client}"

    def _find(self, key: str, before: int, answered: Callable[[RecordDict], bool]) -> RecordDict:
        """Return the memory before a round, or the one that holds the answer to its order."""
        files = _by_round(self._runs / key)
        later = sorted(number for number in files if number >= before)
        for number in later:
            memory = self._read(files[number])
            if memory is not None and answered(memory):
                return memory
        earlier = sorted(number for number in files if number < before)
        if not earlier:
            if later:
                logger.warning(
                    "client %d: is asked for round %d again and has no memory from before it: starts afresh",
                    self.client,
                    before,
                )
            return RecordDict()
        found = self._read(files[earlier[-1]])
        return RecordDict() if found is None else found

    def _read(self, path: Path) -> RecordDict | None:
        """Return the memory in a file; set an unusable file aside."""
        try:
            memory = from_tree(read_tree(path, limit=self._most_bytes_of_one))
            check(memory)  # checked now: found later, the error would recur in every round
            return memory
        except ValueError as error:  # a damaged file, or one with other content
            aside = self._runs / _DAMAGED
            logger.warning(
                "client %d: one of its memories is unusable and is set aside as %s: %s",
                self.client,
                aside,
                error,
            )
            path.replace(aside)
            return None

    def _make_room(self, run: Path) -> None:
        """Delete the oldest other runs until the rest are within the limits of number and size."""
        others = sorted(
            (path for path in self._runs.iterdir() if path.is_dir() and path != run),
            key=lambda path: path.stat().st_mtime,
        )
        while others and (len(others) >= MOST_RUNS or sum(map(_size, others)) > self.most_bytes // 4):
            logger.info("client %d: forgets run %s", self.client, others[0].name)
            shutil.rmtree(others.pop(0))


def _key_of(records: RecordDict) -> object:
    held = records.get(_HELD)
    return held.get(_KEY) if isinstance(held, ConfigRecord) else None


def _by_round(run: Path) -> dict[int, Path]:
    if not run.is_dir():
        return {}
    found = ((re.fullmatch(r"round-(\d+)", path.name), path) for path in run.iterdir())
    return {int(match[1]): path for match, path in found if match}


def _look(run: Path) -> Look:
    if not run.is_dir():
        return {}
    found = {path.name: path.stat() for path in _by_round(run).values()}
    return {name: (entry.st_mtime_ns, entry.st_ino) for name, entry in found.items()}


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock ``folder`` against writes of other processes."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
