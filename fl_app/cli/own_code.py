"""Code and YAML files of the user's own: imports from the current folder, and a folder of choices."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser
from pathlib import Path

from fl_app.config.compose import SEARCH_PATH, ConfigError, quote

OPTION = "--config-dir"


def import_from_here() -> None:
    """Let ``_target_`` name modules of the current folder, after all that is installed."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)


def search_in(folder: str | None) -> list[str]:
    """Return the override that makes choices of the YAML files in ``folder``; none if there is no folder."""
    if folder is None:
        return []
    path = Path(folder).resolve()
    if not path.is_dir():
        raise ConfigError(f"{OPTION}: expected a folder, got {folder}")
    return [f"{SEARCH_PATH}=[{quote(f'file://{path}')}]"]


def add_option(parser: ArgumentParser) -> None:
    """Add the option that Hydra gives to ``fl-app`` to another command."""
    parser.add_argument(OPTION, metavar="FOLDER", help="more choices: FOLDER/attack/mine.yaml is attack=mine")
