"""A model as a value: allow-listed names and settings, carried by an order and checked by the client.

The server names the model; the client builds it. Only names on the lists are
ever called, so an order cannot make a client run a function of its choosing.
"""

from __future__ import annotations

import copy
import hashlib
import importlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

from torch import nn

from fl_app.models.bert import bert_mlm
from fl_app.models.bottleneck import add_bottleneck
from fl_app.models.cnn6 import cnn6
from fl_app.models.efficientnet_lite import efficientnet_lite0
from fl_app.models.fcn3 import fcn3
from fl_app.models.fully_connected import mlp
from fl_app.models.imagenet import efficientnet_b0, resnet50_imagenet
from fl_app.models.las import las
from fl_app.models.lenet import lenet_zhu
from fl_app.models.mcmahan import mcmahan_cnn
from fl_app.models.residual import resnet18, resnet20, resnet34, resnet50, resnet56
from fl_app.models.simple_convnet import convnet
from fl_app.models.size import MOST_ENTRIES, TooLarge, at_most, measure
from fl_app.models.vgg import vgg11, vgg13

Model = Callable[..., nn.Module]

_MODELS: tuple[Model, ...] = (
    bert_mlm,
    cnn6,
    convnet,
    efficientnet_b0,
    efficientnet_lite0,
    fcn3,
    las,
    lenet_zhu,
    mcmahan_cnn,
    mlp,
    resnet18,
    resnet20,
    resnet34,
    resnet50,
    resnet50_imagenet,
    resnet56,
    vgg11,
    vgg13,
)
_BY_TARGET: Mapping[str, Model] = {f"fl_app.models.{model.__name__}": model for model in _MODELS}
_EXTENSIONS: Mapping[str, Model | str] = {"bottleneck": add_bottleneck}
"""Changes to a built model, ``f(model, **settings)``, in the order in which they are made."""
LONGEST_JSON = 1 << 20
"""An imprint's edges take most of it: some twenty characters each."""
_APART = "apart"
_MANIPULATIONS: Mapping[str, Model | str] = {
    "imprint": "attacks.active.imprint_block.add_imprint",  # by name: this package never imports the attacks
    _APART: lambda model, /, round: model,
}
"""Manipulations by a malicious server; ``apart`` only tells its rounds from the honest ones."""


@dataclass(frozen=True)
class ModelSpec:
    """Name, settings and extensions of a model; equal specs have equal JSON and an equal hash.

    Settings are copied as plain JSON values, so (3, 32, 32) and [3, 32, 32] are the same.
    """

    target: str
    settings: dict[str, object]
    extensions: dict[str, dict[str, object]] = field(default_factory=dict)
    """Settings of the changes to the built model, by name: ``{"bottleneck": {"size": 256}}``.

    In whatever order they are given, they are made in the order of the allow-list.
    """

    def __post_init__(self) -> None:
        if not isinstance(self.target, str) or not self.target:
            raise ValueError(f"ModelSpec: target must be a dotted path, got {self.target!r}")
        object.__setattr__(self, "settings", _copy(f"settings of {self.target}", self.settings))
        extensions = {
            name: _copy(f"settings of {name} in {self.target}", settings)
            for name, settings in _copy(f"extensions of {self.target}", self.extensions).items()
        }
        object.__setattr__(self, "extensions", extensions)

    def to_json(self) -> str:
        """Return the canonical form: sorted keys, no spaces, ASCII."""
        content: dict[str, object] = {"target": self.target, "settings": self.settings}
        if self.extensions:  # only then: a spec without any keeps the hash it always had
            content["extensions"] = self.extensions
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> ModelSpec:
        """Read what `to_json` wrote; anything else is a ValueError."""
        if isinstance(text, str | bytes) and len(text) > LONGEST_JSON:
            raise ValueError(f"ModelSpec: expected at most {LONGEST_JSON} characters, got {len(text)}")
        try:
            content = json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"ModelSpec: not JSON: {error}") from error
        if not isinstance(content, dict) or content.keys() - {"extensions"} != {"target", "settings"}:
            got = sorted(content) if isinstance(content, dict) else type(content).__name__
            raise ValueError(
                f"ModelSpec: expected an object with target, settings and maybe extensions, got {got}"
            )
        return cls(**content)

    def manipulated(self, round: int, extensions: Mapping[str, dict[str, object]]) -> ModelSpec:
        """Return the spec that a malicious server sends for a round; no other has its hash."""
        return replace(self, extensions={**self.extensions, **extensions, _APART: {"round": round}})

    @property
    def is_manipulated(self) -> bool:
        """True if it contains a malicious server's changes."""
        return bool(self.extensions.keys() & _MANIPULATIONS)

    def looks_like(self, other: ModelSpec) -> bool:
        """Say whether both are built alike, as far as a client could tell."""
        ours, theirs = (
            replace(spec, extensions={k: v for k, v in spec.extensions.items() if k != _APART})
            for spec in (self, other)
        )
        return ours == theirs

    @cached_property
    def hash(self) -> str:
        """Return the SHA-256 of the canonical JSON, in hexadecimal."""
        return hashlib.sha256(self.to_json().encode("ascii")).hexdigest()

    def __hash__(self) -> int:
        # the generated one would hash the dictionary of settings, which Python refuses
        return int(self.hash[:15], 16)


