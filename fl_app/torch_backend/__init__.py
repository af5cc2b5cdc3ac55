"""Hook that torch calls at its own import, so that `import torchvision` works everywhere in an environment.

torchvision's wheel is built for CUDA and registers operators whose schemas only its own binary defines. On
a CPU build of torch that binary does not load, and the import fails with "operator torchvision::nms does
not exist". Defining the two missing schemas is enough: nothing in this project calls them. torch looks for
hooks in the entry points of the group ``torch.backends``; ``TORCH_DEVICE_BACKEND_AUTOLOAD=0`` turns them off.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_CUDA = re.compile(r"__version__ = .*\+cu\d")
_library: Any = None


def define_missing_schemas() -> None:
    """Define what a torchvision for CUDA lacks beside a torch without; otherwise do nothing."""
    global _library
    import torch

    if _library is not None or torch.version.cuda is not None or not _is_for_cuda():
        return
    names = [name for name in ("nms", "qnms") if not hasattr(torch.ops.torchvision, name)]
    if not names:
        return
    # kept alive for the whole process: a Library that is collected takes its schemas along
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for name in names:
        _library.define(name + _SCHEMA)


def _is_for_cuda() -> bool:
    """Say whether the installed torchvision was built for CUDA; one for CPUs defines the schemas itself."""
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return False
    version = Path(found.origin).with_name("version.py")
    return version.is_file() and _CUDA.search(version.read_text(encoding="utf-8")) is not None
