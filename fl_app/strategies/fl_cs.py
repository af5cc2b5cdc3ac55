"""FL-CS on Flower: random measurements of the update, and a sparse update that explains their mean."""

from __future__ import annotations

import logging
import time
from typing import Any

from fl_app.sketches import measurements
from fl_app.strategies.fl_std import FLStd
from fl_app.types import Update

logger = logging.getLogger(__name__)


class FLCS(FLStd):
    """Clients send measurements, as many as ``share`` of all coordinates (Kerkouche et al., FL-CS).

    They train everything. Measurements are linear: the server averages them, and looks for
    the sparse change only once a round. The whole model goes down.
    """

    keeps_sketch = False

    def __init__(self, *args: Any, share: float, **kwargs: Any) -> None:
        super().__init__(*args, scheme=measurements(share), **kwargs)

    def step(self, mean: Update, server_round: int) -> Update:
        """Return the weights after the reconstructed change, and log the time that it took."""
        start = time.process_time()
        weights = super().step(mean, server_round)
        logger.info(
            "round %d: reconstruction from %d measurements took %.1f CPU s",
            server_round,
            self.sketch.size,
            time.process_time() - start,
        )
        return weights
