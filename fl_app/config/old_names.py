"""Former spellings of settings, and the ones that took their place."""

from __future__ import annotations

from collections.abc import Mapping

from omegaconf import DictConfig, OmegaConf

from fl_app.config.true_names import TARGET

OLD_NAMES: Mapping[str, str] = {
    "attack.bn": "attack.statistics",
    "attack.method": "attack",
    "attack.public": "attack.known_images",
    "coordinates": "defense.chosen_by",
    "defense.adgp": "defense",
    "defense.adgp.enabled": "defense.error_feedback",
    "defense.adgp.inner": "defense",
    "defense.bf16": "defense",
    "defense.dgp": "defense",
    "defense.dgp.enabled": "defense.error_feedback",
    "defense.dgp.inner": "defense",
    "defense.fp16": "defense",
    "defense.gaussian": "defense",
    "defense.graddrop": "defense",
    "defense.graddrop.enabled": "defense.error_feedback",
    "defense.graddrop.inner": "defense",
    "defense.int8": "defense",
    "defense.laplace": "defense",
    "defense.outpost": "defense",
    "defense.outpost.enabled": "defense.error_feedback",
    "defense.outpost.inner": "defense",
    "defense.outpost.inner.share": "defense.noisy",
    "defense.prune.enabled": "defense.error_feedback",
    "defense.prune.inner": "defense",
    "defense.sign": "defense",
    "defense.topk": "defense",
    "defense.topk.enabled": "defense.error_feedback",
    "defense.topk.inner": "defense",
    "defense.topk.inner.k": "defense.share",
    "error_feedback": "defense.error_feedback",
    "location": "defense.location",
    "public_lr": "defense.public_lr",
    "share": "defense.share",
    "strategy.chosen_by": "defense.chosen_by",
    "strategy.k": "defense.k",
    "strategy.location": "defense.location",
    "strategy.min_size": "defense.min_size",
    "strategy.public_lr": "defense.public_lr",
    "strategy.public_steps": "defense.public_steps",
    "strategy.share": "defense.share",
    "strategy.voters": "defense.voters",
    "voters": "defense.voters",
}
"""By the former key: the key that took its place; what stood below the one stands below the other."""
_OURS = ("fl_app.", "attacks.")
_CONTAINERS = ("fl_app.transforms.chain", "fl_app.defenses.protect")


def explain_old_key(key: str) -> str | None:
    """Return what to write instead of a former key; None if it is none."""
    parts = key.split(".")
    for end in range(len(parts), 0, -1):
        new = OLD_NAMES.get(".".join(parts[:end]))
        if new is not None:
            return f"{key}: is now {'.'.join([new, *parts[end:]])}"
    return None


def find_old_key(composed: DictConfig) -> str | None:
    """Return a former key in a config, which nothing reads; a user's own part may have such keys."""
    for key in OLD_NAMES:
        group, _, inner = key.partition(".")
        if inner:
            target = str(OmegaConf.select(composed, f"{group}.{TARGET}"))
            if not target.startswith(_OURS) or target in _CONTAINERS:
                continue
        if _holds(composed, key):
            return key
    return None


def _holds(node: object, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(node, DictConfig) or part not in node:
            return False
        node = node._get_node(part)
    return True
