"""Flower, adapted: grids that run in-process, on Ray or past a tap, and the reading of app folders."""

from fl_app.flower.app_folder import AppFolder, read_app
from fl_app.flower.inline import InlineGrid
from fl_app.flower.launch import ENGINES, run_app
from fl_app.flower.ray import run_on_ray
from fl_app.flower.run_config import fuse, parse_pairs
from fl_app.flower.tapped import Tap, TappedGrid

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
