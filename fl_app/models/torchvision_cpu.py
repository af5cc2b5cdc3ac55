"""Import of torchvision, whatever build of torch is installed: `fl_app.torch_backend` says why."""

from __future__ import annotations

import importlib
from types import ModuleType

from fl_app.torch_backend import define_missing_schemas


def import_torchvision(submodule: str = "") -> ModuleType:
    """Import torchvision (or ``torchvision.<submodule>``), also where torch has not called our hook."""
    define_missing_schemas()
    return importlib.import_module("torchvision" + (f".{submodule}" if submodule else ""))
