"""Malicious server that raises the candidates' loss before their clients train (Nasr et al. 2019)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fl_app.adversary.active import ActiveServer
from fl_app.types import Manipulated, Records
from fl_app.wire.messages import Order

Ascend = Callable[[nn.Module, Records], Manipulated]
"""From a model and candidates to the model that the server sends."""


class AscendingServer(ActiveServer):
    """An active server that waits for the candidates: it manipulates from the round after they are known."""

    def __init__(self, *, ascend: Ascend, **audit: Any) -> None:
        def manipulate(model: nn.Module) -> Manipulated:
            known = [self.candidates[client][0] for client in sorted(self.candidates)]
            joined = Records(
                torch.cat([one.inputs for one in known]), torch.cat([one.labels for one in known])
            )
            return ascend(model, joined)

        super().__init__(manipulate=manipulate, **audit)

    def _baits(self, order: Order) -> bool:
        return self.attacks(order) and order.client in self.candidates
