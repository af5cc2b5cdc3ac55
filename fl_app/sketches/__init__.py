"""Sketches: a few numbers in place of an update, as chosen coordinates or linear measurements."""

from fl_app.sketches.flat import (
    check_coordinates,
    count_by_layer,
    flatten,
    gather,
    mask_coordinates,
    scatter,
    split_coordinates,
    unflatten,
)
from fl_app.sketches.measurements import PartialCosines, Reconstruction, draw_measurements, reconstruct
from fl_app.sketches.sketch import (
    Chosen,
    Everything,
    Measured,
    Picked,
    Scheme,
    Sketch,
    Votes,
    everything,
    fixed_coordinates,
    measurements,
    picked_coordinates,
    random_coordinates,
)
from fl_app.sketches.top import coordinate_count, top_coordinates
from fl_app.wire.drawn import Drawn
from fl_app.wire.random_set import draw_coordinates

__all__ = [
    "Chosen",
    "Drawn",
    "Everything",
    "Measured",
    "PartialCosines",
    "Picked",
    "Reconstruction",
    "Scheme",
    "Sketch",
    "Votes",
    "check_coordinates",
    "coordinate_count",
    "count_by_layer",
    "draw_coordinates",
    "draw_measurements",
    "everything",
    "fixed_coordinates",
    "flatten",
    "gather",
    "mask_coordinates",
    "measurements",
    "picked_coordinates",
    "random_coordinates",
    "reconstruct",
    "scatter",
    "split_coordinates",
    "top_coordinates",
    "unflatten",
]
