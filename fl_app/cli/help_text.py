"""Help of ``fl-app``: the program in a sentence, the settings most used, and every choice of ``conf/``."""

from __future__ import annotations

import textwrap
from typing import Any, cast

from omegaconf import OmegaConf

from fl_app.cli.subcommands import SUBCOMMANDS
from fl_app.config.compose import CONF_DIR, CONFIG_NAME, group_choices

MOST_USED = {
    "defense": "what clients do to their updates before they leave",
    "attack": "what the server tries on the updates that it sees",
    "model": "the network that is trained",
    "data": "the samples",
    "partition": "how the samples are dealt to the clients",
    "rounds": "rounds of training",
    "clients": "clients in all",
    "lr": "learning rate",
    "batch_size": "samples of a client's step",
    "seed": "the same seed gives the same run",
}
"""The ten settings that most runs set, in the order in which the help shows them."""

_OPTIONS = {
    "-m, --multirun": "sweep over comma-separated values; jobs=N runs N cells at a time",
    "--config-dir FOLDER": "more choices: FOLDER/defense/mine.yaml is defense=mine",
    "--cfg job": "print the whole configuration and run nothing",
    "--hydra-help": "options of Hydra, which reads the configuration",
    "--version": "print the version",
    "-h, --help": "print this help",
}
_WIDTH, _COLUMN = 100, 22


def help_text() -> str:
    """Return the help, with the defaults and choices that ``conf/`` has."""
    defaults = _defaults()
    sections = [
        "fl-app trains a federation of clients with Flower, defends their updates, attacks the updates as a\n"
        "server would, and reports what leaked, the accuracy and the bytes.",
        "usage: fl-app [key=value …]         one run\n"
        "       fl-app -m [key=a,b …]        a sweep over all combinations\n"
        "       fl-app COMMAND …             one of the commands below",
        _section(
            "Most used settings, with their defaults",
            {f"{key}={defaults[key]}": words for key, words in MOST_USED.items()},
        ),
        _section("Choices", {f"{group}=": ", ".join(group_choices(group)) for group in _groups(defaults)}),
        _section("Options", _OPTIONS),
        _section("Commands", {word: command.summary for word, command in SUBCOMMANDS.items()}),
        "All settings: fl-app --cfg job. Code of your own: docs/extending.md.",
    ]
    return "\n\n".join(sections)


def _defaults() -> dict[str, Any]:
    """Return the default of every top-level key and group, as ``conf/config.yaml`` has it."""
    config = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(CONF_DIR / f"{CONFIG_NAME}.yaml")))
    chosen = [entry for entry in config.pop("defaults") if isinstance(entry, dict)]
    return config | {group: name for entry in chosen for group, name in entry.items()}


def _groups(defaults: dict[str, Any]) -> list[str]:
    """Return the groups, those most used first."""
    found = sorted(path.name for path in CONF_DIR.iterdir() if path.is_dir() and path.name in defaults)
    return [key for key in MOST_USED if key in found] + [group for group in found if group not in MOST_USED]


def _section(title: str, rows: dict[str, str]) -> str:
    return "\n".join([f"{title}:", *(_row(name, words) for name, words in rows.items())])


def _row(name: str, words: str) -> str:
    return textwrap.fill(
        words,
        width=_WIDTH,
        initial_indent=f"  {name:<{_COLUMN - 2}}",
        subsequent_indent=" " * _COLUMN,
        break_on_hyphens=False,
    )
