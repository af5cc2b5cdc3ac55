"""Low-rank completion: recover a whole matrix from some of its entries.

An ``m x n`` matrix of rank ``r`` has ``r (m + n - r)`` degrees of freedom, far fewer than
entries. Alternating least squares fits the factors to the known entries. Rows and columns
that these do not determine are detected and left out instead of guessed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.base import StepListener

WHO = "complete_matrix"
FITS = 1e-5
"""Misfit of the known entries, relative to their norm, below which a start has found the matrix."""
MISFIT = 1e-2
"""Misfit above which a start has failed, or no matrix of this rank exists."""
WINDOW = 20
"""A start is given up as soon as this many iterations lower its misfit by less than one part in 1,000."""
RIDGE = 1e-12
"""Relative to the trace of each normal equation: makes singular ones solvable, shifts none that is not."""
WEAK = 1e-8
"""A row whose normal matrix has a smaller ratio of eigenvalues amplifies rounding 10,000-fold or more."""


Fit = tuple[Tensor, Tensor, float]
"""Left and right factor, and their misfit of the known entries, relative to the norm of these."""


class CompletionError(ValueError):
    """The known entries do not determine the matrix."""


@dataclass(frozen=True, eq=False)
class Completion:
    """A matrix of low rank that agrees with the known entries, in float64."""

    left: Tensor
    """(m, r), zero in rows that are not determined."""
    right: Tensor
    """(n, r), zero in columns that are not determined."""
    rows: Tensor
    columns: Tensor
    """Masks of the rows and columns that the known entries determine."""
    error: float
    """Distance from the known entries, relative to their norm."""
    notes: tuple[str, ...] = ()

    @property
    def matrix(self) -> Tensor:
        """The completed matrix, zero where it is not determined."""
        return self.left @ self.right.t()


def complete_matrix(
    entries: Tensor,
    known: Tensor,
    rank: int,
    *,
    starts: int = 3,
    iterations: int = 300,
    seed: int = 0,
    on_step: StepListener | None = None,
) -> Completion:
    """Find the matrix of rank ``rank`` that agrees with the ``known`` ones of ``entries``.

    Raises `CompletionError` if too few are known. The first start is exact for rank
    one (ratios are passed on from row to column to row) and spectral otherwise; up to
    ``starts`` are made until one fits. Rows and columns in which nothing but zeros is
    known stay zero: dead, or never sent.
    """
    _check(entries, known, rank, starts, iterations)
    m, n = entries.shape
    if rank >= min(m, n):
        raise CompletionError(f"rank {rank} is no restriction on a {m} x {n} matrix")
    _check_count(int(known.sum()), m, n, rank, "")
    values = torch.where(known, entries.detach(), 0).double()
    scale = values.abs().amax().clamp_min(torch.finfo(torch.float64).tiny)
    values = values / scale
    rows, columns = _core(values, known, rank)
    core, mask = values[rows][:, columns], known[rows][:, columns].double()
    _check_count(int(mask.sum()), core.shape[0], core.shape[1], rank, " where rows and columns have enough")
    generator = torch.Generator(device="cpu").manual_seed(seed)
    fit = _best_start(core, mask, rank, starts, iterations, generator, on_step)
    left, right, error = fit
    strong_rows, strong_columns = _well_posed(mask, right), _well_posed(mask.t(), left)
    if rank > 1 and error < MISFIT:
        # if the entries do not determine the matrix, a perturbed fit stays perturbed
        pushed = right + right.square().mean().sqrt() * _random(core, rank, generator)
        again = _alternate(core, mask, pushed, iterations)
        _check_unique(fit, again, strong_rows, strong_columns)
    rows, columns = _placed(rows, strong_rows), _placed(columns, strong_columns)
    return Completion(
        left=_spread(left[strong_rows] * scale, rows),
        right=_spread(right[strong_columns], columns),
        rows=rows,
        columns=columns,
        error=error,
        notes=tuple(_notes(rows, columns, error, rank)),
    )


def _check(entries: Tensor, known: Tensor, rank: int, starts: int, iterations: int) -> None:
    if entries.ndim != 2 or known.shape != entries.shape or known.dtype != torch.bool:
        raise ValueError(
            f"{WHO}: expected a matrix and a boolean mask of its shape, got {tuple(entries.shape)} "
            f"and {tuple(known.shape)} of {known.dtype}"
        )
    for name, number in (("rank", rank), ("starts", starts), ("iterations", iterations)):
        if number < 1:
            raise ValueError(f"{WHO}: {name} must be at least 1, got {number}")
    if not entries[known].isfinite().all():
        raise ValueError(f"{WHO}: the known entries must be finite")


def _check_count(survivors: int, m: int, n: int, rank: int, where: str) -> None:
    needed = rank * (m + n - rank)
    if survivors < needed or needed <= 0:
        raise CompletionError(
            f"{survivors} known entries{where}, rank {rank} of a {m} x {n} matrix needs {max(needed, 1)}"
        )


def _core(values: Tensor, known: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return the rows and columns that have at least ``rank`` known entries in one another."""
    rows, columns = (values != 0).any(dim=1), (values != 0).any(dim=0)
    while True:
        kept_rows = rows & ((known & columns).sum(dim=1) >= rank)
        kept_columns = columns & ((known & kept_rows[:, None]).sum(dim=0) >= rank)
        if torch.equal(kept_rows, rows) and torch.equal(kept_columns, columns):
            break
        rows, columns = kept_rows, kept_columns
    if rank == 1 and rows.any():
        # a part that shares no row or column with the rest has an unknown scale of its own
        left, right = _propagate(torch.where(rows[:, None] & columns, values, 0))
        rows, columns = rows & (left != 0), columns & (right != 0)
    return rows, columns


