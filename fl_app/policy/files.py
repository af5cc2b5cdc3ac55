"""Strict reader of policy files (TOML or YAML); errors name the key, the expected and the given value."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from fl_app.policy.policy import Policy

LARGEST = 1 << 20


def load_policy(path: Path) -> Policy:
    """Return the policy in a file; raise a ValueError that names the fault and its place."""
    try:
        entry = path.stat()
        if not stat.S_ISREG(entry.st_mode):
            raise ValueError(f"{path}: expected a file, got a folder, pipe or device")
        if entry.st_size > LARGEST:
            raise ValueError(f"{path}: expected a policy of at most {LARGEST} bytes, got {entry.st_size}")
        content = _read(path)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected keys and values, got {type(content).__name__}")
    try:
        return Policy.model_validate(content)
    except ValidationError as error:
        raise ValueError("\n".join(_fault(path, fault) for fault in error.errors())) from error


def _read(path: Path) -> Any:
    text = path.read_text(encoding="utf-8")
    try:
        if path.suffix == ".toml":
            return tomllib.loads(text)
        if path.suffix in (".yaml", ".yml"):
            return yaml.safe_load(text) or {}
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: {error}") from error
    raise ValueError(f"{path}: expected a name that ends in .toml, .yaml or .yml")


def _fault(path: Path, fault: Any) -> str:
    key = ".".join(map(str, fault["loc"]))
    if fault["type"] == "extra_forbidden":
        return f"{path}: {key}: no policy has such a key"
    return f"{path}: {key}: {fault['msg']}, got {fault['input']!r}"
