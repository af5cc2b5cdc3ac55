"""FL-BASIC on Flower: new random coordinates in every round."""

from __future__ import annotations

from torch import nn

from fl_app.privacy import ClientNoise
from fl_app.sketches import random_coordinates
from fl_app.strategies.arguments import ConfiguredRun
from fl_app.strategies.fl_std import FLStd
from fl_app.strategies.optimisers import ServerOptimiser
from fl_app.strategies.robust import Rule
from fl_app.strategies.secure import SecureAggregation
from fl_app.training import PublicRound
from fl_app.training.schedules import Schedule


class FLBasic(FLStd):
    """Clients train and send ``share`` of all coordinates, new ones each round (Kerkouche et al., FL-BASIC).

    The order carries their seed, so uploads need no positions. Clients download the whole model.
    """

    keeps_sketch = False
    bound_sketches = 100

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
            scheme=random_coordinates(share),
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
