"""FL-BASIC on Flower: new random coordinates in every round."""

from __future__ import annotations

from typing import Any

from fl_app.coordinates import Sketch, random_coordinates
from fl_app.strategies.fl_std import FLStd, round_seed


class FLBasic(FLStd):
    """Clients train and send ``share`` of all coordinates, new ones each round (Kerkouche et al., FL-BASIC).

    The order has the seed, so it costs no upload to say which they are. The whole model goes down.
    """

    bound_sketches = 100

    def __init__(self, *args: Any, share: float, seed: int = 0, **kwargs: Any) -> None:
        self._scheme, self._public_seed = random_coordinates(share), seed
        super().__init__(*args, seed=seed, **kwargs)

    def sketch_of(self, server_round: int) -> Sketch:
        """Return this round's coordinates."""
        return self._scheme(self.total_entries, round_seed(self._public_seed, server_round), None)
