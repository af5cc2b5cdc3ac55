"""How the model travels down: a packed change for who holds the previous version, else the whole."""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import ConfigRecord
from torch import Tensor

from fl_app.messages import pack_blob
from fl_app.types import Update
from fl_app.wire import encode, encode_change

MODES = ("change", "full")


class Downlink:
    """The last two versions of the weights, and which version every client holds.

    Blobs are packed on demand, once a version, and shared by all messages.
    """

    def __init__(self, mode: str) -> None:
        if mode not in MODES:
            raise ValueError(f"downlink must be one of {', '.join(MODES)}, got {mode!r}")
        self.mode = mode
        self.version = -1
        self._weights: Update = {}
        self._previous: Update = {}
        self._held: dict[int, int] = {}
        self._packed: dict[str, ConfigRecord] = {}

    def publish(self, weights: Update, version: int) -> None:
        """Make ``weights`` the current version."""
        self._previous = self._weights if version == self.version + 1 else {}
        self._weights, self.version = weights, version
        self._packed = {}

    def base_for(self, client: int) -> int:
        """Return the version that a packed change for ``client`` starts from, or -1 for the whole model."""
        holds_previous = self._held.get(client) == self.version - 1 and bool(self._previous)
        return self.version - 1 if self.mode == "change" and holds_previous else -1

    def blob(self, base: int) -> ConfigRecord:
        """Return the record that brings a client from ``base`` to the current version."""
        kind = "full" if base < 0 else "change"
        if kind not in self._packed:
            packed = encode(self._weights) if base < 0 else encode_change(self._weights, self._previous)
            self._packed[kind] = pack_blob(packed)
        return self._packed[kind]

    def confirm(self, client: int) -> None:
        """Note that ``client`` has worked with the current version."""
        self._held[client] = self.version

    def forget(self, client: int) -> None:
        """Note that ``client`` holds nothing that can be built on."""
        self._held.pop(client, None)


def raw_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Return the size of the tensors as raw float32."""
    return 4 * sum(tensor.numel() for tensor in tensors.values())
