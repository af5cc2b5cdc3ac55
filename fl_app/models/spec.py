"""A model as a value: an allow-listed name and its settings, which an order carries and a client checks.

The server names the model; the client builds it. Only names on the list are
ever imported, so an order cannot make a client run a function of its choosing.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import nn

from fl_app.models.fully_connected import mlp
from fl_app.models.lenet import lenet_zhu
from fl_app.models.mcmahan import mcmahan_cnn
from fl_app.models.residual import resnet18
from fl_app.models.simple_convnet import convnet

Model = Callable[..., nn.Module]

_MODELS: tuple[Model, ...] = (convnet, lenet_zhu, mcmahan_cnn, mlp, resnet18)
_BY_TARGET: Mapping[str, Model] = {f"fl_app.models.{model.__name__}": model for model in _MODELS}


@dataclass(frozen=True)
class ModelSpec:
    """Which model, with which settings; equal specs have equal JSON and an equal hash.

    Settings are copied as plain JSON values, so (3, 32, 32) and [3, 32, 32] are the same.
    """

    target: str
    settings: dict[str, object]

    def __post_init__(self) -> None:
        if not isinstance(self.target, str) or not self.target:
            raise ValueError(f"ModelSpec: target must be a dotted path, got {self.target!r}")
        if not isinstance(self.settings, Mapping):
            raise ValueError(f"ModelSpec: settings of {self.target} must be a mapping, got {self.settings!r}")
        try:
            settings = _plain(self.settings)
            json.dumps(settings, allow_nan=False)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"ModelSpec: settings of {self.target} are not JSON: {error}") from error
        object.__setattr__(self, "settings", settings)

    def to_json(self) -> str:
        """Return the canonical form: sorted keys, no spaces, ASCII."""
        content = {"target": self.target, "settings": self.settings}
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> ModelSpec:
        """Read what `to_json` wrote; anything else is a ValueError."""
        try:
            content = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"ModelSpec: not JSON: {error}") from error
        if not isinstance(content, dict) or set(content) != {"target", "settings"}:
            got = sorted(content) if isinstance(content, dict) else type(content).__name__
            raise ValueError(f"ModelSpec: expected an object with target and settings, got {got}")
        return cls(target=content["target"], settings=content["settings"])

    @cached_property
    def hash(self) -> str:
        """Return the SHA-256 of the canonical JSON, in hexadecimal."""
        return hashlib.sha256(self.to_json().encode("ascii")).hexdigest()

    def __hash__(self) -> int:
        # the generated one would hash the dictionary of settings, which Python refuses
        return int(self.hash[:15], 16)


def build_model(spec: ModelSpec, allowed: Iterable[str] = ()) -> nn.Module:
    """Build the model that ``spec`` names, if it is one of `fl_app.models` or in ``allowed``.

    Parameters come from torch's global generator: the caller forks and seeds it.
    """
    model = _find(spec.target, frozenset(allowed))
    try:
        inspect.signature(model).bind(**spec.settings)
    except TypeError as error:
        arguments = ", ".join(inspect.signature(model).parameters)
        raise ValueError(f"build_model: {spec.target}: {error}; its settings are {arguments}") from error
    try:
        # RuntimeError and MemoryError too: settings may ask for more memory than there is
        return model(**spec.settings)
    except (TypeError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
        raise ValueError(f"build_model: {spec.target}: {error}") from error


def _plain(value: object) -> object:
    """Copy a setting as JSON would, or name what has no JSON form."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise ValueError(f"keys must be strings, got {list(value)!r}")
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, str | int | float | None):
        return value
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_plain(item) for item in value]
    raise ValueError(f"{value!r} is a {type(value).__name__}")


def _find(target: str, allowed: frozenset[str]) -> Model:
    if target in _BY_TARGET:
        return _BY_TARGET[target]
    if target not in allowed:
        choices = ", ".join(sorted({*_BY_TARGET, *allowed}))
        raise ValueError(f"build_model: target must be one of {choices}; got {target!r}")
    module, _, name = target.rpartition(".")
    try:
        model: Model = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"build_model: {target} is allowed, but cannot be imported: {error}") from error
    return model
