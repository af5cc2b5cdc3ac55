"""Both ends' view of a secure round around any strategy: what is summed, and for which job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from fl_app.mods.arrays import Unreadable, read_arrays
from fl_app.mods.memory import layout_of
from fl_app.mods.packed import record_of
from fl_app.mods.records import check_shapes
from fl_app.secagg import Job, hash_config
from fl_app.storage.fingerprint import hash_tensors
from fl_app.types import Update

RECORD = "fl_app.secure"
"""Record of a message of secure aggregation: the exchange, the client's number and the protocol's bytes."""
EXCHANGE, CLIENT, BLOB = "exchange", "client", "blob"
MASK = "mask"
"""Exchange that carries the training message and brings the masked vector."""


@dataclass(frozen=True)
class Summed:
    """Settings on which both ends agree: weights, metrics and the form of the arrays."""

    weight: str
    """Name of the number that weighs a reply."""
    max_weight: float
    """Weight that counts as 1; larger ones are clamped to it."""
    metrics: tuple[str, ...] = ()
    """Numbers whose weighted means are computed under the masks."""
    returns: Literal["weights", "delta"] = "weights"

    def __post_init__(self) -> None:
        """Refuse settings under which no mean can be computed."""
        if not 0 < self.max_weight < float("inf"):
            raise ValueError(f"secure aggregation: max_weight must be above 0, got {self.max_weight}")
        if self.returns not in ("weights", "delta"):
            raise ValueError(
                f"secure aggregation: returns must be 'weights' or 'delta', got {self.returns!r}"
            )


@dataclass(frozen=True)
class SecureJob:
    """One training message as a job of secure aggregation."""

    record: str
    """Name of the arrays."""
    arrays: ArrayRecord
    base: Update
    config: ConfigRecord | None
    summed: Summed

    @property
    def parameters(self) -> list[str]:
        """Arrays that are summed; whole numbers stay as they are."""
        return [name for name, tensor in self.base.items() if tensor.is_floating_point()]

    @property
    def size(self) -> int:
        """Length of the vector: all entries, the weight, and the metrics."""
        return sum(self.base[name].numel() for name in self.parameters) + 1 + len(self.summed.metrics)

    @property
    def digest(self) -> bytes:
        """Digest of all that decides a client's vector except its data."""
        job = Job(
            model=layout_of(self.base),
            weights=hash_tensors(self.base.values()),
            lr=0.0,
            start="",
            coordinates="",
            seed=0,
            clip=0.0,
            settings=hash_config(asdict(self.summed)),
            config=hash_config(self.config or {}),
        )
        return job.digest

    def vector(self, reply: RecordDict) -> NDArray[np.float64]:
        """Return a client's vector: everything times its weight, and the weight itself."""
        arrays = list(reply.array_records.values())
        if len(arrays) != 1:
            raise Unreadable(f"expected one ArrayRecord in the reply, got {sorted(reply.array_records)}")
        after = read_arrays(arrays[0], "reply")
        check_shapes(self.base, after)
        if after.keys() != self.base.keys():
            raise Unreadable("the reply lacks arrays of the message: a sum needs all of them")
        numbers = {k: v for record in _numbers(reply) for k, v in record.items()}
        missing = [n for n in (self.summed.weight, *self.summed.metrics) if not _is_number(numbers.get(n))]
        if missing:
            raise Unreadable(f"the reply has no number {missing}")
        share = min(max(float(numbers[self.summed.weight]), 0.0), self.summed.max_weight)  # type: ignore[arg-type]
        share /= self.summed.max_weight
        moved = [after[name].double().numpy().reshape(-1) for name in self.parameters]
        if self.summed.returns == "weights":
            starts = [self.base[name].double().numpy().reshape(-1) for name in self.parameters]
            moved = [new - old for new, old in zip(moved, starts, strict=True)]
        told = [float(numbers[name]) for name in self.summed.metrics]  # type: ignore[arg-type]
        return np.concatenate([*moved, [1.0], told]) * share

    def mean(self, total: NDArray[np.float64]) -> tuple[ArrayRecord, dict[str, float]]:
        """Return the mean reply from the sum of all vectors: arrays, and weight and metrics."""
        size = self.size - 1 - len(self.summed.metrics)
        weight = float(total[size])
        if not weight > 0:
            raise Unreadable("the weights of all clients together are 0")
        arrays: Update = dict(self.base)
        at = 0
        for name in self.parameters:
            start = self.base[name]
            entries = total[at : at + start.numel()].reshape(tuple(start.shape)) / weight
            at += start.numel()
            moved = start.new_tensor(entries, dtype=start.double().dtype)
            whole = start.double() + moved if self.summed.returns == "weights" else moved
            arrays[name] = whole.to(start.dtype)
        numbers = {self.summed.weight: weight * self.summed.max_weight}
        numbers |= {n: float(v) / weight for n, v in zip(self.summed.metrics, total[size + 1 :], strict=True)}
        return record_of(self.arrays, arrays), numbers


def read_job(content: RecordDict, summed: Summed) -> SecureJob:
    """Return the job in a training message."""
    if len(content.array_records) != 1:
        raise Unreadable(f"expected one ArrayRecord in the message, got {sorted(content.array_records)}")
    configs = {name: record for name, record in content.config_records.items() if name != RECORD}
    if len(configs) > 1 or content.metric_records:
        raise Unreadable(f"expected at most one ConfigRecord beside the arrays, got {sorted(configs)}")
    name, record = next(iter(content.array_records.items()))
    return SecureJob(name, record, read_arrays(record, "message"), next(iter(configs.values()), None), summed)


def _numbers(reply: RecordDict) -> Sequence[Mapping[str, object]]:
    return [*reply.metric_records.values()]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
