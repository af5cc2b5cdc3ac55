"""A client's memory of secure aggregation, and its answers to the exchanges around training."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from flwr.app import ConfigRecord, RecordDict
from numpy.typing import ArrayLike

from fl_app.secagg import (
    Identity,
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
from fl_app.wire.messages import ENDORSE, OFFER, SHARE, UNMASK, MessageError

_RECORD, _STATE = "secure", "state"


@dataclass(frozen=True)
class SecureSettings:
    """Demands of a client on secure rounds."""

    min_clients: int
    """Least number of clients to hide among."""
    identities: Path | None = None
    """The folder with the pinned keys and its own; None: it trusts the server to follow the protocol."""


@dataclass(frozen=True)
class SecureMember:
    """One client in secure rounds; ``records`` is its memory."""

    settings: SecureSettings
    client: int
    records: RecordDict = field(repr=False)

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
        elif kind == UNMASK:
            step = unmask(self._load(), blob, identity=identity)
        else:
            raise MessageError(f"client {self.client}: has no answer to {kind}")
        return self._keep(step)

    def mask(self, delivery: bytes, values: ArrayLike, job: bytes) -> bytes:
        """Return the vector as it may be sent: under masks."""
        return self._keep(mask(self._load(), delivery, values, job=job))

    def check_job(self, job: bytes) -> None:
        """Refuse another job than the one that the participants agreed to."""
        check_job(self.terms, self.client, job)

    @property
    def terms(self) -> Terms:
        """Terms that this client agreed to."""
        return terms_of(self._load())

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
