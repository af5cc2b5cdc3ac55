"""Flower run config on the command line: ``key=value …`` or TOML files, over the app's defaults."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from flwr.app import UserConfigValue


def fuse(config: Mapping[str, UserConfigValue], given: Sequence[str]) -> dict[str, UserConfigValue]:
    """Override an app's config; as in Flower, a key must be there already, and later ones win."""
    fused = dict(config)
    for text in given:
        values = tomllib.loads(Path(text).read_text()) if text.endswith(".toml") else parse_pairs(text)
        for key, value in values.items():
            if key not in config:
                raise ValueError(f"--run-config: {key!r} is not one of {', '.join(sorted(config))}")
            fused[key] = value
    return fused


def parse_pairs(text: str) -> dict[str, UserConfigValue]:
    """Read ``key=value key="other value"``; values are TOML where they can be, else text."""
    pairs: dict[str, UserConfigValue] = {}
    for item in _words(text):
        key, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"--run-config: expected key=value, got {item!r}")
        try:
            pairs[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            pairs[key] = value
    return pairs


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        raise ValueError(f"--run-config: {error} in {text!r}") from error
