"""Memory of a mod between rounds, in Flower's `Context.state`.

It belongs to one run, one defense and one layout of arrays: under another of these, a mod starts anew. What
one defense withheld is never sent by another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from fl_app.flower.held_tensor import hold, release
from fl_app.transforms import State, flatten_state, unflatten_state

PREFIX = "fl_app.mods"
"""Beginning of the names of all records that mods keep."""


@dataclass
class Memory:
    """A mod's memory of one layout of arrays."""

    round: int = 0
    """Last round that was answered; 0: none."""
    form: str = ""
    """Form of the replies, once found."""
    state: State = field(default_factory=dict)
    """The transform's state; empty before the first update."""


@dataclass(frozen=True)
class Shelf:
    """Place of one mod's memory: a run, a defense, and the mod's place among others of the same defense."""

    records: RecordDict
    run: int
    defense: str
    place: int

    def load(self, layout: str) -> Memory:
        """Return the memory of a layout, or a new one."""
        meta, tensors = self.records.get(self._name(layout)), self.records.get(self._name(layout, "state"))
        if not isinstance(meta, ConfigRecord) or not isinstance(tensors, ArrayRecord):
            return Memory()
        if meta.get("run") != self.run or meta.get("defense") != self.defense:
            return Memory()
        round, form = meta.get("round"), meta.get("form")
        if not isinstance(round, int) or not isinstance(form, str):
            raise ValueError("mods: the memory of this client is damaged")
        return Memory(round, form, unflatten_state(release(tensors, torch.device("cpu"))))

    def save(self, layout: str, memory: Memory) -> None:
        """Keep the memory; forget other runs, and all layouts but the run's first and this one."""
        first = self._first(layout)
        kept = {self._name(one, part) for one in (first, layout) for part in ("", "state")}
        for name in [name for name in self.records if name.startswith(self._own) and name not in kept]:
            del self.records[name]
        self.records[self._name(layout)] = ConfigRecord(
            {
                "run": self.run,
                "defense": self.defense,
                "first": first,
                "round": memory.round,
                "form": memory.form,
            }
        )
        self.records[self._name(layout, "state")] = hold(flatten_state(memory.state))

    @property
    def _own(self) -> str:
        return f"{PREFIX}/{self.place}/"

    def _first(self, layout: str) -> str:
        for name, record in self.records.items():
            mine = name.startswith(self._own) and isinstance(record, ConfigRecord)
            if mine and record.get("run") == self.run and record.get("defense") == self.defense:
                return str(record["first"])
        return layout

    def _name(self, layout: str, part: str = "") -> str:
        return f"{self._own}{layout}" + (f"/{part}" if part else "")


def layout_of(tensors: Mapping[str, Tensor]) -> str:
    """Return a hash of the names, shapes and types of arrays."""
    text = repr([(name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in tensors.items()])
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
