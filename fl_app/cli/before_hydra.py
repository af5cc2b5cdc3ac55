"""Checks of overrides before Hydra sees them: its own messages list no choices."""

from __future__ import annotations

from collections.abc import Sequence

from fl_app.config.compose import (
    SEARCH_PATH,
    ConfigError,
    UnknownName,
    compose,
    join_overrides,
    parse_overrides,
    swept_by_experiment,
)


def refuse_sweep(overrides: Sequence[str]) -> None:
    """Raise a ConfigError if an override has several values."""
    for override in parse_overrides(overrides):
        if override.is_sweep_override():
            raise ConfigError(f"{override.input_line}: multiple values given; add -m to sweep")


def swept_besides(overrides: Sequence[str]) -> list[str]:
    """Return the sweeps of an experiment that the command line does not set."""
    parsed = parse_overrides(overrides)
    single = [str(o.input_line) for o in parsed if not o.is_sweep_override()]
    keys = {o.get_key_element() for o in parsed}
    return [params for params in swept_by_experiment(single) if params.partition("=")[0] not in keys]


def check_overrides(overrides: Sequence[str]) -> None:
    """Compose with every value of every sweep, one at a time.

    Values that are only refused together are no reason to stop: others may go well.
    """
    values = [
        [f"{o.get_key_element()}={value}" for value in o.sweep_string_iterator()]
        if o.is_sweep_override()
        else [str(o.input_line)]
        for o in parse_overrides(overrides)
        if o.key_or_group == SEARCH_PATH or not o.key_or_group.startswith("hydra")
    ]
    sweeps = any(len(choices) > 1 for choices in values)
    for i, choices in enumerate(values):
        for choice in choices:
            try:
                compose(join_overrides([choice if j == i else firsts[0] for j, firsts in enumerate(values)]))
            except ConfigError as error:
                if not sweeps or isinstance(error, UnknownName):
                    raise
