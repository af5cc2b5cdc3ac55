"""Downlink of the model: a packed change for clients with the previous version, else the whole model."""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import ArrayRecord
from torch import Tensor

from fl_app.sketches import gather
from fl_app.storage.tree_file import Tree
from fl_app.types import Update
from fl_app.wire import encode, encode_change
from fl_app.wire.bound import change_bound, entropy_bound
from fl_app.wire.messages import VALUES, blob_size, pack_blob

MODES = ("change", "full")


class Downlink:
    """Last two versions of the weights, and the version that every client holds.

    Blobs are packed on demand, once per version, and shared by all messages.
    """

    nothing: int = -1
    """Sentinel: client has no model; send it whole."""

    def __init__(self, mode: str) -> None:
        if mode not in MODES:
            raise ValueError(f"downlink must be one of {', '.join(MODES)}, got {mode!r}")
        self.mode = mode
        self.version = -1
        self._weights: Update = {}
        self._previous: Update = {}
        self._within: Mapping[str, Tensor] | None = None
        self._held: dict[int, int] = {}
        self._packed: dict[int, ArrayRecord] = {}

    def publish(self, weights: Update, version: int, within: Mapping[str, Tensor] | None = None) -> None:
        """Make ``weights`` the current version; clients know that they changed only ``within`` the masks."""
        self._previous = self._weights if version == self.version + 1 else {}
        self._weights, self.version, self._within = weights, version, within
        self._packed = {}

    def base_for(self, client: int) -> int:
        """Return the version that a packed change for ``client`` starts from, or -1 for the whole model."""
        held = self._held.get(client, -1)
        holds_previous = held == self.version - 1 and bool(self._previous)
        return held if held == self.version or (self.mode == "change" and holds_previous) else -1

    def blob(self, base: int) -> ArrayRecord:
        """Return the record that brings a client from ``base`` to the current version."""
        if base not in self._packed:
            self._packed[base] = pack_blob(self._pack(base))
        return self._packed[base]

    def _pack(self, base: int) -> bytes:
        if base < 0:
            return encode(self._weights)
        if base == self.version:
            return b""
        return encode_change(self._weights, self._previous, within=self._within)

    def to_bound(self, locations: Mapping[str, Tensor] | None, extra: int) -> float | None:
        """Return the bytes of the current download over their entropy bound.

        The download is the change, if one was packed, else the whole model, and with
        ``locations`` their ``extra`` bytes.
        """
        base = self.version - 1 if self.version - 1 in self._packed else -1
        if base not in self._packed:
            return None
        if base < 0:
            bound = entropy_bound(self._weights)
        else:
            bound = change_bound(self._weights, self._previous, within=self._within)
        bound += entropy_bound(locations) if locations else 0.0
        return (blob_size(self._packed[base]) + extra) / bound if bound else None

    def history(self) -> dict[str, Tree]:
        """Return the published versions and their holders, as plain values."""
        return {"version": self.version, "weights": self._weights, "held": self._held}

    def restore(self, history: dict[str, Tree]) -> None:
        """Go on from what `history` returned."""
        self.version, self._weights, self._held = (history[name] for name in ("version", "weights", "held"))
        self._packed = {}

    def confirm(self, client: int) -> None:
        """Note that ``client`` has worked with the current version and holds it."""
        self._held[client] = self.version

    def forget(self, client: int) -> None:
        """Note that ``client`` holds no usable version."""
        self._held.pop(client, None)


class FixedDownlink(Downlink):
    """Downlink of the values at fixed coordinates; all other values are those of version 0.

    Clients build that version themselves, or hold it from an earlier download of the whole model.
    """

    def __init__(self, coordinates: Tensor, *, start_known: bool = True) -> None:
        super().__init__("full")
        self.mode = "fixed"
        self.nothing = 0 if start_known else -1
        self._coordinates = coordinates

    def base_for(self, client: int) -> int:
        """Return version 0, the only one clients hold; one that cannot build it gets the whole model once."""
        return 0 if self.knows(client) else self.nothing

    def knows(self, client: int) -> bool:
        """Return whether the client has worked with the coordinates, and so remembers them."""
        return client in self._held

    def to_bound(self, locations: Mapping[str, Tensor] | None, extra: int) -> float | None:
        """Return the bytes of the values over their entropy bound."""
        bound = entropy_bound(self._values())
        return blob_size(self.blob(0)) / bound if bound else None

    def _pack(self, base: int) -> bytes:
        return super()._pack(base) if base < 0 else encode(self._values())

    def _values(self) -> Update:
        return {VALUES: gather(self._weights, self._coordinates)}


def raw_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Return the size of the tensors as raw float32."""
    return 4 * sum(tensor.numel() for tensor in tensors.values())
