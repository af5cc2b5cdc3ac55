"""FL-BASIC on Flower: new random coordinates in every round."""

from __future__ import annotations

from typing import Any

from fl_app.sketches import random_coordinates
from fl_app.strategies.fl_std import FLStd


class FLBasic(FLStd):
    """Clients train and send ``share`` of all coordinates, new ones each round (Kerkouche et al., FL-BASIC).

    The order has the seed, so it costs no upload to say which they are. The whole model goes down.
    """

    keeps_sketch = False
    bound_sketches = 100

    def __init__(self, *args: Any, share: float, **kwargs: Any) -> None:
        super().__init__(*args, scheme=random_coordinates(share), **kwargs)
