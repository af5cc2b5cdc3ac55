import torch
from torch.autograd import gradcheck

from attacks.optimisation.priors import FLAT, colour_variation


def test_is_the_mean_length_of_steps_by_hand():
    image = torch.tensor([[0.0, 4.0], [3.0, 3.0]]).double().view(1, 1, 1, 2, 2)
    # top left: 3 down, 4 across; top right: 1 down; bottom left: none
    torch.testing.assert_close(
        colour_variation(image), torch.tensor([(5 + 1) / 4]).double(), atol=FLAT, rtol=0
    )


def test_is_zero_for_flat_images_and_has_a_slope_there():
    flat = torch.full((2, 1, 3, 4, 5), 0.3, requires_grad=True)
    values = colour_variation(flat)
    assert values.abs().max() < 1e-9
    assert not torch.autograd.grad(values.sum(), flat)[0].any()


def test_an_edge_costs_least_where_all_channels_have_it():
    together, apart = torch.zeros(2, 1, 3, 4, 8).unbind()
    together[..., 4:] = 1
    for channel in range(3):
        apart[:, channel, :, 2 * channel + 2 :] = 1
    assert colour_variation(together[None]) < 0.7 * colour_variation(apart[None])


def test_a_slanted_edge_costs_what_a_straight_one_of_its_length_does():
    rows, columns = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    slope = ((rows + columns) / 2**0.5).expand(1, 1, 1, 64, 64)
    torch.testing.assert_close(
        colour_variation(slope), colour_variation(rows.expand_as(slope)), rtol=0.02, atol=0
    )


def test_problems_do_not_mix():
    images = torch.rand(4, 2, 3, 5, 6)
    alone = torch.cat([colour_variation(images[p : p + 1]) for p in range(4)])
    torch.testing.assert_close(colour_variation(images), alone)


def test_the_gradient_is_that_of_finite_differences():
    assert gradcheck(colour_variation, torch.rand(1, 2, 3, 3, 4).double().requires_grad_(True))
