"""Plain-English description of a policy: the things that a run may and may not do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fl_app.policy.policy import DefenseRule, Policy


def in_words(policy: Policy) -> list[str]:
    """Return one sentence per permission or limit."""
    return [
        _models(policy),
        _defenses(policy),
        f"Each answer is computed on at least {policy.min_samples} samples, in batches of at least "
        f"{policy.min_batch}, with at most {policy.max_local_steps} local steps.",
        _orders(policy),
        _movement(policy),
        _cohort(policy),
        _secagg(policy),
        *_dp(policy),
        _beside(policy),
        f"An answer takes at most {policy.max_bytes} bytes.",
        _audit(policy),
        *_own_attack(policy),
    ]


def _models(policy: Policy) -> str:
    if policy.models:
        return f"A run can train {_either(policy.models)} and no other model."
    return "A run can choose any model that this app knows."


def _defenses(policy: Policy) -> str:
    if not policy.defenses:
        return "A run can choose any defense, or none: the server may then invert updates."
    return f"A run must defend updates with {_either([_rule(rule) for rule in policy.defenses])}."


def _rule(rule: DefenseRule) -> str:
    bounds: list[tuple[str, Mapping[str, Any]]] = [
        ("at least", rule.at_least),
        ("at most", rule.at_most),
        ("equal to", rule.equals),
    ]
    said = [f"{key} {word} {value}" for word, values in bounds for key, value in values.items()]
    return rule.name + (f" ({', '.join(said)})" if said else "")


def _orders(policy: Policy) -> str:
    total = policy.orders.total
    often = "one answer" if policy.orders.per_round == 1 else f"{policy.orders.per_round} answers"
    over = "any number of answers over all runs" if total is None else f"{total} answers over all runs"
    return f"A run gets {often} for each of its rounds; the node gives {over}."


def _movement(policy: Policy) -> str:
    if policy.max_movement is None:
        return "The server can send a different model in each round."
    return (
        f"Without differential privacy, a tensor of the model can move by {policy.max_movement:g} times its "
        "size from one round to the next, and by the square root of n as much after n local steps."
    )


def _cohort(policy: Policy) -> str:
    if policy.min_cohort == 1:
        return "A run can have this node as its only client."
    return f"A run must say that it has at least {policy.min_cohort} clients."


def _secagg(policy: Policy) -> str:
    apart = policy.secure_aggregation.min_difference
    sums = (
        f"Two sums of different clients must differ by {apart} clients."
        if apart
        else "Two sums can differ by one client: their difference then shows what it sent, without noise."
    )
    if policy.secure_aggregation.required:
        return f"Updates leave under the masks of secure aggregation only. {sums}"
    return f"A run can ask for updates in the clear: the server sees each of them. Under masks: {sums}"


def _dp(policy: Policy) -> list[str]:
    dp = policy.dp
    unit = "a client or a record" if dp.unit == "any" else f"a {dp.unit}"
    said = [
        f"Noise must protect {unit}." if dp.required else "A run can do without differential privacy.",
        f"Under differential privacy at most {dp.max_cohort} clients share the noise, and the noise "
        f"multiplier against the server is at least {dp.min_sigma:g}.",
    ]
    if dp.epsilon is not None:
        said.append(f"All runs together spend at most epsilon {dp.epsilon:g} at delta {dp.delta:g}.")
    elif dp.required:
        said.append("There is no budget: each run may spend its own.")
    return said


def _beside(policy: Policy) -> str:
    metrics = (
        f"the numbers {', '.join(policy.metrics)}" if policy.metrics else "no number measured on the data"
    )
    buffers = "BatchNorm statistics (never under noise or masks)" if policy.buffers else "no statistics"
    return f"Beside the update leave {metrics} and {buffers}."


def _own_attack(policy: Policy) -> list[str]:
    limits = policy.own_attack
    if limits is None:
        return []
    return [
        f"The node attacks each update for up to {limits.seconds:g} seconds, and withholds it if a rebuilt "
        f"picture has an SSIM of {limits.max_ssim:g} or more"
        + ("" if limits.max_identified is None else f", or above {limits.max_identified:.0%} are identified")
        + ("" if limits.max_label_f1 is None else f", or labels have an F1 above {limits.max_label_f1:g}")
        + "."
    ]


def _audit(policy: Policy) -> str:
    audit = policy.audit
    if not audit.allowed:
        return "No run can see a sample."
    by = [f"run {number}" for number in audit.runs] + [f"bundle {known}" for known in audit.bundles]
    who = _either(by) if by else "Any run"
    return f"{who} can see up to {audit.samples} samples in the clear with each answer."


def _either(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
