"""Flower app on disk: the declarations of its pyproject.toml, and its two app objects."""

from __future__ import annotations

import importlib
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import UserConfigValue
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp


@dataclass(frozen=True)
class AppFolder:
    """A Flower app that can be run."""

    root: Path
    server_ref: str
    client_ref: str
    config: dict[str, UserConfigValue]

    def load(self) -> tuple[ServerApp, ClientApp]:
        """Import the app's objects; its folder comes first on the path, as Flower does."""
        if str(self.root) not in sys.path:
            sys.path.insert(0, str(self.root))
        return _load(self.server_ref, ServerApp), _load(self.client_ref, ClientApp)


def read_app(path: Path) -> AppFolder:
    """Read the app at ``path``: the folder with pyproject.toml, or a package folder below it."""
    if not path.is_dir():
        raise ValueError(f"--app: expected a folder, got {path}")
    for root in (path.resolve(), *path.resolve().parents):
        if (root / "pyproject.toml").is_file():
            break
    else:
        raise ValueError(f"--app: no pyproject.toml in {path} or above")
    table = (
        tomllib.loads((root / "pyproject.toml").read_text()).get("tool", {}).get("flwr", {}).get("app", {})
    )
    components = table.get("components", {})
    if not {"serverapp", "clientapp"} <= set(components):
        raise ValueError(
            f"{root / 'pyproject.toml'}: expected [tool.flwr.app.components] with serverapp and clientapp, "
            f"got {sorted(components)}"
        )
    return AppFolder(root, components["serverapp"], components["clientapp"], _flat(table.get("config", {})))


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, UserConfigValue]:
    """Flatten nested tables with dots, as Flower does."""
    flat: dict[str, UserConfigValue] = {}
    for key, value in table.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value})
    return flat


def _load(ref: str, kind: type) -> Any:
    module, _, name = ref.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the app names {ref!r}, which cannot be loaded: {error}") from error
    if not isinstance(found, kind):
        raise ValueError(f"the app names {ref!r}: expected a {kind.__name__}, got {type(found).__name__}")
    return found
