"""BatchNorm in train mode, built from plain operators.

Batched by `torch.func.vmap`, torch's own batch norm gives wrong second derivatives
in train mode (torch 2.13; right one by one), and its update of the running statistics
in place is refused. The client's gradient needs neither: in train mode
the running statistics do not enter it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class BatchStatistics(nn.Module):
    """Normalises each channel by the batch, with the parameters of the layer that it replaces."""

    def __init__(self, norm: _BatchNorm):
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, inputs: Tensor) -> Tensor:
        axes = (0, *range(2, inputs.ndim))
        centred = inputs - inputs.mean(dim=axes, keepdim=True)
        scale = torch.rsqrt(centred.square().mean(dim=axes, keepdim=True) + self.eps)
        outputs = centred * scale
        if self.weight is None:
            return outputs
        shape = (1, -1, *[1] * (inputs.ndim - 2))
        return outputs * self.weight.view(shape) + self.bias.view(shape)


def use_batch_statistics(model: nn.Module) -> None:
    """Replace the BatchNorm layers inside ``model``; names of parameters stay."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, _BatchNorm):
                setattr(parent, name, BatchStatistics(child))
