"""Estimates of withheld entries: pictures are smooth, and pruning follows a rule.

An entry withheld by top-k is not larger than the smallest sent entry. Rows are sums of samples;
within that bound, they are chosen so that their differences are smooth pictures.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.knowledge import gradient_unit
from attacks.optimisation.withheld import withheld_entries
from fl_app.types import Observation

SWEEPS = 400
COLOUR = 0.9
"""Share of a pixel's contrast in the other colours that carries over to this one."""


def largest_withheld(obs: Observation, name: str) -> Tensor:
    """Return the largest possible size of a parameter's withheld entries; infinity if unbounded.

    Dual pruning also withholds large entries. Nothing tells in advance which kind an entry is,
    and a guess that grows from zero would stay on the wrong side.
    """
    entries = obs.update[name]
    found = withheld_entries(obs, (name,))
    if found is None or not found.high.isinf().all():
        return torch.full_like(entries, torch.inf, dtype=torch.float64)
    return gradient_unit(obs) * found.low.double().view_as(entries)


def fill_in(
    rows: Tensor, known: Tensor, most: Tensor, signals: Tensor, shape: tuple[int, int, int]
) -> Tensor:
    """Return ``rows`` (N, features) with guesses of size ``most`` or less for entries not ``known``.

    Row ``i`` minus row ``i + 1``, and the last one as it is, is a picture of that shape, as
    the model sees it, times its error signal (N,).
    """
    weights = 1 / signals.square()
    shares = weights.clone()
    shares[1:] += weights[:-1]
    # start from zero, a grey picture: surviving entries are outliers, unrelated to their neighbours
    rows = torch.where(known, rows, 0)
    for _ in range(SWEEPS):
        above = torch.cat([rows[1:], torch.zeros_like(rows[:1])])
        smooth = _smooth((rows - above).view(-1, *shape)).flatten(1)
        # each row is in two pictures: that of its own bin, and that of the bin below
        wanted = weights[:, None] * (above + smooth)
        wanted[1:] += weights[:-1, None] * (rows - smooth)[:-1]
        guess = (rows + wanted / shares[:, None]) / 2
        rows = torch.where(known, rows, guess.clamp(-most, most))
    return rows


def _smooth(pictures: Tensor) -> Tensor:
    blurred = F.avg_pool2d(pictures, 3, stride=1, padding=1, count_include_pad=False)
    if pictures.shape[1] == 1:
        return blurred
    detail = pictures - blurred
    others = (detail.sum(dim=1, keepdim=True) - detail) / (pictures.shape[1] - 1)
    return blurred + COLOUR * others
