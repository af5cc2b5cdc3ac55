"""Cells of a study: every part's grid, with the user's overrides applied."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from fl_app.config.compose import ConfigError, compose, join_overrides, parse_overrides
from fl_app.experiments.studies.selector import Selector
from fl_app.experiments.studies.study_file import Part, Search, Study, hydra_value


@dataclass(frozen=True)
class Planned:
    """One cell: a run of one part."""

    part: str
    at: Mapping[str, str]
    """Its place on every axis of its part."""
    overrides: list[str]
    search: Search | None = None
    """Search for one more setting, which is not yet among the overrides."""

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """The run's config, composed lazily: Hydra takes a good part of a second for each."""
        return cast(dict[str, Any], OmegaConf.to_container(compose(join_overrides(self.overrides))))

    @property
    def name(self) -> str:
        """The cell in words."""
        place = " ".join(f"{axis}={value}" for axis, value in self.at.items())
        return f"{self.part}: {place}" if place else self.part

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(value_of(self, "seed") or 0)


def plan_cells(study: Study, more: Sequence[str] = ()) -> list[Planned]:
    """Return the cells of all parts.

    ``more`` replaces settings and whole axes; several values of a key form an axis. An override that
    begins with a part's name and a colon applies to that part only.
    """
    names = [part.name for part in study.parts]
    cells: list[Planned] = []
    for part in study.parts:
        split = [(override, *override.partition(":")[::2]) for override in more]
        mine = [
            rest if owner in names else override
            for override, owner, rest in split
            if owner == part.name or owner not in names
        ]
        cells += _cells(study.name, part, parse_overrides(mine))
    return cells


def set_override(cell: Planned, override: str) -> Planned:
    """Return the cell with one more override, and without a search."""
    return Planned(cell.part, cell.at, _last_of_each([*cell.overrides, override]))


def check_settings(cells: Sequence[Planned]) -> None:
    """Refuse settings that are invalid for the first cell of a part; later cells fail when they run."""
    firsts: dict[str, Planned] = {}
    for cell in cells:
        firsts.setdefault(cell.part, cell)
    for cell in firsts.values():
        try:
            compose(join_overrides(cell.overrides))
        except ConfigError as error:
            raise type(error)(f"{cell.name}: {error}") from error


def check_selectors(study: Study, cells: Sequence[Planned]) -> None:
    """Refuse a study whose table, figures or claims select no cell."""
    for place, selector, single in _selectors(study):
        found = matching(cells, selector)
        if not found:
            raise ConfigError(f"{study.name}: {place}: {explain_nothing(cells, selector)}")
        if single and (reason := ambiguity(found, selector)):
            raise ConfigError(f"{study.name}: {place}: {reason}")
    for number, figure in enumerate(study.figures):
        place = f"{study.name}: study.figures[{number}]"
        own = ("round", "iteration") if figure.kind in ("lines", "gallery") else ("round",)
        axes = [axis for axis in (*figure.series, figure.x) if isinstance(axis, str) and axis not in own]
        for axis in axes:
            if all(value_of(cell, axis) is None for cell in matching(cells, figure.select)):
                raise ConfigError(f"{place}: {axis}: {_known(cells)}")


def matching(cells: Iterable[Planned], selector: Selector) -> list[Planned]:
    """Return the cells that a selector names."""
    return [cell for cell in cells if fits(cell, selector)]


def fits(cell: Planned, selector: Selector) -> bool:
    """Return whether a selector names the cell."""
    if selector.parts and cell.part not in selector.parts:
        return False
    return all(
        _plain(value_of(cell, key)) in {_plain(hydra_value(value)) for value in values}
        for key, values in selector.where.items()
    )


def value_of(cell: Planned, key: str) -> str | None:
    """Return a cell's part, place on an axis, choice in a group or setting, as text; None if it has none."""
    if key == "part":
        return cell.part
    if key in cell.at:
        return cell.at[key]
    value: Any = cell.config["choices"].get(key)
    if value is None:
        value = cell.config
        for name in key.split("."):
            if not isinstance(value, Mapping) or name not in value:
                return None
            value = value[name]
    return None if isinstance(value, Mapping) else hydra_value(value)


