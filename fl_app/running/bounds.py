"""Bounds on reconstructions beside the attacks of a run with differential privacy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fl_app.adversary.passive import SUM, Sighting
from fl_app.data import Samples
from fl_app.privacy import TurnAccount
from fl_app.privacy.reconstruction import Exposure, exposure_of, prior_success, reconstruction_bound
from fl_app.results import Attack, Exposed, Recovery
from fl_app.strategies import FedSGD

MOST_CANDIDATES = 1000
"""Number of test images that represent the attacker's prior."""

Spent = Mapping[tuple[float, float], int]
"""Steps by sampling rate and noise multiplier."""


def describe_recovery(
    strategy: FedSGD, sightings: Sequence[Sighting], test: Samples, mse_below: float
) -> Recovery | None:
    """Return the facts behind the bounds: the chance of a guess, and observers' views of attacked clients.

    None without differential privacy.
    """
    privacy = strategy.privacy
    if privacy is None and strategy.charges.epsilon is None:
        return None
    seen: dict[tuple[int, int | None], list[Sighting]] = {}
    for sighting in sightings:
        seen.setdefault((sighting.order.client, sighting.participant), []).append(sighting)
    recovery = Recovery(
        unit="record" if privacy is None else "client",
        discrete=privacy is not None and privacy.thresholds,
        mse_below=mse_below,
        exposed=[
            _exposed(client, participant, exposure)
            for (client, participant), one in seen.items()
            if (exposure := _exposure(strategy, client, participant, one)) is not None
        ],
    )
    if test.inputs.dtype == torch.uint8 and len(test):
        count = min(len(test), MOST_CANDIDATES)
        # from all of them: a file may have them class by class
        candidates = test.take(torch.arange(count) * len(test) // count)
        recovery.candidates = count
        recovery.prior, recovery.prior_of_class = prior_success(
            candidates.inputs / 255, candidates.labels, mse_below
        )
    return recovery


def bound_attack(
    recovery: Recovery,
    sighting: Sighting,
    errors: Sequence[float | None] | None,
    *,
    guesses: int,
    granted: bool,
    mse_below: float,
) -> dict[str, Any]:
    """Return the share of images that an attack found, the bound on it, and the prior behind the bound.

    ``errors`` are mean squared errors by true image; ``guesses`` is the number of images that the attack
    names. Each true image is compared with the guess that suits it, so that many guesses are free.
    """
    exposed = next(
        (
            one
            for one in recovery.exposed
            if (one.client, one.participant) == (sighting.order.client, sighting.participant)
        ),
        None,
    )
    prior = recovery.prior_of_class if granted else recovery.prior
    if prior is None:
        return {"bound_note": "no bound computed: the samples are no images"}
    if not guesses:
        return {"bound_note": "no bound computed: the attack names no images"}
    if mse_below > recovery.mse_below:
        return {
            "bound_note": f"no bound computed: the prior is that of an error below {recovery.mse_below:g}, "
            f"the attack counts images below {mse_below:g}"
        }
    if exposed is None:
        return {"bound_note": "no bound computed: the releases of this client are not known"}
    guessed = min(1.0, guesses * prior)
    fields: dict[str, Any] = {
        "bound": reconstruction_bound(guessed, _read(exposed, discrete=recovery.discrete)),
        "bound_prior": guessed,
    }
    if errors:
        fields["found"] = sum(error is not None and error < mse_below for error in errors) / len(errors)
    return fields


def exceeded_notes(attacks: Sequence[Attack]) -> list[str]:
    """Return a sentence for each attack that found more than its bound.

    A share is never negative, so by Markov's inequality luck explains it with a chance of at most bound over
    share.
    """
    return [
        f"attack {attack.name} in round {attack.round} on client {attack.client} found {attack.found:.3g} of "
        f"the images, above the bound of {attack.bound:.3g}: with the noise as stated, the chance of this "
        f"is at most {attack.bound / attack.found:.3g}"
        for attack in attacks
        if attack.exceeds_bound and attack.found is not None and attack.bound is not None
    ]


def _exposure(
    strategy: FedSGD, client: int, participant: int | None, seen: Sequence[Sighting]
) -> Exposure | None:
    """Return an observer's view of all rounds; None if nothing was charged to the client."""
    if strategy.privacy is None or strategy.account is None:
        # in attacked rounds the batch is known: nothing is hidden by the draw of records
        steps = sum(max(1, sighting.answer.steps) for sighting in seen)
        return _partly_certain(_spent_by(strategy, client), steps)
    if participant is None:
        signals = strategy.account.server
        signal = max(signals.values(), default=None) if client == SUM else signals.get(client)
        return None if signal is None else Exposure(signal, discrete=strategy.privacy.thresholds)
    if isinstance(strategy.account, TurnAccount):
        return Exposure(strategy.account.signal)
    # the participant knows its own share of the noise; of the smallest cohort that share is largest
    cohort = min((row.clients for row in strategy.records if row.clients and row.clients > 1), default=2)
    unknown = math.sqrt(1 - 1 / cohort)
    (spent,) = strategy.account.models.spent.values()
    others = {(rate, sigma * unknown): steps for (rate, sigma), steps in spent.items()}
    return _partly_certain(others, len(seen), discrete=strategy.privacy.thresholds)


def _spent_by(strategy: FedSGD, client: int) -> Spent:
    """Return a client's releases; for a sum those of all clients, each kind as often as any had it."""
    if client != SUM:
        return strategy.charges.spent_by(client)
    together: dict[tuple[float, float], int] = {}
    for one in strategy.charges.clients:
        for kind, steps in strategy.charges.spent_by(one).items():
            together[kind] = max(steps, together.get(kind, 0))
    return together


def _partly_certain(spent: Spent, steps: int, *, discrete: bool = False) -> Exposure | None:
    """Return the exposure to releases of which ``steps`` have the image, at the least noise of all."""
    if not spent:
        return None
    rate, sigma = max(rate for rate, _ in spent), min(sigma for _, sigma in spent)
    return exposure_of(
        [(sigma, steps)], [(sigma, rate, max(0, sum(spent.values()) - steps))], discrete=discrete
    )


def _exposed(client: int, participant: int | None, exposure: Exposure) -> Exposed:
    hidden = exposure.noise_multiplier
    return Exposed(
        client=client,
        participant=participant,
        signal=exposure.signal if math.isfinite(exposure.signal) else None,
        noise_multiplier=hidden if 0 < hidden < math.inf else None,
        rate=exposure.rate,
        steps=exposure.steps,
    )


def _read(exposed: Exposed, *, discrete: bool) -> Exposure:
    return Exposure(
        signal=math.inf if exposed.signal is None else exposed.signal,
        noise_multiplier=exposed.noise_multiplier or 0.0,
        rate=exposed.rate,
        steps=exposed.steps,
        discrete=discrete,
    )
