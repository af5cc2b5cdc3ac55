"""Copy of an app's folder, whose code is imported afresh for every run and whose files may be overwritten."""

from __future__ import annotations

import logging
import os
import random
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partialmethod
from pathlib import Path
from types import FrameType
from typing import TextIO
from unittest.mock import patch

import numpy as np
import torch
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from fl_app.flower import AppFolder, read_app
from fl_app.models.torchvision_cpu import import_torchvision

_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "venv", "__pycache__", "node_modules", ".mypy_cache")


@contextmanager
def sandbox(folder: Path) -> Iterator[AppFolder]:
    """Copy the app at ``folder`` and make the copy the current folder; what the app writes goes there."""
    original = read_app(folder)
    _prepare_torchvision()
    before = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="fl-app-audit-") as scratch:
        root = Path(scratch).resolve() / (original.root.name or "app")
        shutil.copytree(original.root, root, ignore=_LEFT_OUT)
        os.chdir(root)
        try:
            yield read_app(root)
        finally:
            os.chdir(before)


@contextmanager
def fresh_app(app: AppFolder) -> Iterator[tuple[ServerApp, ClientApp]]:
    """Import the app's objects anew: no module of an earlier import keeps data or state."""
    modules, path = dict(sys.modules), list(sys.path)
    level, root_level = logging.getLogger("flwr").level, logging.getLogger().level
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    reproducible(0)
    try:
        yield _loaded(app)
    finally:
        for name in [name for name in sys.modules if name not in modules and _lies_in(name, app.root)]:
            del sys.modules[name]
        sys.path[:] = path
        logging.getLogger("flwr").setLevel(level)
        logging.getLogger().setLevel(root_level)
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)


@contextmanager
def captured_output(log: TextIO) -> Iterator[None]:
    """Write to ``log`` what the app prints and logs; its warnings and progress bars are dropped."""
    flower, root = logging.getLogger("flwr"), logging.getLogger()
    before, propagated = (flower.handlers[:], root.handlers[:]), flower.propagate
    handler = logging.StreamHandler(log)
    flower.handlers[:] = root.handlers[:] = [handler]
    flower.propagate = False
    try:
        with redirect_stdout(log), warnings.catch_warnings(), _no_bars():
            warnings.simplefilter("ignore")
            yield
    finally:
        flower.handlers[:], root.handlers[:] = before
        flower.propagate = propagated


@contextmanager
def _no_bars() -> Iterator[None]:
    """Switch off the app's progress bars: this project shows its own."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield
        return
    with patch.object(tqdm, "__init__", partialmethod(tqdm.__init__, disable=True)):
        yield


def reproducible(seed: int) -> None:
    """Seed the global generators that apps draw from."""
    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)


def place_of(root: Path) -> str:
    """Return ``file:line`` of the innermost frame of the app's own code; "" if none is on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if file.is_relative_to(root):
            return f"{file.relative_to(root)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def _loaded(app: AppFolder) -> tuple[ServerApp, ClientApp]:
    try:
        return app.load()
    except ValueError:
        raise
    except Exception as error:  # a stranger's module may raise anything when it is imported
        raise ValueError(f"the app cannot be imported: {type(error).__name__}: {error}") from error


def _lies_in(name: str, root: Path) -> bool:
    file = getattr(sys.modules[name], "__file__", None)
    paths = [file] if file else list(getattr(sys.modules[name], "__path__", []))
    return any(Path(path).is_relative_to(root) for path in paths)


def _prepare_torchvision() -> None:
    try:
        import_torchvision()
    except ImportError:
        logging.getLogger(__name__).debug("torchvision is not installed")
