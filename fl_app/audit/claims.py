"""Privacy claims of an app, checked against what it does and what its noise is worth over all rounds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fl_app.audit.arrays import Name, arrays_of
from fl_app.audit.declared import LOCAL_DP, SECAGG, WRAPPER, Declaration, Declared
from fl_app.audit.epsilon import composed_epsilon
from fl_app.audit.findings import Finding
from fl_app.audit.traffic import Exchange, Traffic

DELTA = 1e-5
"""δ at which an ε is computed if the app states none."""
LARGE_EPSILON = 10.0
_SLACK = 1.05
"""Ratio up to which two values count as equal."""
_CLIPPING = ("fixedclipping_mod", "adaptiveclipping_mod")
_MASKING = ("secaggplus_mod", "secagg_mod")
_WEIGHT_KEYS = ("num-examples", "num_examples")


@dataclass(frozen=True)
class Claim:
    """A mechanism as declared, with its ε as computed over all rounds."""

    mechanism: str
    file: str
    declared: dict[str, Any]
    computed: dict[str, Any]


def check_claims(declared: Declared, traffic: Traffic) -> tuple[list[Claim], list[Finding]]:
    """Return what is claimed, and the findings."""
    rounds = declared.rounds or len(traffic.cohorts()) or 1
    claims: list[Claim] = []
    findings: list[Finding] = []
    mods = declared.train_mods()
    for part in declared.of(LOCAL_DP):
        if any(mod is part.made for mod in mods):
            findings += _local_dp(part, traffic, rounds, claims)
    for part in declared.of(WRAPPER):
        findings += _wrapper(part, declared, traffic, rounds, claims)
    findings += _sample_level(declared, traffic, rounds, claims)
    findings += _masking(declared, claims)
    if declared.of(WRAPPER) or any(type(mod).__name__ == LOCAL_DP for mod in mods):
        findings += _integers(declared, traffic)
    return claims, findings


def _local_dp(part: Declaration, traffic: Traffic, rounds: int, claims: list[Claim]) -> Iterator[Finding]:
    clip, sensitivity, epsilon, delta = (
        float(part.value(name)) for name in ("clipping_norm", "sensitivity", "epsilon", "delta")
    )
    noise = sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon if epsilon else math.inf
    single = composed_epsilon([(noise / clip, 1.0, 1)], delta)
    total = composed_epsilon([(noise / clip, 1.0, rounds)], delta)
    claims.append(
        Claim(
            LOCAL_DP,
            part.place,
            {"epsilon": epsilon, "delta": delta, "clipping norm": clip, "sensitivity": sensitivity},
            {
                "epsilon of one update": single,
                "rounds": rounds,
                "epsilon of all rounds": total,
                "noise": noise,
            },
        )
    )
    if sensitivity * _SLACK < clip:
        yield Finding(
            "sensitivity-is-not-the-clipping-norm",
            "high",
            f"LocalDpMod clips to {clip:g} and scales its noise for a sensitivity of {sensitivity:g}: one "
            f"update has an epsilon of {single:.3g}, not {epsilon:g}.",
            part.place,
            f"sensitivity={sensitivity:g}",
            f"sensitivity={clip:g}",
        )
    elif single > _SLACK * epsilon:
        yield Finding(
            "noise-formula-out-of-range",
            "medium",
            f"The formula of LocalDpMod holds up to epsilon 1; at {epsilon:g} its noise gives {single:.3g}.",
            part.place,
            f"epsilon={epsilon:g}",
            f"epsilon={single:.4g}",
        )
    if rounds > 1 and total > _SLACK * epsilon:
        yield Finding(
            "epsilon-not-composed",
            "medium",
            f"LocalDpMod spends epsilon {epsilon:g} on every update: a client that answers in all {rounds} "
            f"rounds has spent {total:.3g}.",
            part.place,
            f"epsilon={epsilon:g}",
            f"epsilon={total:.4g} over {rounds} rounds",
        )
    measured = _measured_noise(traffic, clip)
    if measured is not None and noise and math.isfinite(noise) and measured < 0.5 * noise:
        yield Finding(
            "noise-missing",
            "high",
            f"LocalDpMod states noise of {noise:.3g}; in the updates it is {measured:.3g}.",
            part.place,
            f"standard deviation {noise:.4g}",
            f"standard deviation {measured:.4g}",
        )


def _wrapper(
    part: Declaration, declared: Declared, traffic: Traffic, rounds: int, claims: list[Claim]
) -> Iterator[Finding]:
    stated = part.value("num_sampled_clients")
    multiplier = float(part.value("noise_multiplier") or 0.0)
    clip = part.value("clipping_norm") or part.value("initial_clipping_norm")
    cohorts = traffic.cohorts()
    cohort = min(cohorts, default=0)
    accountant = part.value("accountant")
    delta = float(getattr(getattr(accountant, "config", None), "delta", None) or DELTA)
    unequal = _unequal_weights(traffic)
    # the noise is scaled for the stated cohort, the sensitivity of the mean follows from the real one
    scale = (cohort / stated) if stated and cohort else 1.0
    effective = multiplier * scale / unequal
    total = composed_epsilon([(effective, 1.0, rounds)], delta)
    claims.append(
        Claim(
            part.kind,
            part.place,
            {"noise multiplier": multiplier, "clipping norm": clip, "sampled clients": stated},
            {
                "sampled clients": cohort,
                "noise multiplier": effective,
                "rounds": rounds,
                "delta": delta,
                "epsilon of all rounds": total,
            },
        )
    )
    if stated and cohort and stated != cohort:
        yield Finding(
            "cohort-is-not-as-declared",
            "high" if stated > cohort else "low",
            f"{part.kind} is told {stated} sampled clients, and a round has {cohort}: the noise multiplier "
            f"is {multiplier * scale:.3g}, not {multiplier:g}.",
            part.place,
            f"num_sampled_clients={stated}",
            f"num_sampled_clients={cohort}",
        )
    if unequal > _SLACK:
        yield Finding(
            "weighted-mean-under-dp",
            "high" if unequal > 2 else "medium",
            f"The mean is weighted by the clients' own sample counts: the heaviest counts {unequal:.3g} "
            "times as much as the noise assumes.",
            part.place,
            "weights as the clients state them",
            f"sensitivity {unequal:.3g} times larger",
        )
    if multiplier == 0:
        yield Finding("no-noise", "high", f"{part.kind} adds no noise.", part.place, "noise_multiplier=0", "")
    elif total > LARGE_EPSILON:
        yield Finding(
            "epsilon-is-large",
            "medium",
            f"The noise of {part.kind} gives an epsilon of {total:.3g} (delta {delta:g}) in {rounds} rounds.",
            part.place,
            f"noise_multiplier={multiplier:g}",
            f"epsilon={total:.4g}",
        )
    if "ClientSide" in part.kind:
        yield from _client_side_clipping(part, declared, traffic, clip)


def _client_side_clipping(
    part: Declaration, declared: Declared, traffic: Traffic, clip: Any
) -> Iterator[Finding]:
    names = [_name(mod) for mod in declared.train_mods()]
    if not any(name in _CLIPPING for name in names):
        yield Finding(
            "clipping-mod-missing",
            "high",
            f"{part.kind} leaves the clipping to the clients, and the client app has no clipping mod.",
            declared.place_of_mods() or part.place,
            f"mods: {', '.join(names) or 'none'}",
            "fixedclipping_mod or adaptiveclipping_mod",
        )
    elif "Fixed" in part.kind and clip and not any(name in _MASKING for name in names):
        largest = max((_norm(exchange) for exchange in traffic.of("train")), default=0.0)
        if largest > 1.01 * float(clip):
            yield Finding(
                "update-sent-before-clipping",
                "high",
                f"Updates should be clipped to {clip:g}; one that was sent has the norm {largest:.4g}.",
                declared.place_of_mods() or part.place,
                f"norm at most {clip:g}",
                f"norm {largest:.4g}",
            )


def _sample_level(
    declared: Declared, traffic: Traffic, rounds: int, claims: list[Claim]
) -> Iterator[Finding]:
    """Check Opacus inside the clients."""
    used = [(e, level) for e, level in zip(traffic.exchanges, declared.opacus, strict=False) if level.steps]
    if not used:
        return
    settings, place = used[0][1].settings, used[0][1].place
    steps: dict[int, list[tuple[float, float]]] = defaultdict(list)
    worst: tuple[float, float, float, str, int] | None = None
    seen: dict[int, set[int]] = defaultdict(set)
    for exchange, level in used:
        own = steps[exchange.client]
        own += level.steps
        seen[exchange.client].add(exchange.round)
        if level.claimed:
            claimed, delta = level.claimed[-1]
            real = composed_epsilon(_counted(own), delta)
            if worst is None or real / max(claimed, 1e-9) > worst[1] / max(worst[0], 1e-9):
                worst = claimed, real, delta, level.claim_place, len(seen[exchange.client])
    client = max(steps, key=lambda number: len(steps[number]))
    delta = worst[2] if worst else DELTA
    each = {step: number / len(seen[client]) for step, number in _histogram(steps[client]).items()}
    history = [(s, q, math.ceil(n * rounds)) for (s, q), n in each.items()]
    total = composed_epsilon(history, delta)
    first = used[0][1].claimed[-1][0] if used[0][1].claimed else None
    claims.append(
        Claim(
            "Opacus PrivacyEngine",
            place,
            {"epsilon": first, "delta": delta, **settings},
            {
                "steps of all rounds": sum(n for _, _, n in history),
                "rounds": rounds,
                "epsilon of all rounds": total,
            },
        )
    )
    if worst is not None and worst[1] > _SLACK * worst[0]:
        claimed, real, _, claim_place, number = worst
        yield Finding(
            "epsilon-not-composed",
            "high",
            f"After {number} rounds the client states epsilon {claimed:.3g}; its releases so far compose to "
            f"{real:.3g}, and those of all {rounds} rounds to {total:.3g}.",
            claim_place or place,
            f"epsilon={claimed:.4g}",
            f"epsilon={real:.4g} after {number} rounds, {total:.4g} after {rounds}",
        )
    if not settings.get("poisson_sampling", True):
        yield Finding(
            "sampling-is-not-poisson",
            "medium",
            "The accountant assumes Poisson sampling, which was switched off.",
            place,
            "poisson_sampling=False",
            "poisson_sampling=True",
        )
    if not settings.get("secure_mode", True):
        yield Finding(
            "secure-noise-is-off",
            "low",
            "Opacus draws its noise from a generator that is not cryptographically secure.",
            place,
            "secure_mode=False",
            "secure_mode=True",
        )


def _masking(declared: Declared, claims: list[Claim]) -> Iterator[Finding]:
    names = [_name(mod) for mod in declared.train_mods()]
    masking = [i for i, name in enumerate(names) if name in _MASKING]
    workflows = declared.of(*SECAGG)
    place = declared.place_of_mods() or (workflows[0].place if workflows else "")
    if masking or workflows:
        claims.append(
            Claim("Flower's secure aggregation", place, {"mods": names}, {"bits of a mask's seed": 32})
        )
        yield Finding(
            "secure-aggregation-has-a-small-seed",
            "medium",
            "Flower's secure aggregation expands its masks from seeds of 32 bits, which can all be tried.",
            place,
            "32 bits",
            "at least 128 bits",
        )
    for clipping in [i for i, name in enumerate(names) if name in (*_CLIPPING, LOCAL_DP)]:
        if masking and clipping < masking[0]:
            yield Finding(
                "update-sent-before-clipping",
                "high",
                f"{names[clipping]} stands outside {names[masking[0]]}: it sees masked numbers and clips "
                "those, not the update.",
                place,
                ", ".join(names),
                f"{names[masking[0]]} first",
            )


def _integers(declared: Declared, traffic: Traffic) -> Iterator[Finding]:
    for exchange in traffic.of("train")[:1]:
        whole = [
            place
            for place, array in arrays_of(exchange.reply.content).items()
            if np.issubdtype(array.dtype, np.integer)
        ]
        if whole:
            part = (declared.of(WRAPPER) or declared.of(LOCAL_DP))[0]
            yield Finding(
                "noise-on-integers",
                "medium",
                f"Noise is rounded to whole numbers on {len(whole)} arrays such as {whole[0][1]}: where it "
                "is small, they are sent as they are.",
                part.place,
                f"{whole[0][1]}: {arrays_of(exchange.reply.content)[whole[0]].dtype}",
                "floating point, or left out of the update",
            )


def _unequal_weights(traffic: Traffic) -> float:
    """Return the largest weight over the mean weight, in the round where it is largest."""
    by_round: dict[int, list[float]] = defaultdict(list)
    for exchange in traffic.of("train"):
        for record in exchange.reply.content.metric_records.values():
            weight = next((record[key] for key in _WEIGHT_KEYS if key in record), None)
            if isinstance(weight, int | float) and weight > 0:
                by_round[exchange.round].append(float(weight))
    return max((max(w) * len(w) / sum(w) for w in by_round.values()), default=1.0)


def _difference(sent: dict[Name, np.ndarray], order: dict[Name, np.ndarray]) -> np.ndarray | None:
    if [array.shape for array in sent.values()] != [array.shape for array in order.values()]:
        return None
    pairs = zip(sent.values(), order.values(), strict=True)
    return np.concatenate([(a.astype(float) - b.astype(float)).ravel() for a, b in pairs] or [np.zeros(0)])


def _norm(exchange: Exchange) -> float:
    difference = _difference(arrays_of(exchange.reply.content), arrays_of(exchange.order.content))
    return 0.0 if difference is None else float(np.linalg.norm(difference))


def _measured_noise(traffic: Traffic, clip: float) -> float | None:
    """Return the standard deviation of what was added to a clipped update of floating-point numbers."""
    for exchange in traffic.of("train"):
        order = arrays_of(exchange.order.content)
        inner = _difference(arrays_of(exchange.inner), order)
        sent = _difference(arrays_of(exchange.reply.content), order)
        if inner is not None and sent is not None and inner.size == sent.size and inner.size:
            return float(np.std(sent - inner * min(1.0, clip / max(float(np.linalg.norm(inner)), 1e-12))))
    return None


def _histogram(steps: list[tuple[float, float]]) -> dict[tuple[float, float], int]:
    return {step: steps.count(step) for step in dict.fromkeys(steps)}


def _counted(steps: list[tuple[float, float]]) -> list[tuple[float, float, int]]:
    return [(sigma, rate, number) for (sigma, rate), number in _histogram(steps).items()]


def _name(mod: Any) -> str:
    return getattr(mod, "__name__", type(mod).__name__)
