"""Recorder of a client's training: watches torch while the client answers, and changes nothing."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from fl_app.audit.tape import (
    Backward,
    Call,
    Clip,
    Model,
    Sample,
    Source,
    Step,
    Tape,
    Value,
    Weight,
    Zero,
    mapped,
    tensors_in,
)

_MOST_STEPS = 400
_MOST_BYTES = 2 << 30
_KEPT_GRADIENTS = 3
_WRAPPERS = {"_module", "module"}
"""Attributes in which Opacus and torch's parallel modules keep the model itself."""
_DRAWS = ("rand", "dropout", "bernoulli", "normal", "multinomial", "poisson")

_current: list[Recorder] = []


class Recorder(TorchFunctionMode):
    """Makes the tape of one client call."""

    def __init__(self) -> None:
        super().__init__()
        self.tape = Tape()
        self._known: dict[int, nn.Module] = {}
        """Modules on which the client called something that concerns a whole model."""
        self._owners: dict[int, tuple[int, str]] = {}
        """Model and path by id of a module."""
        self._weights: dict[int, Weight] = {}
        self._step = Step()
        self._values: dict[int, int] = {}
        self._alive: list[Any] = []
        """What is referred to by id: an id is free again once its object is gone."""
        self._samples: dict[int, tuple[Tensor, int, Sample]] = {}
        self._optimisers: dict[int, int] = {}
        self._kept: list[torch.optim.Optimizer] = []
        self._depth = 0
        self._count = 0
        self._bytes = 0
        self._ended = False

    # -- the watched calls

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if self._depth or self._ended:
            return func(*args, **named)
        if func is Tensor.backward and args:
            self._note_backward(args[0])
            return func(*args, **named)  # type: ignore[no-untyped-call]
        tensors = tensors_in((tuple(args), named)) if torch.is_grad_enabled() else []
        follows = any(id(tensor) in self._values for tensor in tensors)
        if not follows and not any(_is_weight(tensor) for tensor in tensors):
            return func(*args, **named)
        generator = torch.get_rng_state() if _may_draw(func) else None
        # before the call, which may change what it is given; a weight that is only looked at is not yet used
        before = self._symbols(args, named) if follows else None
        result = func(*args, **named)
        made = tensors_in(result)
        if any(tensor.grad_fn is not None for tensor in made):
            if before is None and not any(tensor is given for tensor in made for given in tensors):
                before = self._symbols(args, named)
            if before is not None:
                self._note_call(func, *before, result, generator)
        return result

    def called(self, module: nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a module; note it where it is a model or a part of one."""
        if self._depth or self._ended:
            return call(module, *args, **kwargs)
        source = self._source(_unwrapped(module))
        if source is None or not (torch.is_grad_enabled() or module.training):
            return call(module, *args, **kwargs)
        before = self._symbols(args, kwargs)
        generator, grad = torch.get_rng_state(), torch.is_grad_enabled()
        modes = tuple(part.training for part in _unwrapped(module).modules())
        self._depth += 1
        try:
            result = call(module, *args, **kwargs)
        finally:
            self._depth -= 1
        self._note_call(source, *before, result, generator, grad, modes)
        return result

    def know(self, module: nn.Module) -> None:
        """Note a module that the client treats as a whole."""
        if not self._depth:
            self._known.setdefault(id(module), module)

    def zeroed(self, owner: nn.Module | torch.optim.Optimizer) -> None:
        """Note that the gradients of a model or an optimiser were deleted."""
        if isinstance(owner, nn.Module):
            given: list[Any] = list(owner.parameters())
        else:
            given = [p for group in getattr(owner, "param_groups", []) for p in group["params"]]
        if not self._ended:
            self._step.entries.append(Zero(self._known_weights(given)))

    def clipped(self, given: Any, most: float, kind: float, *, by_value: bool) -> None:
        """Note that gradients were clipped."""
        if not self._ended:
            self._step.entries.append(Clip(self._known_weights(given), float(most), float(kind), by_value))

    def normalised(self, mean: Sequence[float], std: Sequence[float]) -> None:
        """Note a normalisation of pictures."""
        self.tape.normalised = tuple(map(float, mean)), tuple(map(float, std))

    def stepping(self, optimiser: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        """Note a step of an optimiser, before it is taken."""
        if self._ended or not hasattr(optimiser, "param_groups"):
            return
        if not self._step.entries:
            return  # a wrapper and the optimiser inside it call this twice
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)  # after the optimiser itself
        if callable(closure):
            self._give_up(f"{type(optimiser).__name__}.step was given a closure")
            return
        self._step.optimiser = self._optimiser(optimiser)
        self._step.groups = [
            {key: copy.copy(value) for key, value in group.items() if key != "params"}
            for group in optimiser.param_groups
        ]
        if len(self.tape.trained) < _KEPT_GRADIENTS:
            self._step.gradients = self._gradients(optimiser)
        self._end_step()
        if len(self.tape.steps) >= _MOST_STEPS:
            self._give_up(f"the client takes more than {_MOST_STEPS} steps; shorten them with --run-config")

    def finish(self) -> Tape:
        """Return the tape."""
        if self._step.entries and not self._ended:
            self._step.gradients = {
                (weight.model, weight.name): parameter.grad.detach().clone()
                for number, model in enumerate(self.tape.models)
                for name, parameter in model.live.named_parameters()
                if (weight := Weight(number, name)) and parameter.grad is not None
            }
            self._end_step()
        self._alive.clear()
        return self.tape

    # -- notes

    def _note_call(
        self,
        target: Any,
        args: Any,
        kwargs: Any,
        result: Any,
        generator: Tensor | None,
        grad: bool = True,
        modes: tuple[bool, ...] = (),
    ) -> None:
        numbers = []
        for tensor in tensors_in(result):
            self._values[id(tensor)] = self._count
            self._alive.append(tensor)
            numbers.append(self._count)
            self._count += 1
        self._step.entries.append(Call(target, args, kwargs, numbers, generator, grad, modes))

    def _note_backward(self, tensor: Tensor) -> None:
        number = self._values.get(id(tensor))
        if number is None:
            self._give_up("a loss did not follow from a model's output by calls that were seen")
        else:
            self._step.entries.append(Backward(number))

    def _end_step(self) -> None:
        self.tape.steps.append(self._step)
        self._step = Step()
        self._values, self._alive = {}, []

    def _give_up(self, reason: str) -> None:
        self.tape.problems.append(reason)
        self._ended = True

    def _symbols(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        def leaf(item: Any) -> Any:
            if not isinstance(item, Tensor):
                return item
            if id(item) in self._values:
                return Value(self._values[id(item)])
            return self._weight(item) or self._sample(item)

        return mapped(tuple(args), leaf), mapped(dict(kwargs), leaf)

    def _sample(self, tensor: Tensor) -> Sample:
        known = self._samples.get(id(tensor))
        if known is not None and known[0] is tensor and known[1] == tensor._version:
            return known[2]
        sample = Sample(tensor.detach().clone())
        self._bytes += tensor.numel() * tensor.element_size()
        if self._bytes > _MOST_BYTES:
            self._give_up(f"the batches of one client take more than {_MOST_BYTES >> 30} GB")
        self._samples[id(tensor)] = tensor, tensor._version, sample
        return sample

    def _known_weights(self, given: Any) -> tuple[Weight, ...]:
        """Return the weights of recorded models among some parameters; others have no gradients yet."""
        tensors = [given] if isinstance(given, Tensor) else given
        return tuple(weight for tensor in tensors if (weight := self._weights.get(id(tensor))) is not None)

    def _weight(self, tensor: Tensor) -> Weight | None:
        if isinstance(tensor, nn.Parameter) and id(tensor) not in self._weights:
            for module in list(self._known.values()):
                if any(tensor is parameter for parameter in module.parameters()):
                    self._source(_unwrapped(module))
                    break
        return self._weights.get(id(tensor))

    # -- models and optimisers

    def _source(self, module: nn.Module) -> Source | None:
        """Return the model and path of a module; None for one without weights, such as a loss."""
        if id(module) not in self._owners:
            if next(module.parameters(), None) is None and next(module.buffers(), None) is None:
                return None
            self._adopt(self._whole(module))
        owner = self._owners.get(id(module))
        return None if owner is None else Source(*owner)

    def _whole(self, module: nn.Module) -> nn.Module:
        """Return the largest known module that contains ``module``."""
        candidates = {id(m): m for m in map(_unwrapped, self._known.values())}
        containing = [m for m in candidates.values() if any(part is module for part in m.modules())]
        return max(containing, key=lambda m: len(list(m.modules())), default=module)

    def _adopt(self, module: nn.Module) -> None:
        """Copy a model as it is now."""
        number = len(self.tape.models)
        with torch._C.DisableTorchFunction(), torch.no_grad():
            start = copied(module)
        self.tape.models.append(Model(module, start))
        for path, part in module.named_modules(remove_duplicate=False):
            self._owners.setdefault(id(part), (number, path))
        named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers()]
        for name, tensor in named:
            self._weights.setdefault(id(tensor), Weight(number, name))

    def _optimiser(self, optimiser: torch.optim.Optimizer) -> int:
        """Return the number of an optimiser; copy it, for the models' copies, when it is first seen."""
        if id(optimiser) not in self._optimisers:
            memo: dict[int, Any] = {}
            for group in optimiser.param_groups:
                for parameter in group["params"]:
                    weight = self._weights.get(id(parameter))
                    if weight is not None:
                        memo[id(parameter)] = self.tape.models[weight.model].start.get_parameter(weight.name)
            with torch._C.DisableTorchFunction():
                twin = type(optimiser).__new__(type(optimiser))
                state = {k: v for k, v in optimiser.__dict__.items() if not callable(v)}
                twin.__dict__.update(copy.deepcopy(state, memo))
            self._optimisers[id(optimiser)] = len(self.tape.optimisers)
            self._kept.append(optimiser)
            self.tape.optimisers.append(twin)
        return self._optimisers[id(optimiser)]

    def _gradients(self, optimiser: torch.optim.Optimizer) -> dict[tuple[int, str], Tensor]:
        return {
            (weight.model, weight.name): parameter.grad.detach().clone()
            for group in optimiser.param_groups
            for parameter in group["params"]
            if parameter.grad is not None and (weight := self._weights.get(id(parameter))) is not None
        }


@contextmanager
def recording() -> Iterator[Recorder]:
    """Record what happens in this thread."""
    recorder = Recorder()
    _current.append(recorder)
    try:
        with recorder:
            yield recorder
    finally:
        _current.remove(recorder)


@contextmanager
def watched_torch() -> Iterator[None]:
    """Let torch tell the current recorder of calls that no function mode sees.

    To be entered before an app is imported: it may import functions by name.
    """
    with ExitStack() as stack:

        def replace(
            owner: Any, name: str, tell: Callable[[Recorder, tuple[Any, ...], dict[str, Any]], None]
        ) -> None:
            original = getattr(owner, name)

            @functools.wraps(original)
            def told(*args: Any, **kwargs: Any) -> Any:
                for recorder in _current:
                    tell(recorder, args, kwargs)
                return original(*args, **kwargs)

            stack.enter_context(patch.object(owner, name, told))

        original = nn.Module.__call__

        def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not _current:
                return original(module, *args, **kwargs)
            return _current[-1].called(module, original, args, kwargs)

        stack.enter_context(patch.object(nn.Module, "__call__", called))
        whole = (
            "__init__",
            "load_state_dict",
            "state_dict",
            "parameters",
            "named_parameters",
            "train",
            "eval",
            "to",
        )
        for name in whole:
            replace(nn.Module, name, lambda recorder, args, _: recorder.know(args[0]))
        for owner in (nn.Module, torch.optim.Optimizer):
            replace(owner, "zero_grad", lambda recorder, args, _: recorder.zeroed(args[0]))
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            stack.enter_context(patch.object(torch.nn.utils, name, _told_of_clipping(name)))
        with _normalise(replace):
            handle = register_optimizer_step_pre_hook(
                lambda optimiser, args, kwargs: _step(optimiser, args, kwargs)
            )
            try:
                yield
            finally:
                handle.remove()


@contextmanager
def _normalise(replace: Callable[..., None]) -> Iterator[None]:
    """Watch the normalisation of torchvision, if that is installed."""
    try:
        import torchvision.transforms.functional as functional
    except (ImportError, RuntimeError):
        yield
        return

    def tell(recorder: Recorder, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        values = dict(zip(("tensor", "mean", "std"), args, strict=False)) | kwargs
        recorder.normalised(values["mean"], values["std"])

    replace(functional, "normalize", tell)
    yield


def _step(optimiser: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for recorder in _current:
        recorder.stepping(optimiser, args, kwargs)


def _told_of_clipping(name: str) -> Callable[..., Any]:
    """Return a function of `torch.nn.utils` that tells the recorder what it clips."""
    original = getattr(torch.nn.utils, name)
    signature = inspect.signature(original)
    by_value = "clip_value" in signature.parameters

    @functools.wraps(original)
    def clip(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        values = bound.arguments
        if not isinstance(values["parameters"], Tensor):
            values["parameters"] = list(values["parameters"])  # a generator can be read only once
        most = values["clip_value" if by_value else "max_norm"]
        for recorder in _current:
            recorder.clipped(values["parameters"], most, values.get("norm_type", 2.0), by_value=by_value)
        return original(*bound.args, **bound.kwargs)

    return clip


def _unwrapped(module: nn.Module) -> nn.Module:
    """Return the model inside a wrapper that only watches its gradients or spreads its work."""
    while True:
        package = type(module).__module__.partition(".")[0]
        parallel = isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel)
        inside = next((getattr(module, name) for name in _WRAPPERS if name in module._modules), None)
        if inside is None or not (package == "opacus" or parallel):
            return module
        module = inside


def copied(module: nn.Module) -> nn.Module:
    """Copy a model without the hooks by which Opacus watches it."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    kept: list[tuple[dict[int, Any], dict[int, Any]]] = []
    for part in module.modules():
        for name in hooks:
            table = getattr(part, name)
            foreign = [key for key, hook in table.items() if _of_opacus(hook)]
            if foreign:
                kept.append((table, dict(table)))
                for key in foreign:
                    del table[key]
    try:
        return copy.deepcopy(module)
    finally:
        for table, hooks_before in kept:
            table.clear()
            table.update(hooks_before)


def _of_opacus(hook: Any) -> bool:
    inside = hook.func if isinstance(hook, functools.partial) else hook
    return str(getattr(inside, "__module__", "")).startswith("opacus")


def _is_weight(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) and tensor.requires_grad


def _may_draw(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return any(word in name for word in _DRAWS)
