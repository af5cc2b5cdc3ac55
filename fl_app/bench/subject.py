"""The defense under test: a choice, a function by its name, or a file."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig

from fl_app.config.build import baseline_of
from fl_app.config.compose import ConfigError, compose, group_choices, join_overrides, key_of, nearest, quote

_PARTS = ("defense", "dp", "secagg")


@dataclass(frozen=True)
class Subject:
    """A defense as a run is told of it."""

    name: str
    overrides: tuple[str, ...]
    source: str
    """What the user typed."""
    code: str = ""
    """Hash of a function's file: runs of other code are other runs. "": a choice of ours."""
    summed: bool = False
    """Whether the server sees sums alone."""
    private: bool = False
    """Whether what is sent has noise that is accounted for."""


def subject_of(text: str, settings: Sequence[str] = ()) -> Subject:
    """Return the defense that ``text`` names.

    ``text`` is a choice of ``defense`` (`dgp`), a function (`package.module:function` or with a dot), a
    function in a file (`folder/file.py:function`), or a YAML file with a ``_target_``. ``settings`` are
    overrides of it, such as `defense.k1=0.1`.
    """
    if strange := [s for s in settings if key_of(s.lstrip("+")).split(".")[0] not in _PARTS]:
        raise ConfigError(
            f"{strange[0]}: a bench sets all but the defense; expected overrides of {', '.join(_PARTS)}"
        )
    named = _named(text)
    overrides = (*named, *settings)
    words = [s.lstrip("+").removeprefix("defense.") for s in settings]
    name = " ".join([_label(text), *words])
    config = compose(join_overrides(list(overrides)))
    baseline_of(config)  # builds it, or says why not
    return Subject(
        name, overrides, text, _code(text, config), bool(config.secagg.enabled), config.choices.dp != "none"
    )


def _code(text: str, config: DictConfig) -> str:
    """Return a hash of the file of a function that is not ours."""
    module = str(config.defense._target_).rpartition(".")[0]
    if module.split(".")[0] == "fl_app":
        return ""
    file = getattr(import_module(module), "__file__", None)
    return "" if file is None else hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]


def _label(text: str) -> str:
    path = Path(text.partition(":")[0])
    if path.suffix == ".py":
        return text.rpartition(":")[2]
    return path.stem if path.suffix in (".yaml", ".yml") else text.replace(":", ".").rpartition(".")[2]


def _named(text: str) -> list[str]:
    head, colon, function = text.partition(":")
    path = Path(head)
    if path.suffix in (".yaml", ".yml"):
        return _from_yaml(path)
    if path.suffix == ".py":
        if not path.is_file():
            raise ConfigError(f"bench: {head}: no such file")
        if not (colon and function):
            raise ConfigError(f"bench: {text}: name the function in it, as {head}:my_defense")
        folder = str(path.resolve().parent)
        if folder not in sys.path:
            sys.path.append(folder)
        return _target(path.stem, function)
    if colon:
        return _target(head, function)
    choices = group_choices("defense")
    if text in choices and text != "custom":
        return [f"defense={text}"]
    if "." in text:
        module, _, function = text.rpartition(".")
        return _target(module, function)
    raise ConfigError(
        f"bench: {text!r}: expected one of {', '.join(c for c in choices if c != 'custom')}, a function "
        f"(package.module:function, file.py:function) or a YAML file{nearest(text, choices)}"
    )


def _target(module: str, function: str) -> list[str]:
    try:
        found = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"bench: {module}:{function} cannot be imported: {error}") from error
    if not callable(found):
        raise ConfigError(f"bench: {module}:{function} is no function")
    return ["defense=custom", f"defense._target_={module}.{function}"]


def _from_yaml(path: Path) -> list[str]:
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"bench: {path} cannot be read: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("_target_"), str):
        raise ConfigError(f"bench: {path}: expected a mapping with _target_, got {type(content).__name__}")
    target = content.pop("_target_")
    here = str(path.resolve().parent)
    if here not in sys.path:
        sys.path.append(here)
    module, _, function = target.rpartition(".")
    return [*_target(module, function), *(f"+defense.{key}={_value(v)}" for key, v in content.items())]


def _value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return quote(value) if isinstance(value, str) else str(value).replace(" ", "")
