"""Settings that a node fixes: nothing that a run sends changes them, in whatever words.

A fixed key fixes everything below it and everything in ``conf/`` that interpolates it; a fixed choice of a
group fixes all that the chosen file sets. Sent overrides of such keys, of their parents and of their
children are set aside, and the composed result is compared with that of a run that sent none of them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from fl_app.config.compose import (
    ConfigError,
    choices_of,
    compose_unresolved,
    is_group,
    join_overrides,
    parse_overrides,
)
from fl_app.config.conf_files import keys_of_choice, known_key
from fl_app.config.entries import entries_of
from fl_app.config.old_names import explain_old_key

logger = logging.getLogger(__name__)

Path = tuple[str, ...]
_REFERENCE = re.compile(r"\$\{(\.*)([\w.]*)\}")


def settle(sent: list[str], own: list[str]) -> str:
    """Return the overrides to compose: a run's, replaced by the node's ``own`` where both set a key."""
    if not own:
        return join_overrides(sent)
    theirs, mine = parse_overrides(sent), parse_overrides(own)
    chosen = {o.key_or_group for o in mine if is_group(o)}
    groups = [
        text for text, o in zip(sent, theirs, strict=True) if is_group(o) and o.key_or_group not in chosen
    ]
    mine_here = _that_apply(own, mine, groups)
    base = [*groups, *mine_here]
    before = _leaves(base)
    fixed = _fixed(before, parse_overrides(mine_here))
    kept = [
        text
        for text, o in zip(sent, theirs, strict=True)
        if text in groups or not (is_group(o) or _touches(tuple(o.key_or_group.split(".")), fixed))
    ]
    for text in sent:
        if text not in kept:
            logger.info("the node's own settings take the place of %s", text)
    after = _leaves([*kept, *mine_here])
    if _below(after, fixed) != _below(before, fixed):
        raise ConfigError("overrides: the run's and the node's own do not go together")
    return join_overrides([*kept, *mine_here])


def _that_apply(own: list[str], parsed: list[Override], groups: list[str]) -> list[str]:
    """Return the node's overrides whose keys this run has: ``dp.secure`` says nothing without dp."""
    choices = [text for text, o in zip(own, parsed, strict=True) if is_group(o)]
    there = OmegaConf.to_container(compose_unresolved([*groups, *choices]))
    found = {entry.path for entry in entries_of(there)}
    kept = []
    for text, override in zip(own, parsed, strict=True):
        key = override.key_or_group
        new = override.is_add() or override.is_force_add()
        if is_group(override) or new or tuple(key.split(".")) in found:
            kept.append(text)
        elif not known_key(key):
            reason = explain_old_key(key) or f"{key}: no file of conf/ has such a key"
            raise ConfigError(f"node-config: overrides: {reason}")
        else:
            logger.info("the node's own %s says nothing about this run", text)
    return kept


def _leaves(overrides: list[str]) -> dict[Path, Any]:
    """Return every key of the composed config with its value, references unresolved."""
    composed = OmegaConf.to_container(compose_unresolved(overrides))
    return {
        entry.path: None if isinstance(entry.value, dict | list) else entry.value
        for entry in entries_of(composed)
    }


def _fixed(leaves: dict[Path, Any], own: list[Override]) -> set[Path]:
    """Return the keys that the node's overrides decide."""
    roots: set[Path] = set()
    for override in own:
        key = override.key_or_group
        roots.add(tuple(key.split(".")))
        if choices_of(override) is not None:
            roots |= set(keys_of_choice(key, str(override.value())))
    fixed: set[Path] = set()
    grown = roots
    while grown:
        fixed |= grown
        grown = {
            path
            for path, value in leaves.items()
            if path not in fixed and (_within(path, fixed) or _refers(path, value, fixed))
        }
    return fixed


def _within(path: Path, fixed: set[Path]) -> bool:
    return any(path[:end] in fixed for end in range(1, len(path)))


def _refers(path: Path, value: Any, fixed: set[Path]) -> bool:
    return any(_touches(reference, fixed) for reference in _references(path, value))


def _references(path: Path, value: Any) -> Iterator[Path]:
    """Go through the keys that a value refers to; leading dots count upwards from the value's own key."""
    if not isinstance(value, str):
        return
    for dots, name in _REFERENCE.findall(value):
        start = path[: len(path) - len(dots)] if dots else ()
        yield (*start, *(part for part in name.split(".") if part))


def _touches(path: Path, fixed: Iterable[Path]) -> bool:
    """Say whether ``path`` is a fixed key, above one or below one."""
    return any(path[: len(other)] == other[: len(path)] for other in fixed)


def _below(leaves: dict[Path, Any], fixed: set[Path]) -> dict[Path, Any]:
    return {path: value for path, value in leaves.items() if path in fixed or _within(path, fixed)}
