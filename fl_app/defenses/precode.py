"""PRECODE (Scheliga, Mäder, Seeland, WACV 2022): a model with a variational bottleneck."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from fl_app.defenses.defense import Defense
from fl_app.models import ModelSpec
from fl_app.models.bottleneck import Bottleneck, divergence
from fl_app.models.layers import watched
from fl_app.models.settings import check_count
from fl_app.training import Batch, Rules, cross_entropy
from fl_app.transforms.settings import check_strength
from fl_app.types import Trace


def precode(size: int = 256, beta: float = 1e-3) -> Defense:
    """Train with a variational bottleneck of ``size`` before the last linear layer.

    The loss is the cross-entropy plus ``beta`` times the KL divergence of the
    bottleneck's Gaussians from N(0, 1). The bottleneck's layers are part of the
    model and of the update. Training also refuses a model without one: a server that
    orders the plain model would otherwise get its plain gradient.
    """
    check_count("precode", "size", size)
    check_strength("precode", "beta", beta)

    def extend(spec: ModelSpec) -> ModelSpec:
        return replace(spec, extensions=spec.extensions | {"bottleneck": {"size": size}})

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        bottleneck = _bottleneck(model)
        with watched(bottleneck.encoder) as calls:
            value = cross_entropy(model, batch)
        return value + beta * divergence(calls[-1].output)

    def check(model: nn.Module) -> None:
        _bottleneck(model)

    return Defense(rules=Rules(loss=loss), model=extend, check=check, trained=(Trace(divergence=beta),))


def _bottleneck(model: nn.Module) -> Bottleneck:
    found = [module for module in model.modules() if isinstance(module, Bottleneck)]
    if len(found) != 1:
        raise ValueError(f"precode: the model must have one bottleneck, got {len(found)}")
    return found[0]
