"""File of a node's account, which survives the process and the machine: a line for every change.

A change is on the disk before the answer that it counts leaves. One line is appended and flushed to the
disk; now and then the file is written afresh, so that it stays short. A last line without its end was
not flushed, so its answer has not left.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fl_app.policy.account import Account
from fl_app.policy.refusal import Refusal

SHORT = 1 << 16
"""Bytes up to which a file only grows; after that it is written afresh when it has doubled."""
_MOST_READ = 64
"""Accounts that a process keeps at hand."""

_Stamp = tuple[int, int, int]
"""Inode, size and time of writing of a file."""


@dataclass
class _Read:
    """Content of a file as this process last saw it."""

    stamp: _Stamp
    account: Account
    whole: int
    """Bytes up to the end of the last whole line; 0: not even the first one has an end."""
    first: int
    """Bytes of the first line, which holds the whole account."""


_read: dict[Path, _Read] = {}


@dataclass(frozen=True)
class AccountFile:
    """File of an account. A damaged file is an error: starting afresh would forget the spent budget."""

    path: Path

    def load(self) -> Account:
        """Return the stored account, or a new one if there is no file yet."""
        seen = self._look()
        return Account() if seen is None else seen.account.copy()

    def save(self, account: Account, since: int) -> None:
        """Write ``account``, loaded at serial ``since``; on OSError, no answer may leave."""
        with self._alone():
            seen = self._look()
            if (0 if seen is None else seen.account.serial) != since:
                raise OSError("another process has answered for this client in the meantime")
            if seen is not None and 0 < seen.whole <= max(SHORT, 2 * seen.first):
                self._append(account, seen)
            else:
                self._write(account)

    def _look(self) -> _Read | None:
        """Return the content of the file; None if there is none."""
        try:
            stamp = _stamp(os.stat(self.path))
            seen = _read.get(self.path)
            if seen is None or seen.stamp != stamp:
                seen = _parse(self.path.read_bytes(), stamp)
                self._know(seen)
            return seen
        except FileNotFoundError:
            return None
        except (ValueError, OSError) as error:
            raise Refusal("node", f"{self.path}: {error}") from error

    def _know(self, seen: _Read) -> None:
        _read.pop(self.path, None)
        _read[self.path] = seen
        if len(_read) > _MOST_READ:
            del _read[next(iter(_read))]

    def _append(self, account: Account, seen: _Read) -> None:
        line = _line(account.since(seen.account))
        handle = os.open(self.path, os.O_WRONLY)
        try:
            if seen.whole < seen.stamp[1]:
                os.ftruncate(handle, seen.whole)
            _read.pop(self.path, None)  # until all of it is on the disk
            if os.pwrite(handle, line, seen.whole) != len(line):
                raise OSError("the disk took a part of the account only")
            os.fdatasync(handle)
            stamp = _stamp(os.fstat(handle))
        finally:
            os.close(handle)
        self._know(_Read(stamp, account.copy(), seen.whole + len(line), seen.first))

    def _write(self, account: Account) -> None:
        """Write the file afresh, as one line."""
        line, beside = _line(account), self.path.with_suffix(".new")
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # else the old name could come back with the power
        finally:
            os.close(folder)
        self._know(_Read(_stamp(os.stat(self.path)), account.copy(), len(line), len(line)))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        try:
            handle = os.open(self.path.parent, os.O_RDONLY)
        except FileNotFoundError:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def _stamp(entry: os.stat_result) -> _Stamp:
    return entry.st_ino, entry.st_size, entry.st_mtime_ns


def _line(account: Account) -> bytes:
    return account.to_json().encode() + b"\n"


def _parse(content: bytes, stamp: _Stamp) -> _Read:
    """Read an account and its changes; raise a ValueError for anything else."""
    first, *changes = content.split(b"\n")
    account = Account.from_json(first.decode())
    for line in changes[:-1]:
        account.follow(Account.from_json(line.decode()))
    return _Read(stamp, account, content.rfind(b"\n") + 1, len(first))
