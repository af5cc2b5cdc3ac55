"""Single updates behind sums over known clients: what secure aggregation hides in one round, rounds tell.

The server knows who took part in each sum. Sums over cohorts are linear equations ``S = P U`` for the
clients' updates ``U``. A client whose unit vector lies in the row space of ``P`` is solved for: by
differencing two cohorts that differ in this client alone, or by regression over many rounds (PROLIN:
Kerkouche et al., PETS 2023). That is exact if a client's update is the same in all its sums (one model, one
batch). Over rounds of training updates change: then the solution is a mean, and the rest of the equations
says how far they changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fl_app.types import Observation, Update

WHO = "separate_cohorts"
SOLVED = 1e-9
"""Distance from the row space up to which a client counts as solved for."""


@dataclass(frozen=True, eq=False)
class Separated:
    """Updates of single clients, solved out of sums."""

    updates: Mapping[int, Update]
    """By client; clients whom the sums do not single out are missing."""
    amplified: Mapping[int, float]
    """Factor by which independent noise of the sums grows in each client's update."""
    unexplained: float
    """Part of the sums that no constant updates explain; 0 where there are as many unknowns as sums."""
    hidden: tuple[int, ...]
    """Clients whom the sums do not single out."""


def separate_cohorts(sums: Sequence[Update], cohorts: Sequence[Collection[int]]) -> Separated:
    """Solve sums (not means) over cohorts of clients for the updates of single clients."""
    if not sums or len(sums) != len(cohorts):
        raise ValueError(f"{WHO}: expected one cohort for each sum, got {len(sums)} and {len(cohorts)}")
    if any(one.keys() != sums[0].keys() for one in sums):
        raise ValueError(f"{WHO}: expected sums of the same parameters")
    clients = sorted({client for cohort in cohorts for client in cohort})
    took_part = torch.tensor(
        [[float(client in cohort) for client in clients] for cohort in cohorts], dtype=torch.float64
    )
    solve = torch.linalg.pinv(took_part)
    singled = (solve @ took_part - torch.eye(len(clients), dtype=torch.float64)).abs().amax(dim=1) < SOLVED
    names = list(sums[0])
    stacked = {name: torch.stack([one[name].detach().double() for one in sums]) for name in names}
    rest = torch.eye(len(sums), dtype=torch.float64) - took_part @ solve
    left = sum(float(_times(rest, part).square().sum()) for part in stacked.values())
    whole = sum(float(part.square().sum()) for part in stacked.values())
    known = [row for row in range(len(clients)) if singled[row]]
    return Separated(
        updates={
            clients[row]: {n: _times(solve[row : row + 1], stacked[n])[0].to(sums[0][n]) for n in names}
            for row in known
        },
        amplified={clients[row]: float(solve[row].norm()) for row in known},
        unexplained=(left / whole) ** 0.5 if whole else 0.0,
        hidden=tuple(client for row, client in enumerate(clients) if not singled[row]),
    )


def separate_means(seen: Sequence[Observation]) -> Separated:
    """Solve the mean updates of cohorts, each named by `Observation.cohort`."""
    if any(one.cohort is None for one in seen):
        raise ValueError(f"{WHO}: expected the clients of every sum (Observation.cohort), some are not known")
    cohorts = [tuple(one.cohort or ()) for one in seen]
    sums = [{n: t * len(c) for n, t in one.update.items()} for one, c in zip(seen, cohorts, strict=True)]
    return separate_cohorts(sums, cohorts)


def single_out(obs: Observation, client: int) -> Observation:
    """Return the observation of one client's update, solved out of the sums in ``obs`` and its history."""
    seen = [*obs.history, obs]
    found = separate_means(seen)
    if client not in found.updates:
        raise ValueError(
            f"{WHO}: client {client} is not singled out by {len(seen)} sums; "
            f"they hide {len(found.hidden)} clients"
        )
    # training moves on: the model of the middle of its rounds fits the mean of its updates best
    own = [one for one in seen if client in (one.cohort or ())]
    middle = own[len(own) // 2]
    update = dict(found.updates[client])
    return replace(middle, update=update, sent=None, cohort=None, history=(), batch_size=obs.batch_size)


def _times(matrix: Tensor, stacked: Tensor) -> Tensor:
    return torch.einsum("rt,t...->r...", matrix, stacked)
