"""Former home of the tap, kept for imports; `fl_app.flower` has it."""

from fl_app.flower import Tap, TappedGrid

__all__ = ["Tap", "TappedGrid"]
