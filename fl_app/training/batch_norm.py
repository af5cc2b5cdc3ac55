"""Source of BatchNorm statistics in a federation: shared, each client's own, or the initial ones."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def set_mode(model: nn.Module, *, training: bool, bn: str) -> None:
    """Put ``model`` into train or eval mode; frozen statistics are used but never updated."""
    model.train(training)
    if bn == "frozen":
        for module in _norms(model):
            module.eval()


def set_evaluation(model: nn.Module, bn: str) -> None:
    """Put a server's model into eval mode.

    With ``bn="local"`` the server has no statistics of its own: it normalises by
    those of the test batch.
    """
    model.eval()
    if bn == "local":
        for module in _norms(model):
            module.train()
            module.momentum = 0.0  # keep the running statistics unchanged


def _norms(model: nn.Module) -> list[_BatchNorm]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]
