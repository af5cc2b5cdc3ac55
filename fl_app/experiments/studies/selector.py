"""Selection of values: a part, choices and settings, and a metric with its parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fl_app.config.compose import ConfigError
from fl_app.experiments.studies.metrics import Metric, metric_of

FORMS = ("worst", "plain", "adaptive")
UPDATES = ("defended", "undefended", "sum", "masked")
TARGETS = ("truth", "trained")
LABELS = ("any", "granted", "inferred")
TAKES = ("mean", "min", "max")


@dataclass(frozen=True)
class Selector:
    """Metric to read, and the cells to read it from."""

    parts: tuple[str, ...] = ()
    """Empty: any part."""
    where: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Wanted values by axis, group or key of the config."""
    over: tuple[str, ...] = ()
    """Axes beside the seed whose values are repetitions."""
    metric: Metric | None = None
    form: str = "worst"
    update: str = "defended"
    against: str = "truth"
    labels: str = "any"
    round: int | tuple[int, ...] | str | None = None
    """Round of attacked updates, or of training; ``last``: the last one that was attacked or evaluated.

    ``best``, for training only: the one that ``best_round`` names.
    """
    broadcaster: bool | None = None
    client: int | None = None
    """Client whose update was attacked; None: any."""
    iteration: int | None = None
    """Iteration of the search; None: its end."""
    take: str = "mean"
    not_found: float | None = None
    """Value of an image that an attack did not find; None leaves it out."""


_ONE_OF = {"form": FORMS, "update": UPDATES, "against": TARGETS, "labels": LABELS, "take": TAKES}
RESERVED = ("part", "metric", "over", "round", "broadcaster", "client", "iteration", "not_found", *_ONE_OF)


def parse_selector(raw: Any, place: str) -> Selector:
    """Read a selector; ``place`` is its position in the file, for errors."""
    if not isinstance(raw, Mapping):
        raise ConfigError(f"{place}: a selector is key: value, got {raw!r}")
    for key, choices in _ONE_OF.items():
        if raw.get(key, choices[0]) not in choices:
            raise ConfigError(f"{place}.{key}: must be one of {', '.join(choices)}, got {raw[key]!r}")
    number = tuple(raw["round"]) if isinstance(raw.get("round"), list) else raw.get("round")
    if number not in (None, "last", "best") and not (_listed(number) and all(map(_whole, _listed(number)))):
        raise ConfigError(
            f"{place}.round: must be a round's number, several, last or best, got {raw['round']!r}"
        )
    if raw.get("broadcaster") not in (None, True, False):
        raise ConfigError(f"{place}.broadcaster: must be true or false, got {raw['broadcaster']!r}")
    for key in ("client", "iteration"):
        if raw.get(key) is not None and not _whole(raw[key], at_least=0):
            raise ConfigError(f"{place}.{key}: must be a whole number from 0 on, got {raw[key]!r}")
    metric = metric_of(raw["metric"], f"{place}.metric") if "metric" in raw else None
    if raw.get("iteration") is not None and metric is not None and not metric.traced:
        raise ConfigError(f"{place}.iteration: {metric.name} is not known of every iteration; trace.… is")
    not_found = raw.get("not_found")
    if not_found is not None and (isinstance(not_found, bool) or not isinstance(not_found, int | float)):
        raise ConfigError(f"{place}.not_found: must be a number, got {not_found!r}")
    return Selector(
        parts=tuple(map(str, _listed(raw.get("part")))),
        where={key: _listed(value) for key, value in raw.items() if key not in RESERVED},
        over=tuple(map(str, _listed(raw.get("over")))),
        metric=metric,
        round=number,
        client=raw.get("client"),
        iteration=raw.get("iteration"),
        broadcaster=raw.get("broadcaster"),
        not_found=not_found,
        **{key: raw[key] for key in _ONE_OF if key in raw},
    )


def merge_selectors(parts: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """Merge named selectors into one; no two may give a key different values."""
    merged: dict[str, Any] = {}
    owner: dict[str, str] = {}
    for name, raw in parts:
        for key, value in raw.items():
            if merged.get(key, value) != value:
                raise ConfigError(f"{name}: {key} is {value!r} here and {merged[key]!r} in {owner[key]}")
            merged[key], owner[key] = value, name
    return merged


def _listed(value: Any) -> tuple[Any, ...]:
    return () if value is None else tuple(value) if isinstance(value, list | tuple) else (value,)


def _whole(value: Any, at_least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least
