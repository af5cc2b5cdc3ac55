"""Settings in which attacks of one name differ, as a reader tells them apart."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from fl_app.results import Attack

_UNKNOWN = "settings not stated"


def differing_settings(attack: Attack, attacks: Iterable[Attack]) -> str:
    """Return the settings of ``attack`` in which others of its name differ, such as `steps=500`; else ''."""
    namesakes = [_flat(other.settings) for other in attacks if other.name == attack.name]
    own = _flat(attack.settings)
    if not own:
        return _UNKNOWN if any(namesakes) else ""
    stated = [settings for settings in namesakes if settings]
    keys = [key for key in own if any(other.get(key) != own[key] for other in stated)]
    return ", ".join(f"{key}={own[key]}" for key in keys)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return the leaves by their dotted keys; the form is named elsewhere."""
    leaves: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            leaves |= _flat(value, f"{prefix}{key}.")
        elif f"{prefix}{key}" != "adaptive":
            leaves[f"{prefix}{key}"] = json.dumps(value, default=str).strip('"')
    return leaves
