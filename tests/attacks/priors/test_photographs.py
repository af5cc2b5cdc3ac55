import pytest
import torch

from attacks.priors import law_of


def drawn(count: int, seed: int = 0) -> torch.Tensor:
    """Images (N, 1, 4, 4) in three directions only, one of them symmetric, around a mean of 0.5."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.randn(3, 16, generator=generator)
    codes = torch.randn(count, 3, generator=generator) * torch.tensor([0.05, 0.03, 0.01])
    return (0.5 + codes @ directions).view(count, 1, 4, 4)


@pytest.mark.parametrize("count", [24, 600])  # fewer images than pixels with their mirror images, and more
def test_the_law_spans_the_images_and_their_mirror_images_and_nothing_else(count):
    images = torch.cat([drawn(count), drawn(count).flip(-1)])
    law = law_of(images)
    assert len(law.basis) <= 6
    again = law.pixels(law.codes(drawn(50, seed=0)[:20]))
    torch.testing.assert_close(again, drawn(50, seed=0)[:20], atol=1e-4, rtol=0)


def test_codes_of_the_images_have_variance_one_and_no_correlation():
    images = torch.rand(200, 3, 5, 5, generator=torch.Generator().manual_seed(1))
    law = law_of(images)
    codes = law.codes(torch.cat([images, images.flip(-1)])).double()
    assert codes.mean(dim=0).abs().max() < 1e-4
    torch.testing.assert_close(codes.t() @ codes / len(codes), torch.eye(75).double(), atol=1e-3, rtol=0)


def test_both_ways_to_the_directions_agree():
    images = torch.rand(40, 3, 6, 6, generator=torch.Generator().manual_seed(2))  # 80 of them, 108 pixels
    law = law_of(images)
    flat = torch.cat([images, images.flip(-1)]).flatten(1).double()
    covariance = (flat - flat.mean(0)).t() @ (flat - flat.mean(0)) / 80
    torch.testing.assert_close((law.basis.t() @ law.basis).double(), covariance, atol=1e-5, rtol=1e-3)


def test_the_law_of_the_same_images_is_learnt_once():
    images = torch.rand(16, 1, 3, 3)
    assert law_of(images) is law_of(images)


@pytest.mark.parametrize("shape", [(15, 3, 8, 8), (40, 64)])
def test_too_few_images_or_none_are_refused(shape):
    with pytest.raises(ValueError, match="expected at least 16 images"):
        law_of(torch.rand(shape))
