"""Log of a node: one JSON line per answer sent or refused, in files of bounded size."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

MOST_BYTES = 8 << 20
"""Maximum size of one file; the previous file stays beside it."""
MOST_FILES = 4


@dataclass(frozen=True)
class Journal:
    """A log file with older ones beside it: ``name``, ``name.1``, …"""

    path: Path
    most_bytes: int = MOST_BYTES
    most_files: int = MOST_FILES

    def write(
        self, *, run: int, round: int | None, kind: str, size: int, allowed: bool, decision: str
    ) -> None:
        """Append a line, before the answer leaves."""
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "run": run,
            "round": round,
            "kind": kind,
            "bytes": size,
            "allowed": allowed,
            "decision": decision,
        }
        text = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        handle = self._open()
        try:
            size = os.fstat(handle).st_size
            if size and size + len(text) > self.most_bytes:
                self._rotate()
                os.close(handle)
                handle = self._open()
            os.write(handle, text)
        finally:
            os.close(handle)

    def _open(self) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            return os.open(self.path, flags, 0o600)
        except FileNotFoundError:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            return os.open(self.path, flags, 0o600)

    def _rotate(self) -> None:
        for number in range(self.most_files - 1, 0, -1):
            older = _numbered(self.path, number - 1)
            if older.exists():
                older.replace(_numbered(self.path, number))


def read_journal(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the entries of a log, oldest first; skip invalid lines."""
    numbers = [number for number in range(MOST_FILES) if _numbered(path, number).exists()]
    for number in sorted(numbers, reverse=True):
        with _numbered(path, number).open(encoding="utf-8", errors="replace") as file:
            for text in file:
                try:
                    line = json.loads(text)
                except (ValueError, RecursionError):
                    continue  # cut short when the machine died
                if isinstance(line, dict):
                    yield line


def _numbered(path: Path, number: int) -> Path:
    return path if number == 0 else path.with_name(f"{path.name}.{number}")
