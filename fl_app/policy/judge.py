"""Checks of a policy on a run as built, on every order, and on every answer before it leaves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fl_app.policy.plan import Ask, AuditAsk, Leaving, Part, RunPlan
from fl_app.policy.policy import DefenseRule, Policy
from fl_app.policy.refusal import Refusal


def check_plan(policy: Policy, plan: RunPlan) -> None:
    """Refuse a run that violates the policy, before reading any of its orders."""
    _check_model(policy, plan.model, plan.model_hash)
    rules = policy.defenses
    if rules and not any(_obeys(part, rule) for rule in rules for part in plan.parts):
        parts = [(part.name, dict(part.settings)) for part in plan.parts]
        raise Refusal("defense", f"none of {[rule.name for rule in rules]} is strong enough in {parts}")
    if plan.batch_size is not None and plan.batch_size < policy.min_batch:
        raise Refusal("batch", f"expected a batch of at least {policy.min_batch}, got {plan.batch_size}")
    if plan.clients < policy.min_cohort:
        raise Refusal("cohort", f"expected at least {policy.min_cohort} clients, got {plan.clients}")
    if policy.secure_aggregation.required and not plan.secagg:
        raise Refusal("secagg", "the run sends updates in the clear")
    if policy.dp.required and (plan.noise is None or not plan.noise.protects(policy.dp.unit)):
        raise Refusal("dp", f"expected noise for each {policy.dp.unit}, got {plan.noise}")


def check_ask(policy: Policy, plan: RunPlan, ask: Ask) -> None:
    """Refuse an order."""
    if not 1 <= ask.round <= plan.rounds:
        raise Refusal("order", f"expected a round from 1 to {plan.rounds}, got {ask.round}")
    if ask.audit is not None:
        check_audit(policy, ask.audit)
    if ask.model_hash != plan.model_hash and ask.audit is None:
        raise Refusal("model", f"expected the run's model {plan.model_hash[:8]}, got {ask.model_hash[:8]}")
    if ask.cohort is not None:
        check_cohort(policy, plan, ask.cohort)


def check_cohort(policy: Policy, plan: RunPlan, cohort: int) -> None:
    """Refuse a cohort too small to hide in, or so large that each member adds too little noise."""
    most = policy.dp.max_cohort if plan.noise is not None else None
    if cohort < policy.min_cohort or (most is not None and cohort > most):
        raise Refusal("cohort", f"expected {policy.min_cohort} to {most} clients, got {cohort}")


def check_audit(policy: Policy, audit: AuditAsk) -> None:
    """Refuse an audit without consent."""
    consent = policy.audit
    if not consent.allowed:
        raise Refusal("audit", "the policy allows none")
    if consent.runs and audit.run not in consent.runs:
        raise Refusal("audit", f"expected one of the runs {consent.runs}, got {audit.run}")
    if consent.bundles and not any(_same_hash(audit.bundle, known) for known in consent.bundles):
        raise Refusal("audit", f"expected one of the bundles {consent.bundles}, got {audit.bundle!r}")
    if audit.samples > consent.samples:
        raise Refusal("audit", f"expected at most {consent.samples} samples, got {audit.samples}")


def check_work(policy: Policy, plan: RunPlan, samples: int) -> None:
    """Refuse a round's work before it starts; ``samples`` is the node's total."""
    steps = plan.steps_of(samples)
    if steps > policy.max_local_steps:
        raise Refusal("steps", f"expected at most {policy.max_local_steps} steps, got {steps}")


def check_leaving(policy: Policy, plan: RunPlan, leaving: Leaving) -> None:
    """Refuse to let an answer leave."""
    if leaving.bytes > policy.max_bytes:
        raise Refusal("bytes", f"expected at most {policy.max_bytes} bytes, got {leaving.bytes}")
    if leaving.buffers and (not policy.buffers or plan.noise is not None or plan.secagg):
        raise Refusal("buffers", "the answer holds buffers")
    if leaving.audit is not None:
        if leaving.samples > policy.audit.samples:
            raise Refusal("audit", f"expected at most {policy.audit.samples} samples, got {leaving.samples}")
        return  # consent to an audit covers small batches
    if leaving.batch < policy.min_batch:
        raise Refusal("batch", f"expected batches of at least {policy.min_batch}, got {leaving.batch}")
    if leaving.samples < policy.min_samples:
        raise Refusal("batch", f"expected at least {policy.min_samples} samples, got {leaving.samples}")


def check_noise(policy: Policy, sigma: float) -> None:
    """Refuse an answer under differential privacy whose noise multiplier against the server is too small."""
    if sigma < policy.dp.min_sigma:
        raise Refusal("dp", f"expected a noise multiplier of at least {policy.dp.min_sigma:g}, got {sigma:g}")


def _check_model(policy: Policy, name: str, model_hash: str) -> None:
    if policy.models and name not in policy.models and model_hash not in policy.models:
        raise Refusal("model", f"expected one of {policy.models}, got {name} ({model_hash})")


def _obeys(part: Part, rule: DefenseRule) -> bool:
    settings: Mapping[str, Any] = part.settings
    return (
        part.name == rule.name
        and all(_is_number(settings.get(k)) and settings[k] >= least for k, least in rule.at_least.items())
        and all(_is_number(settings.get(k)) and settings[k] <= most for k, most in rule.at_most.items())
        and all(k in settings and settings[k] == value for k, value in rule.equals.items())
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _same_hash(one: str, other: str) -> bool:
    """Compare two hashes, one of which may be abbreviated."""
    shorter, longer = sorted((one, other), key=len)
    return bool(shorter) and longer.startswith(shorter)
