"""Tape of a client's training: the calls from which its model's weights follow, ready to be played again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

Settings = dict[str, Any]


class Value(NamedTuple):
    """Result of an earlier call of the same step."""

    number: int


class Weight(NamedTuple):
    """Parameter or buffer of a model that is used directly."""

    model: int
    name: str


class Sample(NamedTuple):
    """Tensor that came from outside, such as a batch."""

    tensor: Tensor
    drawn: bool = False
    """Whether the app drew it from torch's generator."""


class Source(NamedTuple):
    """Model, or part of it, that is called."""

    model: int
    path: str


class Autocast(NamedTuple):
    """Mixed precision that was switched on."""

    dtype: torch.dtype


@dataclass
class Call:
    """One recorded call."""

    target: Source | Callable[..., Any]
    args: Any
    kwargs: Any
    results: list[int]
    generator: Tensor | None
    """State of torch's generator before the call, where the call may draw."""
    grad: bool = True
    modes: tuple[bool, ...] = ()
    """Whether each part of the called module was in train mode."""
    autocast: Autocast | None = None
    asked: tuple[Weight, ...] = ()
    """Weights whose gradients the results are."""
    writes: bool = False
    """Whether it changes what it is given."""


class Backward(NamedTuple):
    """Gradients of a value are added up in the weights."""

    value: int


class Zero(NamedTuple):
    """Gradients are deleted."""

    weights: tuple[Weight, ...]


class Clip(NamedTuple):
    """Gradients are clipped together."""

    weights: tuple[Weight, ...]
    most: float
    kind: float
    by_value: bool


Entry = Call | Backward | Zero | Clip


@dataclass
class Step:
    """Calls up to one step of an optimiser; the last entries of a tape may have none."""

    entries: list[Entry] = field(default_factory=list)
    optimiser: int | None = None
    groups: list[Settings] = field(default_factory=list)
    gradients: dict[tuple[int, str], Tensor] | None = None
    """Gradients as the optimiser saw them, kept for the first steps."""


@dataclass
class Model:
    """A model of the client."""

    live: nn.Module
    start: nn.Module
    """Copy from before the first call."""


