"""Where client apps run: in this process, or on Flower's Ray runtime."""

from fl_app.engine.app_folder import AppFolder, read_app
from fl_app.engine.inline import InlineGrid
from fl_app.engine.ray import run_on_ray

__all__ = ["AppFolder", "InlineGrid", "read_app", "run_on_ray"]