def ambiguity(cells: Sequence[Planned], selector: Selector) -> str | None:
    """Describe the differences besides the seed, if a selector for one kind of cell names several."""
    axes = dict.fromkeys(["part", *(axis for cell in cells for axis in cell.at)])
    for axis in axes:
        values = list(dict.fromkeys(value_of(cell, axis) or "none" for cell in cells))
        if axis != "seed" and axis not in selector.over and len(values) > 1:
            return f"names cells that differ in {axis} ({', '.join(values)}); name one, or say over: [{axis}]"
    return None


def explain_nothing(cells: Sequence[Planned], selector: Selector) -> str:
    """Explain why a selector names no cell."""
    parts = list(dict.fromkeys(cell.part for cell in cells))
    for part in selector.parts:
        if part not in parts:
            return f"{part!r} is no part: {', '.join(parts)}"
    left = [cell for cell in cells if not selector.parts or cell.part in selector.parts]
    for key, values in selector.where.items():
        there = list(dict.fromkeys(value for cell in left if (value := value_of(cell, key)) is not None))
        if not there:
            return f"{key}: {_known(cells)}"
        if not {_plain(hydra_value(value)) for value in values} & set(map(_plain, there)):
            return f"{key}: no cell has {', '.join(map(str, values))}; there are {', '.join(there)}"
    return "no cell is all of that at once"


def _plain(text: str | None) -> str | None:
    """Normalise numbers: 1e-3 becomes 0.001."""
    try:
        return None if text is None else repr(float(text))
    except ValueError:
        return text


def _known(cells: Sequence[Planned]) -> str:
    axes = dict.fromkeys(axis for cell in cells for axis in cell.at)
    return f"neither an axis ({', '.join(axes)}), nor a group or key of the config"


def _selectors(study: Study) -> Iterable[tuple[str, Selector, bool]]:
    """Return every selector, its position in the file, and whether it must name one kind of cell."""
    for row in study.rows:
        for column, entry in zip(study.columns, row.entries, strict=True):
            if entry.without is None:
                yield f"study.table: row {' '.join(row.name)}, column {column}", entry.select, True
        if row.mark is not None and row.mark.base is not None:
            yield f"study.table: row {' '.join(row.name)}, mark", row.mark.base, True
    for claim in study.claims:
        for selector in filter(None, (claim.left, claim.right)):
            yield f"study.claims: {claim.name}", selector, True
    for number, figure in enumerate(study.figures):
        named = [node for node in (figure.select, figure.x, figure.y) if isinstance(node, Selector)]
        yield from ((f"study.figures[{number}]", selector, False) for selector in named)


def _cells(name: str, part: Part, more: Sequence[Override]) -> Iterable[Planned]:
    axes: dict[str, Mapping[str, Sequence[str]]] = dict(part.axes)
    users = []
    for override in more:
        key, several = override.get_key_element(), override.is_sweep_override()
        if not several and key not in axes:
            users.append(str(override.input_line))
            continue
        values = list(override.sweep_string_iterator()) if several else [_value_text(override)]
        old = axes.get(key, {})
        # Hydra escapes a space in one of several values with a backslash, which names do not contain
        values = [plain if (plain := value.replace("\\ ", " ")) in old else value for value in values]
        axes[key] = {value: old.get(value, [f"{key}={value}"]) for value in values}
    named = [override.get_key_element() for override in more]
    search = None if part.search is not None and part.search.key in named else part.search
    for places in itertools.product(*(axis.items() for axis in axes.values())):
        wanted = [*part.settings, *(override for _, own in places for override in own), *users]
        overrides = [f"experiment={name}", *_last_of_each(wanted)]
        at = {axis: label for axis, (label, _) in zip(axes, places, strict=True)}
        yield Planned(part.name, at, overrides, search)


def _value_text(override: Override) -> str:
    return str(override.input_line).partition("=")[2]


def _last_of_each(overrides: Sequence[str]) -> list[str]:
    """Drop overrides that are superseded by a later one of the same key."""
    keys = [override.get_key_element() for override in parse_overrides(overrides)]
    last = {key: number for number, key in enumerate(keys)}
    return [override for number, override in enumerate(overrides) if last[keys[number]] == number]