@dataclass
class Tape:
    """Training of one client in one round."""

    models: list[Model] = field(default_factory=list)
    optimisers: list[torch.optim.Optimizer] = field(default_factory=list)
    """Copies that own the weights of the models' copies."""
    steps: list[Step] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Reasons why the tape is not whole."""
    carried: set[int] = field(default_factory=set)
    """Results that are used in a later step than their own."""

    @property
    def by_hand(self) -> bool:
        """Whether the app changes gradients or weights itself."""
        return any(
            isinstance(entry, Call) and (entry.writes or entry.asked)
            for step in self.steps
            for entry in step.entries
        )

    dp: tuple[float, float, float] | None = None
    """Clipping norm, noise multiplier and expected batch size of DP-SGD, where the client uses it."""
    normalised: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    """Mean and standard deviation by which pictures were normalised."""

    @property
    def trained(self) -> list[Step]:
        """Steps that an optimiser took."""
        return [step for step in self.steps if step.optimiser is not None]


class Player:
    """Plays a tape on copies of its models; the tape stays as it is."""

    def __init__(self, tape: Tape, *, row: int | None = None, altered: bool = False) -> None:
        starts = [model.start for model in tape.models]
        self.models, self.optimisers = copy.deepcopy((starts, tape.optimisers))
        self._row, self._altered = row, altered
        self._rows: int | None = None
        self._carried, self._values = tape.carried, dict[int, Any]()
        self._asked: dict[tuple[int, str], Tensor] = {}

    def play(self, steps: list[Step]) -> None:
        """Play steps with torch's generator as it was, and restore the generator."""
        state = torch.get_rng_state()
        try:
            with torch.enable_grad():
                for step in steps:
                    self.play_step(step)
        finally:
            torch.set_rng_state(state)

    def play_step(self, step: Step) -> None:
        """Play the calls of a step and let the optimiser take it."""
        self.compute(step)
        if step.optimiser is not None:
            optimiser = self.optimisers[step.optimiser]
            for group, settings in zip(optimiser.param_groups, step.groups, strict=True):
                group.update(copy.deepcopy(settings))
            type(optimiser).step(optimiser)  # not its own attribute: a scheduler may have wrapped that

    def compute(self, step: Step) -> None:
        """Play the calls of a step without the optimiser; of one row, up to its gradient."""
        values = self._values
        done = False
        for entry in step.entries:
            if self._row is not None and done and not _is_loss(entry):
                break
            done = done or isinstance(entry, Backward) or (isinstance(entry, Call) and bool(entry.asked))
            if isinstance(entry, Call):
                self._call(entry, values)
            elif isinstance(entry, Backward):
                values[entry.value].backward(retain_graph=True)
            elif isinstance(entry, Clip):
                self._clip(entry)
            else:
                for parameter in self._parameters(entry.weights):
                    parameter.grad = None
        self._values = {number: value for number, value in values.items() if number in self._carried}

    def gradients(self) -> dict[tuple[int, str], Tensor]:
        """Return the gradients that there are, by model and name."""
        return self._asked | {
            (number, name): parameter.grad.detach().clone()
            for number, model in enumerate(self.models)
            for name, parameter in model.named_parameters()
            if parameter.grad is not None
        }

    def _call(self, entry: Call, values: dict[int, Any]) -> Any:
        args, kwargs = self._filled(entry.args, values), self._filled(entry.kwargs, values)
        if entry.generator is not None:
            torch.set_rng_state(entry.generator)
        cast = entry.autocast
        kind = None if cast is None else cast.dtype
        with (
            torch.set_grad_enabled(entry.grad),
            torch.autocast("cpu", dtype=kind, enabled=cast is not None, cache_enabled=False),
        ):
            if isinstance(entry.target, Source):
                part = self.models[entry.target.model].get_submodule(entry.target.path)
                for module, mode in zip(part.modules(), entry.modes, strict=True):
                    module.training = mode
                if self._altered:
                    args, kwargs = (mapped(tree, _altered) for tree in (args, kwargs))
                result = part(*args, **kwargs)
            else:
                result = entry.target(*args, **kwargs)
        made = tensors_in(result)
        for number, tensor in zip(entry.results, made, strict=True):
            values[number] = tensor
        if entry.asked:
            self._asked |= {(w.model, w.name): g.detach() for w, g in zip(entry.asked, made, strict=True)}
        return result

    def _filled(self, tree: Any, values: Mapping[int, Any]) -> Any:
        def leaf(item: Any) -> Any:
            if isinstance(item, Value):
                return values[item.number]
            if isinstance(item, Weight):
                return weight_of(self.models[item.model], item.name)
            if isinstance(item, Sample):
                return self._sliced(item.tensor)
            return item

        return mapped(tree, leaf)

    def _sliced(self, tensor: Tensor) -> Tensor:
        """Return a tensor, or of a batch one row where one was asked for."""
        if self._row is None or tensor.ndim == 0:
            return tensor
        if self._rows is None:
            self._rows = len(tensor)
        return tensor[self._row : self._row + 1] if len(tensor) == self._rows else tensor

    def _parameters(self, weights: tuple[Weight, ...]) -> list[Tensor]:
        return [weight_of(self.models[weight.model], weight.name) for weight in weights]

    def _clip(self, entry: Clip) -> None:
        parameters = [p for p in self._parameters(entry.weights) if p.grad is not None]
        if entry.by_value:
            torch.nn.utils.clip_grad_value_(parameters, entry.most)
        else:
            torch.nn.utils.clip_grad_norm_(parameters, entry.most, entry.kind)


def _is_loss(entry: Entry) -> bool:
    """Return whether an entry belongs to the loss whose gradient has begun."""
    if isinstance(entry, Call):
        return not (isinstance(entry.target, Source) or entry.writes)
    return isinstance(entry, Backward)


def _altered(item: Any) -> Any:
    """Return other data of the same form."""
    if not isinstance(item, Tensor) or item.requires_grad:
        return item
    return 1 - 0.7 * item if item.is_floating_point() else item.flip(-1).roll(1, 0) if item.ndim else item


def weight_of(model: nn.Module, name: str) -> Tensor:
    """Return a parameter or buffer by name."""
    path, _, last = name.rpartition(".")
    tensor: Tensor = getattr(model.get_submodule(path), last)
    return tensor


def tensors_in(tree: Any) -> list[Tensor]:
    """Return the tensors in nested containers, in order."""
    found: list[Tensor] = []

    def leaf(item: Any) -> Any:
        if isinstance(item, Tensor):
            found.append(item)
        return item

    mapped(tree, leaf)
    return found


def mapped(tree: Any, leaf: Callable[[Any], Any]) -> Any:
    """Apply ``leaf`` to what is in nested containers; the containers stay of their kind where they can."""
    if isinstance(tree, Value | Weight | Sample):
        return leaf(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(item, leaf) for item in tree))
    if isinstance(tree, list | tuple):
        return type(tree)(mapped(item, leaf) for item in tree)
    if isinstance(tree, Mapping):
        items = {key: mapped(value, leaf) for key, value in tree.items()}
        return items if type(tree) is dict else _rebuilt(tree, items)
    return leaf(tree)


def _rebuilt(tree: Mapping[Any, Any], items: dict[Any, Any]) -> Any:
    try:
        return type(tree)(**items)
    except TypeError:
        return items
