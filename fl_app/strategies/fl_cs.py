"""FL-CS on Flower: random measurements of the update, and a sparse update that explains their mean."""

from __future__ import annotations

import logging
import time

from torch import nn

from fl_app.privacy import ClientNoise
from fl_app.sketches import measurements
from fl_app.strategies.arguments import ConfiguredRun
from fl_app.strategies.fl_std import FLStd
from fl_app.strategies.optimisers import ServerOptimiser
from fl_app.strategies.robust import Rule
from fl_app.strategies.secure import SecureAggregation
from fl_app.training import PublicRound
from fl_app.training.schedules import Schedule
from fl_app.types import Update

logger = logging.getLogger(__name__)


class FLCS(FLStd):
    """Clients send measurements, as many as ``share`` of all coordinates (Kerkouche et al., FL-CS).

    They train all weights. Measurements are linear: the server averages them and reconstructs
    the sparse change once per round. Clients download the whole model.
    """

    keeps_sketch = False

    def __init__(
        self,
        model: nn.Module,
        lr: float | Schedule,
        *,
        share: float,
        server_lr: float = 1.0,
        public: PublicRound | None = None,
        privacy: ClientNoise | None = None,
        aggregation: SecureAggregation | None = None,
        clients: int | None = None,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 0.0,
        min_available_nodes: int = 2,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        optimiser: ServerOptimiser | None = None,
        downlink: str = "auto",
        exchange_buffers: bool = True,
        timeout: float | None = None,
        wait: float = 60.0,
        seed: int = 0,
        aggregate: Rule | None = None,
        run: ConfiguredRun | None = None,
    ) -> None:
        super().__init__(
            model,
            lr,
            server_lr=server_lr,
            public=public,
            privacy=privacy,
            aggregation=aggregation,
            scheme=measurements(share),
            clients=clients,
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_available_nodes=min_available_nodes,
            momentum=momentum,
            weight_decay=weight_decay,
            optimiser=optimiser,
            downlink=downlink,
            exchange_buffers=exchange_buffers,
            timeout=timeout,
            wait=wait,
            seed=seed,
            aggregate=aggregate,
            run=run,
        )

    def step(self, mean: Update, server_round: int) -> Update:
        """Return the weights after the reconstructed change, and log the time of the reconstruction."""
        start = time.process_time()
        weights = super().step(mean, server_round)
        logger.info(
            "round %d: reconstruction from %d measurements took %.1f CPU s",
            server_round,
            self.sketch.size,
            time.process_time() - start,
        )
        return weights
