import logging

import pytest
import torch

from attacks.metrics import lpips, lpips_weights
from fl_app.torchvision_cpu import import_torchvision


@pytest.fixture
def trained() -> dict[str, torch.Tensor]:
    weights = lpips_weights.load()
    if weights is None:
        pytest.skip("the LPIPS weights are not in the cache: python -m attacks.metrics.lpips_weights")
    return weights


def test_is_missing_without_weights_and_says_so(tmp_path, caplog):
    images = torch.rand(2, 3, 8, 8)
    with caplog.at_level(logging.WARNING):
        assert lpips(images, images, cache_dir=tmp_path) is None
    assert "no valid weights" in caplog.text


def test_other_channel_counts_are_refused(tmp_path):
    with pytest.raises(ValueError, match="1 or 3 channels, got 2"):
        lpips(torch.zeros(1, 2, 8, 8), torch.zeros(1, 2, 8, 8), cache_dir=tmp_path)


def test_grows_with_the_noise_and_is_zero_for_equal_images(trained):
    generator = torch.Generator().manual_seed(0)
    truth = torch.rand(1, 3, 4, 4, generator=generator)
    truth = torch.nn.functional.interpolate(truth, size=32, mode="bicubic").clamp(0, 1)
    noise = torch.randn(truth.shape, generator=generator)
    distances = [lpips(truth + level * noise, truth).item() for level in (0.0, 0.05, 0.2)]
    assert distances[0] == 0
    assert distances[0] < distances[1] < distances[2]


def test_leaves_the_global_generator_alone(trained):
    from attacks.metrics import perception

    perception._network.cache_clear()
    before = torch.random.get_rng_state()
    lpips(torch.rand(1, 1, 8, 8, generator=torch.Generator()), torch.zeros(1, 1, 8, 8))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_linear_weights_are_those_of_the_lpips_package(trained):
    import_torchvision()
    import lpips as package

    network = package.LPIPS(pretrained=True, net="alex", pnet_rand=True, verbose=False)
    for layer in range(5):
        ours = trained[f"lin{layer}.weight"]
        torch.testing.assert_close(ours, getattr(network, f"lin{layer}").model[1].weight.data, rtol=0, atol=0)
