"""Former home of the engines, kept for imports; `fl_app.flower` has them."""

from fl_app.flower import ENGINES, InlineGrid, run_app, run_on_ray

__all__ = ["ENGINES", "InlineGrid", "run_app", "run_on_ray"]
