"""What a simulation's nodes say of themselves: they are the user's own, data and overrides alike."""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import UserConfigValue

OWN_NODE: Mapping[str, UserConfigValue] = {"allow-audit": True, "trust-config": True}
"""Keys of a node-config; a SuperNode's has them only if whoever runs it has written them there."""
