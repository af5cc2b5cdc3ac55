"""Settings as Python has them, written as Hydra overrides."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fl_app.config.compose import ConfigError, parse_overrides, quote

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
"""Text that Hydra reads without quotes, alone and in lists: a choice of a group must have none."""


def as_overrides(settings: Mapping[str, Any]) -> list[str]:
    """Return ``settings`` as overrides: ``attack__steps=5`` and ``attack={"steps": 5}`` set attack.steps."""
    found: list[str] = []
    for name, value in settings.items():
        key = name.replace("__", ".") if not name.startswith("__") else name
        if isinstance(value, Mapping):
            found += as_overrides({f"{key}.{inner}": deeper for inner, deeper in value.items()})
        else:
            found.append(f"{key}={_value(key, value)}")
    return found


def check_single(overrides: Sequence[str], *, who: str) -> None:
    """Refuse overrides with several values: they make several runs."""
    for override in parse_overrides(overrides):
        if override.is_sweep_override():
            raise ConfigError(f"{who}: expected one value in {override.input_line}; call it once for each")


def _value(key: str, value: Any) -> str:
    """Write a value by Hydra's grammar."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, str | Path):
        return _text(str(value))
    if isinstance(value, list | tuple):
        return f"[{','.join(_value(key, item) for item in value)}]"
    if isinstance(value, Mapping) and all(isinstance(name, str) and name.isidentifier() for name in value):
        return f"{{{','.join(f'{name}:{_value(key, inner)}' for name, inner in value.items())}}}"
    raise ConfigError(
        f"{key}: expected a number, text, true or false, None, or a list or dict (by plain names) of these, "
        f"got {type(value).__name__}"
    )


def _text(text: str) -> str:
    """Return a plain word as it is, and every other text in quotes."""
    if not _WORD.fullmatch(text):
        return quote(text)
    (parsed,) = parse_overrides([f"key={text}"])
    # such as true or null
    return text if parsed.value() == text else quote(text)
