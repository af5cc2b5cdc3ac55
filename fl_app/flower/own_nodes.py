"""Node config of a simulation: its nodes belong to the user, data and overrides alike."""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import UserConfigValue

OWN_NODE: Mapping[str, UserConfigValue] = {"allow-audit": True, "trust-config": True}
"""Keys of a node-config; a SuperNode's has them only if its operator has set them."""
