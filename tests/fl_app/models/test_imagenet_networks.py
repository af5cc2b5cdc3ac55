"""Networks of torchvision: its names and numbers, any number of channels, and derivatives for attacks."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fl_app.models import ModelSpec, build_model, efficientnet_b0, resnet50_imagenet
from fl_app.models.stored import load_weights
from fl_app.models.torchvision_cpu import import_torchvision

NETWORKS = {"efficientnet_b0": efficientnet_b0, "resnet50": resnet50_imagenet}
SIZES = {"efficientnet_b0": 5_288_548, "resnet50": 25_557_032}


@pytest.mark.parametrize("name", NETWORKS)
def test_takes_torchvisions_weights_from_a_file_and_computes_what_it_computes(name, tmp_path):
    theirs = getattr(import_torchvision("models"), name)(weights=None).eval()
    save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    ours = NETWORKS[name](num_classes=1000, in_shape=(3, 64, 64)).eval()
    assert sum(p.numel() for p in ours.parameters()) == SIZES[name]
    load_weights(ours, tmp_path / "weights.safetensors")
    x = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("make", NETWORKS.values())
def test_sees_any_number_of_channels_and_keeps_all_other_parameters(make):
    colour, grey = make(7, (3, 32, 32)), make(7, (1, 32, 32))
    assert grey(torch.rand(2, 1, 32, 32)).shape == (2, 7)
    shapes = [{name: p.shape for name, p in network.named_parameters()} for network in (colour, grey)]
    assert list(shapes[0]) == list(shapes[1])
    assert [name for name in shapes[0] if shapes[0][name] != shapes[1][name]] == [next(iter(shapes[0]))]


@pytest.mark.parametrize("make", NETWORKS.values())
def test_the_gradient_of_its_gradient_reaches_the_input(make):
    network = make(3, (3, 32, 32)).eval()
    assert not any(getattr(module, "inplace", False) for module in network.modules())
    x = torch.rand(2, 3, 32, 32, requires_grad=True)
    loss = nn.functional.cross_entropy(network(x), torch.tensor([0, 1]))
    gradients = torch.autograd.grad(loss, list(network.parameters()), create_graph=True)
    (second,) = torch.autograd.grad(sum(g.square().sum() for g in gradients), x)
    assert second.isfinite().all()
    assert second.abs().sum() > 0


@pytest.mark.parametrize("make", NETWORKS.values())
def test_is_on_the_list_of_what_an_order_may_name_and_says_who_refuses(make):
    target = f"fl_app.models.{make.__name__}"
    built = build_model(ModelSpec(target, {"num_classes": 5, "in_shape": [3, 32, 32]})).eval()
    assert built(torch.rand(1, 3, 32, 32)).shape == (1, 5)
    with pytest.raises(ValueError, match=f"{make.__name__}: in_shape must be three positive integers"):
        make(5, (32, 32))
