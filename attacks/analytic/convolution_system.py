"""Joint solution of a convolution's two systems of equations for its input: weights and gradient.

With error signal ``k`` at its output, a convolution without bias gives two blocks of
equations for its input ``x``: the weights ``W x = out`` and the gradient ``K x = vec(g)``.
Both are structured. Every output position sees the input through the same weights, so
``W^T W`` is one small matrix added in many places. Every channel of the input meets the
same ``k``, so ``K^T K`` is one small matrix repeated. The normal matrix is therefore cheap,
and it is the only large one: it is factored in place. Iterative refinement with residuals of
the original equations removes the error of squaring the condition number.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.linalg import lapack
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

RANK_FLOOR = 1e-6
"""Singular values below this part of the largest count as zero: gradients are rounded to float32."""
DAMPING = 1e-9
"""Damping of an undetermined system, relative to the largest eigenvalue of its normal matrix."""
REFINEMENTS = 30
"""Maximum number of refinements; a well-conditioned system needs two or three."""
MOST_UNKNOWNS = 9000
"""Maximum number of unknowns; their normal matrix takes about 0.65 GB."""


class Solution(NamedTuple):
    """An input, and measures of how well the equations determine it."""

    input: Tensor
    rank: int
    """Rank of the equations; below the number of unknowns, the input is the shortest of many."""
    condition: float
    """Estimated ratio of the largest to the smallest non-zero singular value."""
    residual: float
    """Disagreement of the equations relative to their right-hand sides, of the worse block."""


@dataclass(frozen=True, eq=False)
class ConvolutionSystem:
    """Both blocks of one convolution, made by `convolution_system`."""

    layer: nn.Conv2d
    in_shape: torch.Size
    places: np.ndarray
    """Input position (from 1; 0 is padding) that a kernel entry meets at an output position (k, out)."""
    shifts: Tensor
    """``K`` of one channel (out channels * k, in)."""
    balance: float
    """Factor of the gradient block that makes its rows as long as those of the weights."""

    @property
    def unknowns(self) -> int:
        return self.in_shape.numel()

    def apply(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output (O, H', W') and the gradient (O, C, kh, kw) for an input (C, H, W)."""
        layer = self.layer
        output = F.conv2d(x[None], layer.weight, None, layer.stride, layer.padding, layer.dilation)[0]
        gradient = (self.shifts @ x.flatten(1).t()).view(layer.out_channels, -1, layer.in_channels)
        return output, gradient.transpose(1, 2).reshape(layer.weight.shape)

    def apply_transposed(self, output: Tensor, gradient: Tensor) -> Tensor:
        """Return ``W^T output + balance^2 K^T gradient``, shaped as the input."""
        layer = self.layer
        columns = pull_back(layer, self.in_shape, output)
        by_channel = gradient.flatten(2).transpose(1, 2).reshape(-1, layer.in_channels)
        return columns + self.balance**2 * (self.shifts.t() @ by_channel).t().reshape(self.in_shape)

    def normal_matrix(self) -> np.ndarray:
        """Return ``W^T W + balance^2 K^T K`` (n, n), a new matrix each time."""
        matrix = _weight_part(self.layer.weight, self.places, self.in_shape)
        shifts = self.shifts.numpy()
        one = self.balance**2 * (shifts.T @ shifts)
        for start in range(0, self.unknowns, len(one)):
            matrix[start : start + len(one), start : start + len(one)] += one
        return matrix

    def solve(self, output: Tensor, gradient: Tensor) -> Solution:
        """Return the least-squares input, the shortest one if the rank leaves several."""
        factored = _factor(self)
        x = torch.zeros(self.in_shape, dtype=output.dtype)
        last = np.inf
        for _ in range(REFINEMENTS):
            fitted = self.apply(x)
            slope = self.apply_transposed(output - fitted[0], gradient - fitted[1])
            step = torch.from_numpy(_solve(factored.factor, slope.flatten().numpy())).view(self.in_shape)
            size = float(step.norm())
            if not size < last:
                break
            x, last = x + step, size
        fitted = self.apply(x)
        residual = max(
            float((got - given).norm() / given.norm().clamp_min(1e-300))
            for got, given in zip(fitted, (output, gradient), strict=True)
        )
        return Solution(x, factored.rank, factored.condition, residual)


