"""True names of what runs: a choice keeps its name only as long as overrides leave its callables alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

TARGET = "_target_"


def true_names(chosen: DictConfig, composed: DictConfig) -> dict[str, str]:
    """Return the name of every choice whose callables are not those of the chosen file.

    ``chosen`` is composed of the choices alone, ``composed`` of all overrides. Another outermost
    callable gives its own name, ``my_package.my_defense``; steps that were added or taken away are
    written behind the choice, ``topk+my_package.my_step``.
    """
    named = {}
    for group, choice in composed.choices.items():
        before, after = (dict(_targets(_plain(config.get(group)))) for config in (chosen, composed))
        if before != after:
            named[str(group)] = _name(str(choice), before, after)
    return named


def _name(choice: str, before: Mapping[str, str], after: Mapping[str, str]) -> str:
    outermost = next(iter(after.items()), None)
    if outermost is not None and outermost[1] != next(iter(before.values()), None):
        return outermost[1]
    added = {path: target for path, target in after.items() if before.get(path) != target}
    gone = {path: target for path, target in before.items() if path not in after}
    return choice + "".join(
        f"{sign}{target}"
        for sign, steps in (("+", added), ("-", gone))
        for path, target in steps.items()
        if not any(path.startswith(f"{other}.") for other in steps)
    )


def _targets(node: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Go through the callables of a config, the outermost first."""
    if isinstance(node, dict):
        if TARGET in node:
            yield path, str(node[TARGET])
        for name, value in node.items():
            yield from _targets(value, f"{path}.{name}")


def _plain(node: Any) -> Any:
    return OmegaConf.to_container(node) if OmegaConf.is_config(node) else cast(Any, node)
