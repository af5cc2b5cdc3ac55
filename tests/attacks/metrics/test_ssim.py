import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from skimage.metrics import structural_similarity

from attacks.metrics import ssim


def by_scikit_image(a: torch.Tensor, b: torch.Tensor) -> float:
    return structural_similarity(
        a.permute(1, 2, 0).double().numpy(),
        b.permute(1, 2, 0).double().numpy(),
        channel_axis=2,
        data_range=1.0,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
    )


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    channels=st.sampled_from([1, 3]),
    height=st.integers(11, 40),
    width=st.integers(11, 40),
    noise=st.sampled_from([0.0, 0.05, 0.5, 2.0]),
)
def test_agrees_with_scikit_image(seed, channels, height, width, noise):
    generator = torch.Generator().manual_seed(seed)
    a = torch.rand(2, channels, height, width, generator=generator)
    b = (a + noise * torch.randn(a.shape, generator=generator)).clamp(0, 1)
    expected = np.array([by_scikit_image(x, y) for x, y in zip(a, b, strict=True)])
    np.testing.assert_allclose(ssim(a, b).numpy(), expected, atol=1e-9)


def test_is_one_for_equal_images_and_symmetric():
    a, b = torch.rand(2, 4, 3, 16, 16)
    torch.testing.assert_close(ssim(a, a), torch.ones(4).double())
    torch.testing.assert_close(ssim(a, b), ssim(b, a))


@pytest.mark.parametrize("side", [1, 2, 8, 10])
def test_small_images_get_a_smaller_window(side):
    a, b = torch.rand(2, 2, 1, side, side)
    torch.testing.assert_close(ssim(a, a), torch.ones(2).double())
    assert (ssim(a, b) < 1).all()
