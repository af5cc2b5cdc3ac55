"""The reference of all settings, in Markdown, made from the files in ``conf/`` and their comments.

``python -m fl_app.config.reference FILE`` writes it. A file's first comment describes the choice; the comment
behind a key describes the setting. A line of the first comment that is indented is a command, and ends it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import yaml

from fl_app.config.compose import CONF_DIR, CONFIG_NAME
from fl_app.config.conf_files import package_of
from fl_app.config.followed import REFERENCE
from fl_app.report.markdown import markdown_rows

EXPERIMENTS = "experiment"
_OPENING = """# Reference: all settings

`python -m fl_app.config.reference docs/reference.md` writes this page from the files in `conf/` and their
comments: change those, not this page.

Write a choice as `group=choice` and a setting as `key=value`, on the command line of `fl-app` or in the
`overrides` of a Flower run config. `???` stands for a value that you must give. Typos fail with the
valid choices."""
_NOT_SETTINGS = re.compile(r"(^|\.)(_|defaults(\.|$))|^hydra(\.|$)")


class Setting(NamedTuple):
    """One key that a user may set, as its file has it."""

    key: str
    default: str
    meaning: str


def reference() -> str:
    """Return the whole page."""
    main = CONF_DIR / f"{CONFIG_NAME}.yaml"
    sections = [_OPENING, "## Settings of a run", description(main), _table_of(settings(main))]
    chosen = _defaults(main)
    for folder in sorted(path for path in CONF_DIR.iterdir() if path.is_dir() and path.name != EXPERIMENTS):
        sections += _group(folder, chosen.get(folder.name))
    return "\n\n".join([*sections, *_group(CONF_DIR / EXPERIMENTS, None, with_settings=False)]) + "\n"


def description(file: Path) -> str:
    """Return the first comment of a file as one paragraph."""
    lines = []
    for line in file.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#") or line.startswith("#  "):
            break
        if not line.startswith("# @"):
            lines.append(line.removeprefix("#").strip())
    return _plain(" ".join(lines))


def settings(file: Path) -> list[Setting]:
    """Return the keys of a file that hold a value of their own: no callables and no references.

    Keys of the files in its defaults list come first, as far as the file does not set them itself.
    """
    text = file.read_text(encoding="utf-8")
    root = yaml.compose(text)
    if not isinstance(root, yaml.MappingNode):
        return []
    listed = yaml.safe_load(text).get("defaults", []) if file.parent != CONF_DIR else []
    bases = [file.parent / f"{name}.yaml" for name in listed if isinstance(name, str) and name != "_self_"]
    found = {setting.key: setting for base in bases for setting in settings(base)}
    for setting in _leaves(root, package_of(file), text):
        inherited = found.get(setting.key)
        found[setting.key] = setting._replace(
            meaning=setting.meaning or (inherited.meaning if inherited else "")
        )
    return list(found.values())


def _leaves(node: yaml.MappingNode, path: tuple[str, ...], text: str) -> Iterator[Setting]:
    for name, value in node.value:
        here = (*path, name.value)
        key = ".".join(here)
        if _NOT_SETTINGS.search(key) or here[1:] == ("name",):
            continue
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _leaves(value, here, text)
            continue
        default = text[value.start_mark.index : value.end_mark.index]
        if not REFERENCE.match(default):
            line = text.splitlines()[name.end_mark.line]
            yield Setting(key, " ".join(default.split()), _plain(line.partition(" # ")[2]))


def _plain(text: str) -> str:
    """Return a comment so that Markdown shows its angle brackets."""
    return text.strip().replace("<", "&lt;")


def _defaults(main: Path) -> dict[str, str]:
    """Return the choice of every group that the main file makes."""
    listed = yaml.safe_load(main.read_text(encoding="utf-8"))["defaults"]
    return {
        str(group): str(choice)
        for entry in listed
        if isinstance(entry, dict)
        for group, choice in entry.items()
    }


def _group(folder: Path, default: str | None, *, with_settings: bool = True) -> list[str]:
    files = sorted(folder.glob("*.yaml"))
    choices = [["choice", "description"], ["---", "---"]]
    choices += [
        [f"`{file.stem}`{' (default)' if file.stem == default else ''}", description(file)] for file in files
    ]
    parts = [f"## `{folder.name}=`", markdown_rows(choices)]
    if with_settings:
        found: dict[Setting, list[str]] = {}
        for file in files:
            for setting in settings(file):
                found.setdefault(setting, []).append(file.stem)
        if found:
            parts.append(_table_of(found))
    return parts


def _table_of(found: list[Setting] | dict[Setting, list[str]]) -> str:
    """Return one row for each setting; those of a group say in which choices they are."""
    named = isinstance(found, dict)
    rows = [["setting", "default", "meaning", *(["of"] if named else [])]]
    rows.append(["---"] * len(rows[0]))
    for setting in sorted(found, key=lambda one: one.key) if named else found:
        of = [", ".join(found[setting])] if isinstance(found, dict) else []
        rows.append([f"`{setting.key}`", f"`{setting.default}`", setting.meaning, *of])
    return markdown_rows(rows)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m fl_app.config.reference FILE")
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")