def convolution_system(layer: nn.Conv2d, in_shape: torch.Size, signal: Tensor) -> ConvolutionSystem:
    """Return the equations of ``layer``, in float64, at the error signal ``signal`` (O, H', W')."""
    if isinstance(layer.padding, str):
        raise ValueError(f"convolution_system: padding must be numbers, got {layer.padding!r}")
    size = in_shape[1] * in_shape[2]
    numbers = torch.arange(1, size + 1, dtype=torch.float64).view(1, 1, *in_shape[1:])
    places = F.unfold(numbers, layer.kernel_size, layer.dilation, layer.padding, layer.stride)[0].long()
    shifts = torch.zeros(layer.out_channels, len(places), size + 1, dtype=torch.float64)
    where = places.expand(layer.out_channels, -1, -1)
    shifts.scatter_(2, where, signal.flatten(1)[:, None].expand_as(where))
    shifts = shifts[:, :, 1:].flatten(0, 1).contiguous()
    # rows: how many there are, and their squared lengths summed over the entries that meet no padding
    used = (places > 0).sum(dim=1).double()
    weights = (layer.weight.flatten(2).square().sum(dim=(0, 1)) * used).sum() / signal.numel()
    gradients = shifts.square().sum() / len(shifts)
    balance = float((weights / gradients.clamp_min(1e-300)).sqrt())
    return ConvolutionSystem(layer, in_shape, places.numpy(), shifts, balance)


def pull_back(layer: nn.Conv2d, in_shape: torch.Size, output: Tensor) -> Tensor:
    """Return ``W^T output``, shaped as the input."""
    pulled: Tensor = conv2d_input(
        (1, *in_shape), layer.weight, output[None], layer.stride, layer.padding, layer.dilation
    )
    return pulled[0]


class _Factored(NamedTuple):
    factor: np.ndarray
    rank: int
    condition: float


def _weight_part(weight: Tensor, places: np.ndarray, in_shape: torch.Size) -> np.ndarray:
    channels, size = in_shape[0], in_shape[1] * in_shape[2]
    flat = weight.flatten(1).numpy()
    # contribution of one output position to the patch that it sees
    patch = (flat.T @ flat).reshape(channels, len(places), channels, len(places))
    matrix = np.zeros((channels * size, channels * size))
    for seen in places.T:
        inside = np.flatnonzero(seen)
        rows = (np.arange(channels)[:, None] * size + seen[inside] - 1).ravel()
        part = patch[:, inside][:, :, :, inside].reshape(len(rows), len(rows))
        matrix[rows[:, None], rows] += part
    return matrix


def _factor(system: ConvolutionSystem) -> _Factored:
    """Return a triangular factor of the normal matrix, damped if it is singular, with the rank."""
    matrix = system.normal_matrix()
    largest = _largest(lambda v: matrix @ v, system.unknowns)
    factor, failed = lapack.dpotrf(matrix.T, lower=1, clean=0, overwrite_a=1)
    del matrix
    if not failed:
        smallest = 1 / _largest(lambda v: _solve(factor, v), system.unknowns)
        if smallest > RANK_FLOOR**2 * largest:
            return _Factored(factor, system.unknowns, float((largest / smallest) ** 0.5))
    del factor
    # with pivots, the factorisation ends when only negligible values remain
    pivoted, _, rank, _ = lapack.dpstrf(
        system.normal_matrix().T, tol=RANK_FLOOR**2 * largest, lower=1, overwrite_a=1
    )
    last = float(pivoted[rank - 1, rank - 1]) if rank else 0.0
    del pivoted
    matrix = system.normal_matrix()
    matrix[np.diag_indices_from(matrix)] += DAMPING * largest
    factor, _ = lapack.dpotrf(matrix.T, lower=1, clean=0, overwrite_a=1)
    return _Factored(factor, rank, largest**0.5 / last if last else np.inf)


def _solve(factor: np.ndarray, right: np.ndarray) -> np.ndarray:
    solution: np.ndarray = lapack.dpotrs(factor, right, lower=1)[0]
    return solution


def _largest(multiply: Callable[[np.ndarray], np.ndarray], size: int) -> float:
    """Return the largest eigenvalue of a symmetric matrix that is given as a product with vectors."""
    start = np.random.default_rng(0).standard_normal(size)
    if size < 3:  # Lanczos needs room for a few vectors
        return float(np.linalg.eigvalsh(np.stack([multiply(row) for row in np.eye(size)]))[-1])
    operator = LinearOperator((size, size), matvec=multiply, dtype=np.float64)
    return float(eigsh(operator, k=1, which="LA", v0=start, tol=1e-3, return_eigenvectors=False)[0])
