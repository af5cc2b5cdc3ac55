"""Flower, adapted: grids that run in-process, on Ray or past a tap, and the reading of app folders.

Names are imported when they are used: the program that runs one app of another's needs none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fl_app.flower.supported import refuse_unsupported

if TYPE_CHECKING:
    from fl_app.flower.app_folder import AppFolder as AppFolder
    from fl_app.flower.app_folder import read_app as read_app
    from fl_app.flower.inline import InlineGrid as InlineGrid
    from fl_app.flower.launch import ENGINES as ENGINES
    from fl_app.flower.launch import run_app as run_app
    from fl_app.flower.ray import run_on_ray as run_on_ray
    from fl_app.flower.run_config import fuse as fuse
    from fl_app.flower.run_config import parse_pairs as parse_pairs
    from fl_app.flower.tapped import Tap as Tap
    from fl_app.flower.tapped import TappedGrid as TappedGrid

refuse_unsupported()

_MODULES = {
    "ENGINES": "launch",
    "AppFolder": "app_folder",
    "InlineGrid": "inline",
    "Tap": "tapped",
    "TappedGrid": "tapped",
    "fuse": "run_config",
    "parse_pairs": "run_config",
    "read_app": "app_folder",
    "run_app": "launch",
    "run_on_ray": "ray",
}
__all__ = [
    "ENGINES",
    "AppFolder",
    "InlineGrid",
    "Tap",
    "TappedGrid",
    "fuse",
    "parse_pairs",
    "read_app",
    "run_app",
    "run_on_ray",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value
