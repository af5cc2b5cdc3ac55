"""Known positions: if both ends know the positions of entries, only the entries are sent."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from fl_app.wire.packing import Entries
from fl_app.wire.patterns import Array, format_of

Masks = Mapping[str, Tensor]
"""Boolean masks by name; a tensor without a mask may be non-zero anywhere."""


class Known:
    """Masks as the wire uses them, for tensors of given names and shapes."""

    def __init__(self, tensors: Mapping[str, Tensor], within: Masks | None) -> None:
        self._flat: dict[str, Array] = {}
        for name, mask in (within or {}).items():
            if name not in tensors:
                raise ValueError(f"wire: within has a mask for {name!r}, which is no tensor of the update")
            if mask.dtype != torch.bool or mask.shape != tensors[name].shape:
                expected, came = (tuple(t.shape) for t in (tensors[name], mask))
                raise ValueError(
                    f"wire: within[{name!r}] must be boolean of shape {expected}, got {mask.dtype} {came}"
                )
            self._flat[name] = mask.detach().cpu().reshape(-1).numpy()
        self._where = {name: np.flatnonzero(mask) for name, mask in self._flat.items()}
        self.entries = {
            name: Entries(
                format=format_of(name, tensor),
                shape=tuple(tensor.shape),
                written=self._where[name].size if name in self._flat else tensor.numel(),
                within=name in self._flat,
            )
            for name, tensor in tensors.items()
        }

    def shared(self) -> list[Array]:
        """Return the bytes that must be equal at both ends: they enter the checksum."""
        return [np.packbits(self._flat[name]) for name in sorted(self._flat)]

    def restrict(self, who: str, name: str, patterns: Array) -> Array:
        """Return the patterns at known positions; all others must be zero."""
        if name not in self._flat:
            return patterns
        inside = patterns[self._where[name]]
        stray = np.count_nonzero(patterns) - np.count_nonzero(inside)
        if stray:
            raise ValueError(
                f"{who}: tensor {name!r} has {stray} entries outside of within that are not zero"
            )
        return inside

    def expand(self, name: str, patterns: Array) -> Array:
        """Return all patterns of a tensor; the inverse of `restrict`."""
        if name not in self._flat:
            return patterns
        whole = np.zeros(self._flat[name].size, patterns.dtype)
        whole[self._where[name]] = patterns
        return whole
