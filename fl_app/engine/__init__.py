"""Where client apps run: in this process, or on Flower's Ray runtime."""

from fl_app.engine.app_folder import AppFolder, read_app
from fl_app.engine.inline import InlineGrid
from fl_app.engine.launch import ENGINES, run_app
from fl_app.engine.ray import run_on_ray
from fl_app.engine.run_config import fuse, parse_pairs

__all__ = ["ENGINES", "AppFolder", "InlineGrid", "fuse", "parse_pairs", "read_app", "run_app", "run_on_ray"]
