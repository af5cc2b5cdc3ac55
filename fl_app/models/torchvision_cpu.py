"""Make `import torchvision` work where its wheel was built for CUDA and torch was not.

The CUDA wheel registers operators whose schemas only its own binary defines; on a
CPU build of torch that binary does not load and the import fails with "operator
torchvision::nms does not exist". Defining the two missing schemas is enough:
nothing in this project calls them.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import torch

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_library: torch.library.Library | None = None


def import_torchvision(submodule: str = "") -> ModuleType:
    """Import torchvision (or ``torchvision.<submodule>``), whatever build of torch is installed."""
    if torch.version.cuda is None:
        _define_missing_schemas()
    return importlib.import_module("torchvision" + (f".{submodule}" if submodule else ""))


def _define_missing_schemas() -> None:
    global _library
    names = [name for name in ("nms", "qnms") if not hasattr(torch.ops.torchvision, name)]
    if not names or _library is not None:
        return
    # kept alive for the whole process: a Library that is collected takes its schemas along
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for name in names:
        _library.define(name + _SCHEMA)
