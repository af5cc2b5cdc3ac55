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
        *_apps(policy),
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


def _audit(policy: Policy) -> str:
    audit = policy.audit
    if not audit.allowed:
        return "No run can see a sample."
    by = [f"run {number}" for number in audit.runs] + [f"bundle {known}" for known in audit.bundles]
    who = _either(by) if by else "Any run"
    return f"{who} can see up to {audit.samples} samples in the clear with each answer."


def _apps(policy: Policy) -> list[str]:
    apps = policy.apps
    rules = [
        " ".join(f"{name} {value}" for name, value in rule.model_dump(exclude_none=True).items()) or "any app"
        for rule in apps.allowed
    ]
    applied = [" ".join([one.name, *(f"{k}={v}" for k, v in one.settings.items())]) for one in apps.apply]
    numbers = [apps.weight, *policy.metrics]
    said = [
        f"Under fl-app-supernode {_either(rules) if rules else 'any app'} can run. It answers messages to "
        f"{_either(list(apps.messages))}, within {apps.seconds:g} seconds"
        + (f", in rounds up to {apps.rounds}." if apps.rounds else ", in any number of rounds."),
        f"The node itself applies {' and then '.join(applied)} to the updates of such an app."
        if applied
        else "The node applies no defense of its own to such an app: the server may then invert updates.",
        f"Beside arrays as in the message, such an app sends the numbers {', '.join(numbers)}, to "
        f"{apps.digits} digits; {apps.weight} is a whole number up to {apps.most_weight}.",
    ]
    if not apps.sandbox:
        said.append("The code of such an app can use the network and the files of the node's user.")
    if apps.trusted:
        said.append(f"Replies of {_either([f'bundle {known}' for known in apps.trusted])} pass unread.")
    return said


def _either(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
