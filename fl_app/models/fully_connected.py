"""A multilayer perceptron, the model on which analytic attacks recover inputs exactly."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from fl_app.models.settings import ACTIVATIONS, check_count, check_features, choose, outputs


def mlp(
    num_classes: int,
    in_shape: Sequence[int],
    hidden: Sequence[int] = (256,),
    activation: str = "relu",
    one_logit: bool = False,
) -> nn.Module:
    """Flatten, then one linear layer with an activation per entry of ``hidden``, then a linear output.

    An empty ``hidden`` is logistic regression; with ``one_logit``, that of two classes in its usual form.
    """
    features = check_features("mlp", num_classes, in_shape)
    layer = choose("mlp", "activation", activation, ACTIVATIONS)
    if not isinstance(hidden, Sequence) or isinstance(hidden, str):
        raise ValueError(f"mlp: hidden must be a list of widths, got {hidden!r}")
    for width in hidden:
        check_count("mlp", "every width in hidden", width)

    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for i, width in enumerate(hidden, start=1):
        layers[f"hidden{i}"] = nn.Linear(features, width)
        layers[f"act{i}"] = layer()
        features = width
    layers["output"] = nn.Linear(features, outputs("mlp", num_classes, one_logit))
    return nn.Sequential(layers)
