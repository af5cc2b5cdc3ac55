"""The MNIST network of McMahan et al. (AISTATS 2017), which introduced federated averaging."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from fl_app.models.settings import check_task

HIDDEN = 512


def mcmahan_cnn(num_classes: int, in_shape: Sequence[int]) -> nn.Module:
    """Two 5x5 convolutions (32 and 64 channels), each max-pooled by 2, a dense layer of 512, and the output.

    The convolutions pad by 2: only then does it have the 1,663,370 parameters that the paper reports.
    """
    channels, height, width = check_task("mcmahan_cnn", num_classes, in_shape, least=4)
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 32, 5, padding=2),
            act1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(32, 64, 5, padding=2),
            act2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            hidden=nn.Linear(64 * (height // 2 // 2) * (width // 2 // 2), HIDDEN),
            act3=nn.ReLU(),
            output=nn.Linear(HIDDEN, num_classes),
        )
    )
