import logging

import pytest
import torch
import torch.nn.functional as F

from attacks.metrics import lpips, lpips_weights, perception
from fl_app.models.torchvision_cpu import import_torchvision

TAPS = {"alex": (1, 4, 7, 9, 11), "vgg": (3, 8, 15, 22, 29)}
"""The ReLUs whose outputs are compared."""


@pytest.fixture(params=["alex", "vgg"])
def net(request) -> str:
    return request.param


@pytest.fixture
def trained(net) -> dict[str, torch.Tensor]:
    weights = lpips_weights.load(net=net)
    if weights is None:
        pytest.skip(f"the weights are not in the cache: fl-app weights {net}")
    return weights


def smooth(generator: torch.Generator, number: int = 1, size: int = 32) -> torch.Tensor:
    image = torch.rand(number, 3, 4, 4, generator=generator)
    return F.interpolate(image, size=size, mode="bicubic").clamp(0, 1)


def by_hand(a: torch.Tensor, b: torch.Tensor, net: str, weights: dict[str, torch.Tensor]) -> torch.Tensor:
    """Zhang et al. 2018, Eq. (1): weighted squared differences of unit features, averaged over space."""
    models = import_torchvision("models")
    with torch.device("meta"):  # no time for random weights
        features = {"alex": models.alexnet, "vgg": models.vgg16}[net]().features
    trunk = {k.removeprefix("features."): v for k, v in weights.items() if k.startswith("features.")}
    features.load_state_dict(trunk, assign=True)
    shift = torch.tensor([-0.030, -0.088, -0.188]).view(3, 1, 1)
    scale = torch.tensor([0.458, 0.448, 0.450]).view(3, 1, 1)
    x = torch.cat([(2 * image - 1 - shift) / scale for image in (a, b)])
    total = torch.zeros(len(a))
    for index, layer in enumerate(features):
        x = layer(x)
        if index in TAPS[net]:
            unit = x / (x.norm(dim=1, keepdim=True) + 1e-10)
            difference = (unit[: len(a)] - unit[len(a) :]).square()
            weighted = difference * weights[f"lin{TAPS[net].index(index)}.weight"]
            total = total + weighted.sum(dim=1).mean(dim=(1, 2))
    return total.detach()


def test_is_missing_without_weights_and_says_so(net, tmp_path, caplog):
    images = torch.rand(2, 3, 8, 8)
    with caplog.at_level(logging.WARNING):
        assert lpips(images, images, net=net, cache_dir=tmp_path) is None
    assert f"lpips-{net}.safetensors does not exist" in caplog.text


def test_is_missing_with_damaged_weights(net, tmp_path):
    lpips_weights.weights_path(tmp_path, net).write_bytes(b"no tensors here")
    assert lpips(torch.zeros(1, 3, 8, 8), torch.ones(1, 3, 8, 8), net=net, cache_dir=tmp_path) is None


def test_unknown_networks_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\['alex', 'vgg'\], got 'squeeze'"):
        lpips(torch.zeros(1, 3, 8, 8), torch.zeros(1, 3, 8, 8), net="squeeze", cache_dir=tmp_path)


def test_other_channel_counts_are_refused(tmp_path):
    with pytest.raises(ValueError, match="1 or 3 channels, got 2"):
        lpips(torch.zeros(1, 2, 8, 8), torch.zeros(1, 2, 8, 8), cache_dir=tmp_path)


def test_grows_with_the_noise_and_is_zero_for_equal_images(net, trained):
    generator = torch.Generator().manual_seed(0)
    truth = smooth(generator)
    noise = torch.randn(truth.shape, generator=generator)
    distances = [lpips(truth + level * noise, truth, net=net).item() for level in (0.0, 0.05, 0.2)]
    assert distances[0] == 0
    assert distances[0] < distances[1] < distances[2]


def test_is_the_formula_of_the_paper(net, trained):
    generator = torch.Generator().manual_seed(1)
    a, b = smooth(generator, number=2, size=64), smooth(generator, number=2, size=64)
    torch.testing.assert_close(lpips(a, b, net=net), by_hand(a, b, net, trained), rtol=1e-4, atol=1e-6)


def test_alexnet_is_meant_where_no_network_is_named(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        lpips(torch.zeros(1, 3, 8, 8), torch.zeros(1, 3, 8, 8), cache_dir=tmp_path)
    assert "lpips-alex" in caplog.text


def test_leaves_the_global_generator_alone(net, trained):
    perception._network.cache_clear()
    before = torch.random.get_rng_state()
    lpips(torch.rand(1, 1, 8, 8, generator=torch.Generator()), torch.zeros(1, 1, 8, 8), net=net)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_linear_weights_are_those_of_the_lpips_package(net, trained):
    import_torchvision()
    import lpips as package

    network = package.LPIPS(pretrained=True, net=net, pnet_rand=True, verbose=False)
    for layer in range(5):
        ours = trained[f"lin{layer}.weight"]
        torch.testing.assert_close(ours, getattr(network, f"lin{layer}").model[1].weight.data, rtol=0, atol=0)
