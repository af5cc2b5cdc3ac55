"""EfficientNet-Lite0: its size, its padding, and the trained weights, which know a cat."""

from __future__ import annotations

import pytest
import torch
from skimage.data import chelsea
from torch import nn
from torch.nn import functional as F

from fl_app.models import ModelSpec, build_model, efficientnet_lite0
from fl_app.models import efficientnet_lite_weights as trained

CATS = range(281, 286)
"""Classes of ImageNet: tabby, tiger cat, Persian, Siamese, Egyptian."""


def test_has_the_published_number_of_parameters():
    network = efficientnet_lite0(1000, (3, 224, 224))
    assert sum(p.numel() for p in network.parameters()) == 4_652_008


@pytest.mark.parametrize("size", [7, 8])
@pytest.mark.parametrize("stride", [1, 2])
def test_pads_so_that_the_size_is_divided_by_the_stride_and_rounded_up(size, stride):
    (*_, first) = (m for m in efficientnet_lite0(2, (1, 8, 8)).modules() if isinstance(m, nn.Conv2d))
    conv = type(first)(1, 1, 3, stride=stride, bias=False)
    x = torch.rand(1, 1, size, size)
    y = conv(x)
    assert y.shape[-1] == -(-size // stride)
    # by hand: an even size and a stride of 2 leave one more pixel at the end, none at the beginning
    before = 0 if (size, stride) == (8, 2) else 1
    torch.testing.assert_close(y, F.conv2d(F.pad(x, (before, 1) * 2), conv.weight, stride=stride))


def test_the_gradient_of_its_gradient_reaches_the_input():
    network = build_model(
        ModelSpec("fl_app.models.efficientnet_lite0", {"num_classes": 3, "in_shape": [3, 32, 32]})
    ).eval()
    x = torch.rand(2, 3, 32, 32, requires_grad=True)
    loss = F.cross_entropy(network(x), torch.tensor([0, 1]))
    gradients = torch.autograd.grad(loss, list(network.parameters()), create_graph=True)
    (second,) = torch.autograd.grad(sum(g.square().sum() for g in gradients), x)
    assert second.abs().sum() > 0


def test_trained_weights_know_a_cat():
    pytest.importorskip(trained.PACKAGE, reason="the extra 'trained' is not installed")
    network = efficientnet_lite0(trained.CLASSES, (3, trained.SIZE, trained.SIZE)).eval()
    network.load_state_dict(trained.trained_weights())
    photo = torch.from_numpy(chelsea()).permute(2, 0, 1)[None, :, :, 75:375] / 255
    seen = F.interpolate(photo, (trained.SIZE,) * 2, mode="bilinear", antialias=True)
    with torch.no_grad():
        classes = network((seen - trained.MEAN) / trained.STD).topk(3).indices
    assert set(classes.flatten().tolist()) <= set(CATS)


def test_says_how_to_get_the_weights_where_they_are_not(monkeypatch):
    monkeypatch.setattr(trained, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=trained.PACKAGE):
        trained.trained_weights()
