"""The code, machine and data that a run's numbers come from."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

import fl_app
from fl_app.results import Origin
from fl_app.storage.fingerprint import SHORT, short_hash

_LOCKS = ("constraints.txt", "requirements.lock")
_GIT_SECONDS = 5
_PROCESSORS = Path("/proc/cpuinfo")


def origin_of(test_data: Sequence[Tensor]) -> Origin:
    """Return what a rerun needs to know; of the checkout and the machine, what can be found out."""
    found = _of_checkout(Path(fl_app.__file__).parents[1]).model_copy()
    found.processor = processor()
    found.system = f"{platform.system()} {platform.machine()}"
    found.threads = torch.get_num_threads()
    found.test_data = short_hash(test_data)
    return found


@cache
def processor() -> str | None:
    """Return the processor's model; the same numbers can be expected on the same one alone."""
    try:
        lines = _PROCESSORS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, None) or platform.processor() or None


@cache
def _of_checkout(root: Path) -> Origin:
    if not (root / ".git").exists():  # installed as a wheel, or from a bundle
        return Origin()
    commit, changes = _git(root, "rev-parse", "HEAD"), _git(root, "status", "--porcelain", "-uno")
    locks = [root / name for name in _LOCKS if (root / name).is_file()]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in locks)).hexdigest()
    return Origin(
        commit=commit,
        changed=None if changes is None else bool(changes),
        lock=digest[:SHORT] if locks else None,
    )


def _git(root: Path, *words: str) -> str | None:
    try:
        found = subprocess.run(
            ["git", "-C", str(root), "--no-optional-locks", *words],
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
