"""A client's memory of secure aggregation, and its answers to the exchanges around training."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flwr.app import ConfigRecord, RecordDict
from numpy.typing import ArrayLike

from fl_app.secagg import (
    Identity,
    ProtocolError,
    Revealed,
    Step,
    Terms,
    check_job,
    endorse,
    load_identity,
    mask,
    offer,
    share,
    terms_of,
    unmask,
)
from fl_app.secagg.messages import Request, Survivors
from fl_app.storage.tree_file import read_tree, write_tree
from fl_app.wire.messages import ENDORSE, OFFER, SHARE, UNMASK, MessageError

logger = logging.getLogger(__name__)

_RECORD, _STATE = "secure", "state"
_REVEALED, _LISTS = "revealed", "lists"
_SUMMED, _ROUND, _SURVIVORS = "summed", "round", "survivors"


@dataclass(frozen=True)
class SecureSettings:
    """Requirements of a client on secure rounds."""

    min_clients: int
    """Smallest cohort that the client accepts."""
    identities: Path | None = None
    """Folder of the pinned keys and its own key; None: it trusts the server to follow the protocol."""
    min_difference: int = 0
    """Least number of clients by which a sum must differ from earlier ones."""


@dataclass(frozen=True)
class SecureMember:
    """One client in secure rounds; ``records`` is its memory."""

    settings: SecureSettings
    client: int
    records: RecordDict = field(repr=False)
    folder: Path | None = None
    """Folder for the memory of revealed sums, over all runs; None: in the records."""

    def answer(self, kind: str, blob: bytes) -> bytes:
        """Answer a message of one of the exchanges."""
        identity = self._identity()
        if kind == OFFER:
            before = self._load() if _RECORD in self.records else None
            step = offer(
                blob,
                client=self.client,
                previous=before,
                min_clients=self.settings.min_clients,
                identity=identity,
            )
        elif kind == SHARE:
            step = share(self._load(), blob, identity=identity)
        elif kind == ENDORSE and identity is not None:
            step = endorse(self._load(), blob, identity=identity)
            self._check_sum(Survivors.from_bytes(blob, self.terms).clients)
        elif kind == UNMASK:
            step = unmask(self._load(), blob, identity=identity)
            survivors = Request.from_bytes(blob, self.terms).survivors
            self._check_sum(survivors)
            self._remember(survivors)
        else:
            raise MessageError(f"client {self.client}: has no answer to {kind}")
        return self._keep(step)

    def mask(self, delivery: bytes, values: ArrayLike, job: bytes) -> bytes:
        """Return the masked vector, ready to send."""
        return self._keep(mask(self._load(), delivery, values, job=job))

    def check_job(self, job: bytes) -> None:
        """Refuse a job that differs from the one the participants agreed to."""
        check_job(self.terms, self.client, job)

    @property
    def terms(self) -> Terms:
        """Terms that this client agreed to."""
        return terms_of(self._load())

    @property
    def _remembers(self) -> bool:
        return self.folder is not None or self.settings.min_difference > 0

    @property
    def _file(self) -> Path | None:
        return None if self.folder is None else self.folder / f"revealed-{self.client}.tree"

    def _revealed(self) -> Revealed:
        if self._file is not None:
            return Revealed.from_numbers(read_tree(self._file)) if self._file.exists() else Revealed()
        record = self.records.get(_REVEALED)
        numbers = record.get(_LISTS) if isinstance(record, ConfigRecord) else None
        return Revealed.from_numbers(map(int, numbers)) if isinstance(numbers, list) else Revealed()

    def _check_sum(self, survivors: Sequence[int]) -> None:
        """Refuse a sum whose difference from an earlier one would show the vectors of few clients.

        In another attempt at the same round clients send the same vectors, so only the same sum may be
        revealed. In other rounds vectors differ: such a sum is refused if the settings say so, and there is
        a warning if the difference is one client.
        """
        last = self._last_sum()
        if last is not None and last[0] == self._round_name and last[1] != tuple(survivors):
            raise ProtocolError(
                f"client {self.client}: survivor list: expected that of an earlier attempt at "
                f"round {self.terms.round}, {list(last[1])}, got {list(survivors)}: the difference of "
                "the sums would show vectors"
            )
        if not self._remembers:
            return
        revealed = self._revealed()
        revealed.check(self.client, survivors, least=self.settings.min_difference)
        if revealed.distance(survivors) == 1:
            logger.warning(
                "client %d: %s: this sum and an earlier one differ by one client, whose vector their "
                "difference comes close to; noise (dp=client) hides it",
                self.client,
                self.terms.name,
            )

    def _remember(self, survivors: Sequence[int]) -> None:
        """Note a sum before the shares for it leave."""
        self.records[_SUMMED] = ConfigRecord({_ROUND: self._round_name, _SURVIVORS: list(survivors)})
        if not self._remembers:
            return
        numbers = self._revealed().add(survivors).to_numbers()
        if self._file is None:
            self.records[_REVEALED] = ConfigRecord({_LISTS: numbers})
        else:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_tree(self._file, numbers)

    @property
    def _round_name(self) -> bytes:
        return self.terms.run + self.terms.round.to_bytes(4, "big")

    def _last_sum(self) -> tuple[bytes, tuple[int, ...]] | None:
        """Return the last sum that this client gave shares for: its round in its run, and its clients."""
        record = self.records.get(_SUMMED)
        if not isinstance(record, ConfigRecord):
            return None
        round, survivors = record[_ROUND], record[_SURVIVORS]
        if not (isinstance(round, bytes) and isinstance(survivors, list)):
            raise MessageError(f"client {self.client}: cannot read which sum it revealed last")
        return round, tuple(map(int, survivors))

    def _identity(self) -> Identity | None:
        folder = self.settings.identities
        return None if folder is None else load_identity(folder, self.client)

    def _load(self) -> bytes:
        record = self.records.get(_RECORD)
        state = record.get(_STATE) if isinstance(record, ConfigRecord) else None
        if not isinstance(state, bytes):
            raise MessageError(f"client {self.client}: has agreed to no secure round")
        return state

    def _keep(self, step: Step) -> bytes:
        self.records[_RECORD] = ConfigRecord({_STATE: step.state})
        return step.reply
