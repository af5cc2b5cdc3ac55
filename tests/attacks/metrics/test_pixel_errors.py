import math

import pytest
import torch

from attacks.metrics import mse, psnr
from attacks.metrics.error import PSNR_CAP


def test_errors_of_a_constant_shift_are_known_in_closed_form():
    truth = torch.full((2, 3, 4, 5), 0.5)
    images = torch.stack([truth[0] + 0.1, truth[1] - 0.25])
    torch.testing.assert_close(mse(images, truth), torch.tensor([0.01, 0.0625]).double(), rtol=1e-5, atol=0)
    expected = torch.tensor([20.0, -20 * math.log10(0.25)]).double()
    torch.testing.assert_close(psnr(images, truth), expected, rtol=1e-5, atol=0)


def test_equal_images_reach_the_cap_and_not_infinity():
    truth = torch.rand(3, 1, 4, 4)
    assert psnr(truth, truth).tolist() == [PSNR_CAP] * 3


def test_pixels_outside_the_range_are_clamped_first():
    truth = torch.ones(1, 1, 2, 2)
    assert mse(truth * 7, truth).item() == 0
    assert mse(truth * -7, truth).item() == 1


@pytest.mark.parametrize("metric", [mse, psnr])
def test_stacks_of_different_shape_are_refused(metric):
    with pytest.raises(ValueError, match="expected equal stacks"):
        metric(torch.zeros(2, 3, 4, 4), torch.zeros(1, 3, 4, 4))
