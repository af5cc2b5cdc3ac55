"""The command ``fl-app``: help, version, a subcommand by its word, or else a run."""

from __future__ import annotations

import sys

from fl_app import __version__
from fl_app.cli.subcommands import SUBCOMMANDS, run_command
from fl_app.config.compose import ConfigError, groups_with, nearest, top_keys

_HELP = {"-h", "--help"}


def main(arguments: list[str] | None = None) -> None:
    """Answer ``fl-app ARGUMENTS``."""
    given = sys.argv[1:] if arguments is None else arguments
    word = given[0] if given and is_bare(given[0]) else None
    if word is not None and word in SUBCOMMANDS:
        run_command(f"fl-app {word}", SUBCOMMANDS[word].module, given[1:])
    elif word is not None:
        raise ConfigError(unknown_word(word))
    elif not _HELP.isdisjoint(given):
        from fl_app.cli.help_text import help_text

        print(help_text())
    elif "--version" in given:
        print(f"fl-app {__version__}")
    else:
        from fl_app.cli import run

        run.main(given)


def is_bare(word: str) -> bool:
    """Say whether a word is neither an option nor an override."""
    return "=" not in word and not word.startswith(("-", "~", "+"))


def unknown_word(word: str) -> str:
    """Return the complaint about a word that is neither a setting nor a subcommand."""
    settings = [f"{key}=…" for key in top_keys()]
    if groups := groups_with(word):
        return f"{word!r}: expected key=value (did you mean {groups[0]}={word}?)"
    return (
        f"{word!r}: expected key=value or one of the commands {', '.join(SUBCOMMANDS)}"
        f"{nearest(word, [*SUBCOMMANDS, *settings])}"
    )
