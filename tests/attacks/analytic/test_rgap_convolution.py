"""The structured equations of one convolution against the dense matrices that autograd writes out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks.analytic.convolution_system import RANK_FLOOR, convolution_system, pull_back

SHAPES = [
    # channels in and out, kernel, stride, padding, dilation, height, width
    (2, 5, 3, 1, 1, 1, 5, 4),
    (3, 12, 4, 2, 2, 1, 8, 8),
    (2, 6, 3, 2, 1, 1, 6, 5),  # the strides leave out a row
    (2, 6, (3, 2), (1, 2), (0, 1), 1, 5, 6),
    (1, 4, 3, 1, 2, 2, 6, 6),
    (2, 3, 1, 1, 0, 1, 3, 3),
]


@pytest.fixture(params=SHAPES, ids=str)
def case(request):
    channels, wide, kernel, stride, padding, dilation, height, width = request.param
    layer = nn.Conv2d(channels, wide, kernel, stride, padding, dilation, bias=False).double()
    layer.requires_grad_(False)
    shape = torch.Size((channels, height, width))
    x = torch.rand(shape, dtype=torch.float64)
    signal = torch.randn(layer(x[None]).shape[1:], dtype=torch.float64)
    return layer, shape, x, signal


def both_blocks(layer, x, signal):
    """The output, and the gradient of the weights by autograd."""
    weight = layer.weight.detach().clone().requires_grad_()
    output = F.conv2d(x[None], weight, None, layer.stride, layer.padding, layer.dilation)[0]
    (gradient,) = torch.autograd.grad((output * signal).sum(), weight)
    return output.detach(), gradient


def dense(layer, shape, signal) -> tuple[np.ndarray, np.ndarray]:
    """The two blocks, one column per unknown."""
    unit = torch.eye(shape.numel(), dtype=torch.float64)
    columns = [both_blocks(layer, row.view(shape), signal) for row in unit]
    return tuple(np.stack([c[i].flatten().numpy() for c in columns], axis=1) for i in range(2))


def row_length(block: np.ndarray) -> float:
    return float(np.sqrt((block**2).sum(axis=1).mean()))


def test_products_are_those_of_the_dense_blocks(case):
    layer, shape, x, signal = case
    system = convolution_system(layer, shape, signal)
    torch.testing.assert_close(system.apply(x), both_blocks(layer, x, signal))

    weights, gradients = dense(layer, shape, signal)
    output, gradient = torch.randn_like(signal), torch.randn_like(layer.weight)
    expected = weights.T @ output.flatten().numpy() + system.balance**2 * (
        gradients.T @ gradient.flatten().numpy()
    )
    np.testing.assert_allclose(system.apply_transposed(output, gradient).flatten().numpy(), expected)
    np.testing.assert_allclose(
        pull_back(layer, shape, output).flatten().numpy(), weights.T @ output.flatten().numpy()
    )


def test_the_gradient_block_gets_rows_as_long_as_those_of_the_weights(case):
    layer, shape, _, signal = case
    weights, gradients = dense(layer, shape, signal)
    balance = convolution_system(layer, shape, signal).balance
    assert balance * row_length(gradients) == pytest.approx(row_length(weights))


def test_the_normal_matrix_is_that_of_the_dense_blocks(case):
    layer, shape, _, signal = case
    weights, gradients = dense(layer, shape, signal)
    system = convolution_system(layer, shape, signal)
    expected = weights.T @ weights + system.balance**2 * gradients.T @ gradients
    np.testing.assert_allclose(system.normal_matrix(), expected, atol=1e-12)


def test_solves_as_numpy_does_and_finds_its_rank(case):
    layer, shape, x, signal = case
    system = convolution_system(layer, shape, signal)
    weights, gradients = dense(layer, shape, signal)
    stacked = np.concatenate([weights, system.balance * gradients])
    # right-hand sides that no input fits: least squares is more than consistency
    output, gradient = (t + 0.1 * torch.randn_like(t) for t in both_blocks(layer, x, signal))
    right = np.concatenate([output.flatten().numpy(), system.balance * gradient.flatten().numpy()])
    expected = np.linalg.lstsq(stacked, right, rcond=RANK_FLOOR)[0]

    solution = system.solve(output, gradient)
    np.testing.assert_allclose(solution.input.flatten().numpy(), expected, rtol=1e-6, atol=1e-7)
    values = np.linalg.svd(stacked, compute_uv=False)
    assert solution.rank == np.linalg.matrix_rank(stacked) == (values > RANK_FLOOR * values[0]).sum()
    if solution.rank == shape.numel():
        assert solution.condition == pytest.approx(values[0] / values[-1], rel=0.01)
    fitted = stacked @ expected - right
    blocks = np.split(fitted, [output.numel()]), np.split(right, [output.numel()])
    off = max(np.linalg.norm(f) / np.linalg.norm(r) for f, r in zip(*blocks, strict=True))
    assert solution.residual == pytest.approx(off, rel=1e-5)


def test_rows_enough_do_not_make_a_rank():
    # 39 rows for 36 unknowns, but three 1x1 kernels see four channels, and the signal is at one place
    layer = nn.Conv2d(4, 3, 1, bias=False).double().requires_grad_(False)
    shape = torch.Size((4, 3, 3))
    signal = torch.zeros(3, 3, 3, dtype=torch.float64)
    signal[:, 0, 0] = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    weights, gradients = dense(layer, shape, signal)
    assert len(weights) + len(gradients) >= shape.numel()
    x = torch.rand(shape, dtype=torch.float64)
    solution = convolution_system(layer, shape, signal).solve(*both_blocks(layer, x, signal))
    # 3 of 4 channels at each of 9 places, and the fourth at the one where the signal is
    assert solution.rank == 9 * 3 + 1
    assert not torch.allclose(solution.input, x, atol=1e-3)
    # the shortest of those that fit
    stacked = np.concatenate([weights, gradients])
    shortest = np.linalg.lstsq(stacked, stacked @ x.flatten().numpy(), rcond=RANK_FLOOR)[0]
    np.testing.assert_allclose(solution.input.flatten().numpy(), shortest, atol=1e-6)


def test_refinement_takes_out_the_error_of_a_bad_condition():
    layer = nn.Conv2d(2, 2, 1, bias=False).double().requires_grad_(False)
    layer.weight.copy_(torch.tensor([[1.0, 1.0], [1.0, 1.0 + 1e-5]], dtype=torch.float64)[:, :, None, None])
    shape = torch.Size((2, 4, 4))
    # so small a signal that the channels' difference hangs on the weights
    signal = torch.zeros(2, 4, 4, dtype=torch.float64)
    signal[0, 0, 0] = 1.0
    x = torch.rand(shape, dtype=torch.float64)
    solution = convolution_system(layer, shape, signal).solve(*both_blocks(layer, x, signal))
    assert solution.condition > 1e5
    # a solution of the normal equations alone is off by 1e-16 times the squared condition, 1e-5
    assert float((solution.input - x).abs().max()) < 1e-9