def build_model(
    spec: ModelSpec, allowed: Iterable[str] = (), *, manipulated: bool = False, most: int | None = None
) -> nn.Module:
    """Build the model that ``spec`` names, if it is one of `fl_app.models` or in ``allowed``.

    Parameters come from torch's global generator: the caller forks and seeds it. Those
    of an extension are drawn last, so the rest is as it would be without. What a
    malicious server adds is built only where ``manipulated`` models are let in. A model with
    more than ``most`` entries is refused before memory is taken for it.
    """
    known = {**_EXTENSIONS, **(_MANIPULATIONS if manipulated else {})}
    unknown = sorted(spec.extensions.keys() - known)
    if unknown:
        choices = ", ".join(known)
        raise ValueError(f"build_model: extensions must be among {choices}; got {', '.join(unknown)}")
    function = _find(spec.target, frozenset(allowed))
    if most is None:
        return _extend(_call(spec.target, function, (), spec.settings), spec, known)
    check_size(spec, most)
    # again: what a manipulation adds could not be counted before, it takes numbers out of tensors
    with at_most(most):
        return _extend(_call(spec.target, function, (), spec.settings), spec, known)


def check_size(spec: ModelSpec, most: int = MOST_ENTRIES) -> None:
    """Refuse one of `fl_app.models` that has more than ``most`` entries; nothing is built for that."""
    if spec.target in _BY_TARGET:
        function = _BY_TARGET[spec.target]
        measure(lambda: _extend(_call(spec.target, function, (), spec.settings), spec, _EXTENSIONS), most)


def manipulate_like(model: nn.Module, spec: ModelSpec) -> nn.Module:
    """Return a copy of an honest model as the manipulations in ``spec`` change it, with any weights."""
    return _extend(copy.deepcopy(model), spec, _MANIPULATIONS)


def _extend(model: nn.Module, spec: ModelSpec, known: Mapping[str, Model | str]) -> nn.Module:
    for name, extend in known.items():
        if name in spec.extensions:
            function = _import(extend) if isinstance(extend, str) else extend
            model = _call(f"{spec.target} with {name}", function, (model,), spec.extensions[name])
    return model


def _copy(what: str, settings: object) -> dict[str, Any]:
    """Return settings as plain JSON values; ``what`` names them when that cannot be."""
    if not isinstance(settings, Mapping):
        raise ValueError(f"ModelSpec: {what} must be a mapping, got {settings!r}")
    try:
        copied = cast(dict[str, Any], _plain(settings))
        json.dumps(copied, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"ModelSpec: {what} are not JSON: {error}") from error
    return copied


def _plain(value: object) -> object:
    """Copy a setting as JSON would, or raise an error that names the part without a JSON form."""
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
    return _import(target)


def _import(target: str) -> Model:
    module, _, name = target.rpartition(".")
    if not (module and name):
        raise ValueError(f"build_model: expected module.function, got {target!r}")
    try:
        model: Model = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"build_model: {target} is allowed, but cannot be imported: {error}") from error
    return model


def _call(
    what: str, function: Model, given: tuple[nn.Module, ...], settings: Mapping[str, object]
) -> nn.Module:
    """Call ``function``; whatever is wrong with the settings is a ValueError that says ``what``."""
    signature = inspect.signature(function)
    try:
        signature.bind(*given, **settings)
    except TypeError as error:
        arguments = ", ".join(list(signature.parameters)[len(given) :])
        raise ValueError(f"build_model: {what}: {error}; its settings are {arguments}") from error
    try:
        # RuntimeError and MemoryError too: settings may ask for more memory than there is
        return function(*given, **settings)
    except TooLarge as error:
        raise TooLarge(f"build_model: {what}: {error}") from error
    except (TypeError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
        raise ValueError(f"build_model: {what}: {error}") from error
