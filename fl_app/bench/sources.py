"""Data sets of the criterion on this machine, as overrides; reasons for those that are missing."""

from __future__ import annotations

import os
from pathlib import Path

from fl_app.config.compose import quote

FALLBACK = "album"
"""Pictures that are installed with the project: no data set of the criterion, but always there."""
_DEBIAN = Path("/usr/share/datasets/fashion-mnist")


def overrides_of(name: str, folder: Path | None = None) -> list[str] | None:
    """Return the overrides that load a data set; None if it is not in ``folder`` ($FL_APP_DATA or data)."""
    root = folder or Path(os.environ.get("FL_APP_DATA", "data"))
    if name == FALLBACK:
        return ["data=album"]
    if name == "cifar10" and (root / "cifar10" / "train").is_dir():
        return ["data=imagefolder", f"data.root={quote((root / 'cifar10').resolve())}"]
    if name == "cifar10" and (root / "cifar-10-batches-py").is_dir():
        return ["data=cifar10", f"data.root={quote(root.resolve())}"]
    if name == "fashion_mnist" and (_DEBIAN.is_dir() or (root / "FashionMNIST").is_dir()):
        return ["data=fashion_mnist", f"data.root={quote(root.resolve())}"]
    if name == "pneumonia" and (root / "pneumoniamnist.npz").is_file():
        return ["data=pneumonia", f"data.root={quote(root.resolve())}"]
    return None
