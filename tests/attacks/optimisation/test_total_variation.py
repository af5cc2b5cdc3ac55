import torch
from torch.autograd import gradcheck

from attacks.optimisation.priors import total_variation


def test_counts_steps_down_and_across_by_hand():
    image = torch.tensor([[0.0, 1.0, 4.0], [2.0, 1.0, 1.0]]).view(1, 1, 1, 2, 3)
    down, across = (2 + 0 + 3) / 3, (1 + 3 + 1 + 0) / 4
    torch.testing.assert_close(total_variation(image), torch.tensor([down + across]))


def test_is_zero_for_flat_images_and_grows_in_proportion():
    images = torch.rand(4, 2, 3, 5, 6)
    assert not total_variation(torch.full_like(images, 0.3)).any()
    torch.testing.assert_close(total_variation(3 * images), 3 * total_variation(images))


def test_problems_do_not_mix():
    images = torch.rand(4, 2, 3, 5, 6)
    alone = torch.cat([total_variation(images[p : p + 1]) for p in range(4)])
    torch.testing.assert_close(total_variation(images), alone)


def test_gradient_is_the_difference_of_signs():
    image = torch.tensor([1.0, 3.0, 2.0], requires_grad=True)
    (gradient,) = torch.autograd.grad(total_variation(image.view(1, 1, 1, 1, 3)).sum(), image)
    # (|b - a| + |c - b|) / 2 with b the largest
    torch.testing.assert_close(gradient, torch.tensor([-0.5, 1.0, -0.5]))
    assert gradcheck(total_variation, torch.rand(1, 1, 1, 3, 4).double().requires_grad_(True))
