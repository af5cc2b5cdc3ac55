"""Overrides of strangers are literals: they name keys and give values, and refer to nothing.

A reference (``${…}``) is looked up while a config is composed and may reach the environment. Hydra's
grammar takes backslashes away, so a raw text that looks harmless can become one. An override is
therefore refused by its text and by every word that Hydra makes of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import HydraException

from fl_app.config.compose import ConfigError, choices_of

LONGEST = 1 << 16
"""Characters of all overrides together."""
DEEPEST = 16
"""Brackets within each other."""
MOST_OVERRIDES = 256
MOST_COMMAS = 1024
"""In all overrides together: Hydra's parser takes the square of a list's length."""
LONGEST_KEY = 256
WHO = "overrides from the network"
_PLAIN_KEY = re.compile(r"\w+(\.\w+)*", re.ASCII)


def check_length(overrides: str) -> None:
    """Refuse a text that would take minutes to be split into overrides."""
    if len(overrides) > LONGEST:
        raise ConfigError(f"{WHO}: expected at most {LONGEST} characters, got {len(overrides)}")


def check_literals(overrides: list[str]) -> None:
    """Refuse overrides that reach beyond ``conf/`` while they are composed, or take minutes to be."""
    if len(overrides) > MOST_OVERRIDES:
        raise ConfigError(f"{WHO}: expected at most {MOST_OVERRIDES} overrides, got {len(overrides)}")
    commas = sum(override.count(",") for override in overrides)
    if commas > MOST_COMMAS:
        raise ConfigError(f"{WHO}: expected lists of at most {MOST_COMMAS} values, got {commas}")
    for override in overrides:
        _check_depth(override)
        _check(override, _parse(override))


def _check_depth(override: str) -> None:
    depth = 0
    for sign in override:
        depth += (sign in "[{(") - (sign in "]})")
        if depth > DEEPEST:
            raise ConfigError(f"{WHO}: expected at most {DEEPEST} brackets within each other")


def _parse(override: str) -> Override:
    try:
        (parsed,) = OverridesParser.create().parse_overrides([override])
    except (HydraException, ValueError) as error:  # a ValueError: a number of thousands of digits
        raise ConfigError(f"{WHO}: {error}") from error
    return parsed


def _check(text: str, override: Override) -> None:
    key = override.key_or_group
    # a search path of Hydra's may name any folder or package, a package of the override any place
    plain = len(key) <= LONGEST_KEY and _PLAIN_KEY.fullmatch(key)
    if override.package is not None or not plain or key.split(".")[0] == "hydra":
        raise ConfigError(f"{WHO}: {text!r} is no setting of a run: expected key=value or key.key=value")
    if "$" in text or any("$" in word for word in _words(override.value())):
        raise ConfigError(f"{WHO}: {text!r} refers to something; only conf/ itself may")
    if override.is_sweep_override():
        raise ConfigError(f"{WHO}: {text!r} has several values; expected one")
    _check_choice(override)


def _words(value: Any) -> Iterator[str]:
    """Go through every text in a value, however deep, keys of mappings among them."""
    if isinstance(value, QuotedString):
        yield value.text
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _words(name)
            yield from _words(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _words(inner)
    elif isinstance(value, str):
        yield value


def _check_choice(override: Override) -> None:
    choices, chosen = choices_of(override), override.value()
    if choices is None or chosen is None:
        return
    for name in chosen if isinstance(chosen, list) else [chosen]:
        if name not in choices:  # such as a path
            group = override.key_or_group
            raise ConfigError(f"{WHO}: {group} must be one of {', '.join(choices)}; got {name!r}")