def _propagate(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the factors of a rank-one matrix, zero outside the part connected to its fullest row.

    With the factor 1 for that row, its entries are the factors of their
    columns; these give the factors of all rows that they meet, and so on.
    """
    known = (values != 0).double()
    left, right = values.new_zeros(len(values)), values.new_zeros(values.shape[1])
    left[known.sum(dim=1).argmax()] = 1
    reached = -1
    while (now := int((left != 0).sum() + (right != 0).sum())) > reached:
        reached = now
        right = torch.where(right != 0, right, _ratios(values.t(), known.t(), left))
        left = torch.where(left != 0, left, _ratios(values, known, right))
    return left, right


def _ratios(values: Tensor, known: Tensor, factors: Tensor) -> Tensor:
    weight = known @ factors.square()
    return torch.where(weight > 0, values @ factors / weight, 0)


def _best_start(
    values: Tensor,
    known: Tensor,
    rank: int,
    starts: int,
    iterations: int,
    generator: torch.Generator,
    on_step: StepListener | None,
) -> Fit:
    best: Fit | None = None
    for start in range(starts):
        right = _first_guess(values, rank) if start == 0 else _random(values, rank, generator)
        found = _alternate(values, known, right, iterations)
        if best is None or found[2] < best[2]:
            best = found
        if on_step is not None:
            on_step(start + 1, starts, best[2])
        if best[2] < FITS:
            break
    assert best is not None  # starts >= 1
    return best


def _first_guess(values: Tensor, rank: int) -> Tensor:
    if rank == 1:
        return _propagate(values)[1][:, None]
    # singular vectors of the zero-filled matrix, from the smaller of its two Gram matrices
    wide = len(values) <= values.shape[1]
    vectors: Tensor = torch.linalg.eigh(values @ values.t() if wide else values.t() @ values).eigenvectors
    return values.t() @ vectors[:, -rank:] if wide else vectors[:, -rank:]


def _random(values: Tensor, rank: int, generator: torch.Generator) -> Tensor:
    shape = (values.shape[1], rank)
    return torch.randn(shape, generator=generator, dtype=values.dtype, device="cpu").to(values.device)


def _alternate(values: Tensor, known: Tensor, right: Tensor, iterations: int) -> Fit:
    """Solve alternately for one factor with the other fixed."""
    norm = values.norm()
    turned, known_turned = values.t().contiguous(), known.t().contiguous()
    misfit = math.inf
    for step in range(1, iterations + 1):
        # an orthonormal basis of the same span keeps the factors balanced
        left = torch.linalg.qr(_solve(values, known, right)).Q
        right = _solve(turned, known_turned, left)
        if step % WINDOW == 0 or step == iterations:
            before, misfit = misfit, float(((left @ right.t() - values) * known).norm() / norm)
            if misfit > 0.999 * before:
                break
    return left, right, misfit


def _solve(values: Tensor, known: Tensor, basis: Tensor) -> Tensor:
    """Return the least-squares coefficients of every row in ``basis`` (n, r), over its known entries."""
    gram = _gram(known, basis)
    ridge = RIDGE * gram.diagonal(dim1=1, dim2=2).sum(dim=1) + torch.finfo(gram.dtype).tiny
    gram.diagonal(dim1=1, dim2=2).add_(ridge[:, None])
    coefficients: Tensor = torch.linalg.solve(gram, values @ basis)
    return coefficients


def _gram(known: Tensor, basis: Tensor) -> Tensor:
    """Return the normal matrix of every row (m, r, r), by a single product."""
    rank = basis.shape[1]
    outer = basis[:, :, None] * basis[:, None, :]
    return (known @ outer.flatten(1)).view(-1, rank, rank)


def _well_posed(known: Tensor, basis: Tensor) -> Tensor:
    """Return for every row whether its known entries determine its coefficients in ``basis``."""
    eigenvalues: Tensor = torch.linalg.eigvalsh(_gram(known, torch.linalg.qr(basis).Q))
    return eigenvalues[:, 0] > WEAK * eigenvalues[:, -1]


def _check_unique(fit: Fit, again: Fit, rows: Tensor, columns: Tensor) -> None:
    first, second = (left[rows] @ right[columns].t() for left, right, _ in (fit, again))
    if again[2] < MISFIT and float((first - second).norm()) > 0.1 * float(first.norm()):
        raise CompletionError(f"several matrices of rank {fit[0].shape[1]} have the known entries")


def _placed(chosen: Tensor, strong: Tensor) -> Tensor:
    placed = torch.zeros_like(chosen)
    placed[chosen] = strong
    return placed


def _spread(factor: Tensor, where: Tensor) -> Tensor:
    """Return ``factor`` with its rows at the places of ``where`` and zero rows elsewhere."""
    spread = factor.new_zeros(len(where), factor.shape[1])
    spread[where] = factor
    return spread


def _notes(rows: Tensor, columns: Tensor, error: float, rank: int) -> list[str]:
    notes = []
    for kind, determined in (("rows", rows), ("columns", columns)):
        if missing := int((~determined).sum()):
            notes.append(f"{missing} of {len(determined)} {kind} are not determined and left at zero")
    if error > FITS:
        notes.append(f"rank {rank} misses the known entries by {error:.2g} of their norm")
    return notes
