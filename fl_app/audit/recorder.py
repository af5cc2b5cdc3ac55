"""Recorder of a client's training: watches torch while the client answers, and changes nothing."""

from __future__ import annotations

import copy
import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.overrides import TorchFunctionMode

from fl_app.audit.tape import (
    Autocast,
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
_DRAWS = ("rand", "dropout", "bernoulli", "normal", "multinomial", "poisson", "exponential", "uniform")
_WRITES = ("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ipow__")

_current: list[Recorder] = []


_T = TypeVar("_T")


@dataclass
class _Heard:
    """A call of torch before it is made."""

    args: Sequence[Any]
    kwargs: dict[str, Any]
    tensors: list[Tensor]
    writes: bool
    weighs: bool = False
    before: tuple[Any, Any] | None = None
    generator: Tensor | None = None


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
        self._values: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        """Number of each result by id; an id is free again once its tensor is gone."""
        self._drawn: dict[int, weakref.ref[Tensor]] = {}
        self._first = 0
        """Number of the step's first result."""
        self._moved = False
        """Whether the step has changed weights without an optimiser."""
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
        heard = self._guarded(lambda: self._listen(func, args, named))
        result = func(*args, **named)
        if heard is not None:
            self._guarded(lambda: self._note_result(func, heard, result))
        return result

    def _listen(self, func: Any, args: Sequence[Any], named: dict[str, Any]) -> _Heard | None:
        """Return what is to be known of a call before it is made; None if it does not concern a model."""
        tensors = tensors_in((tuple(args), named))
        heard = _Heard(args, named, tensors, _writes(func, named))
        follows = any(self._number(tensor) is not None for tensor in tensors)
        follows = follows or any(self._follows_weight(tensor, writes=heard.writes) for tensor in tensors)
        weighs = torch.is_grad_enabled() and any(_is_weight(tensor) for tensor in tensors)
        if _may_draw(func):
            heard.generator = torch.get_rng_state()
        elif not follows and not weighs:
            return None
        # a call may change what it is given; a weight that is only looked at is not yet used
        heard.before = self._symbols(args, named) if follows else None
        heard.weighs = weighs
        return heard

    def _note_result(self, func: Any, heard: _Heard, result: Any) -> None:
        """Note a call that was made."""
        made = tensors_in(result)
        before = heard.before
        if before is None and not heard.weighs:
            if not heard.tensors:
                self._drawn |= {id(tensor): weakref.ref(tensor) for tensor in made}
            return
        grows = any(tensor.grad_fn is not None for tensor in made)
        if before is None and grows and not any(t is given for t in made for given in heard.tensors):
            before = self._symbols(heard.args, heard.kwargs)
        if before is None or not (made or heard.writes):
            return
        self._note_call(func, *before, result, heard.generator, torch.is_grad_enabled())
        if heard.writes and heard.tensors:
            moves, turns = self._changed(heard.tensors[0])
            self._step.entries[-1].writes = moves or turns  # type: ignore[union-attr]
            self._moved = self._moved or moves
        if func is torch.autograd.grad:
            self._note_gradients(before, made)

    def _guarded(self, note: Callable[[], _T]) -> _T | None:
        """Note something; what cannot be noted ends the tape and not the app."""
        try:
            return note()
        except Exception as error:  # a stranger's tensors may be of any kind
            self._give_up(f"a call of torch could not be recorded: {type(error).__name__}: {error}")
            return None

    def called(self, module: nn.Module, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a module; note it where it is a model or a part of one."""
        if self._depth or self._ended:
            return call(module, *args, **kwargs)
        grad = torch.is_grad_enabled()
        source = self._guarded(lambda: self._source(_unwrapped(module)))
        if source is None or not (grad or module.training):
            return call(module, *args, **kwargs)
        if self._moved and grad:
            self._end_step()  # the app changed weights itself
        before = self._guarded(lambda: self._symbols(args, kwargs))
        generator = torch.get_rng_state()
        modes = tuple(part.training for part in _unwrapped(module).modules())
        with self.silent():
            result = call(module, *args, **kwargs)
        if before is not None:
            self._guarded(lambda: self._note_call(source, *before, result, generator, grad, modes))
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

    def stepping(self, optimiser: torch.optim.Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Note a step of an optimiser before it is taken; return the arguments that it should have."""
        self._depth += 1
        if self._depth > 1 or self._ended or not hasattr(optimiser, "param_groups"):
            return None
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)  # after the optimiser itself
        given = None
        if callable(closure):
            if isinstance(optimiser, torch.optim.LBFGS):
                self._give_up("LBFGS computes its losses again within a step")
                return None
            self._depth = 0
            with torch.enable_grad():
                loss = closure()
            self._depth = 1
            given = (args[0],), {"closure": lambda: loss}
        if self._step.entries:  # a wrapper and the optimiser inside it call this twice
            self._guarded(lambda: self._note_step(optimiser))
        return given

    def _note_step(self, optimiser: torch.optim.Optimizer) -> None:
        self._step.optimiser = self._optimiser(optimiser)
        self._step.groups = [
            {key: copy.copy(value) for key, value in group.items() if key != "params"}
            for group in optimiser.param_groups
        ]
        if len(self.tape.trained) < _KEPT_GRADIENTS:
            self._step.gradients = self._gradients(optimiser)
        self._end_step()

    def stepped(self) -> None:
        """Note that an optimiser has taken its step."""
        self._depth = max(0, self._depth - 1)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Note nothing of what torch does in a call that is noted as a whole."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def loads(self, module: nn.Module) -> bool:
        """Return whether the weights that a module is given are those from which its training starts."""
        return not any(id(part) in self._owners for part in module.modules())

    def finish(self) -> Tape:
        """Return the tape."""
        if self._step.entries and not self._ended:
            self._end_step()
        self._ended = True
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
            if id(tensor) not in self._weights:
                self._values[id(tensor)] = weakref.ref(tensor), self._count
            numbers.append(self._count)
            self._count += 1
        cast = Autocast(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else None
        self._step.entries.append(Call(target, args, kwargs, numbers, generator, grad, modes, cast))

    def _note_backward(self, tensor: Tensor) -> None:
        number = self._number(tensor)
        if number is None:
            self._give_up("a loss did not follow from a model's output by calls that were seen")
        else:
            self._step.entries.append(Backward(self._used(number)))

    def _note_gradients(self, given: tuple[Any, Any], made: list[Tensor]) -> None:
        """Keep the gradients that the app asks for without `Tensor.backward`."""
        args, kwargs = given
        inputs = kwargs.get("inputs", args[1] if len(args) > 1 else ())
        weights = [inputs] if isinstance(inputs, Weight) else list(inputs)
        if len(weights) == len(made) and all(isinstance(weight, Weight) for weight in weights):
            self._step.entries[-1].asked = tuple(weights)  # type: ignore[union-attr]
            self._step.gradients = {
                (weight.model, weight.name): gradient.detach().clone()
                for weight, gradient in zip(weights, made, strict=True)
            }

    def _end_step(self) -> None:
        step = self._step
        if step.optimiser is None and not step.gradients:
            step.gradients = {
                (number, name): parameter.grad.detach().clone()
                for number, model in enumerate(self.tape.models)
                for name, parameter in model.live.named_parameters()
                if parameter.grad is not None
            }
        self.tape.steps.append(step)
        self._step, self._moved, self._first = Step(), False, self._count
        if len(self.tape.steps) >= _MOST_STEPS:
            self._give_up(f"the client takes more than {_MOST_STEPS} steps; shorten them with --run-config")

    def _number(self, tensor: Tensor) -> int | None:
        """Return the number of a result; None for another tensor."""
        known = self._values.get(id(tensor))
        return known[1] if known is not None and known[0]() is tensor else None

    def _used(self, number: int) -> int:
        """Note the use of a result, which may be of an earlier step."""
        if number < self._first:
            self.tape.carried.add(number)
        return number

    def _follows_weight(self, tensor: Tensor, *, writes: bool) -> bool:
        """Return whether a tensor is a weight whose every use counts."""
        if id(tensor) in self._weights:
            return True
        return writes and bool(self.tape.models) and _is_weight(tensor)

    def _changed(self, tensor: Tensor) -> tuple[bool, bool]:
        """Return whether a tensor shares its memory with a weight, and with a gradient."""
        place = tensor.untyped_storage().data_ptr()
        weights = [weight for model in self.tape.models for weight in model.live.parameters()]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        moves, turns = (
            any(t.untyped_storage().data_ptr() == place for t in part) for part in (weights, gradients)
        )
        return moves, turns

    def _give_up(self, reason: str) -> None:
        self.tape.problems.append(reason)
        self._ended = True

    def _symbols(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        def leaf(item: Any) -> Any:
            if not isinstance(item, Tensor):
                return item
            number = self._number(item)
            if number is not None:
                return Value(self._used(number))
            return self._weight(item) or self._sample(item)

        return mapped(tuple(args), leaf), mapped(dict(kwargs), leaf)

    def _sample(self, tensor: Tensor) -> Sample:
        known = self._samples.get(id(tensor))
        if known is not None and known[0] is tensor and known[1] == tensor._version:
            return known[2]
        drawn = self._drawn.get(id(tensor))
        sample = Sample(tensor.detach().clone(), drawn is not None and drawn() is tensor)
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


def unrecorded(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of which no recorder notes what torch does in it."""

    @functools.wraps(call)
    def quiet(*args: Any, **kwargs: Any) -> Any:
        with ExitStack() as silence:
            for recorder in _current:
                silence.enter_context(recorder.silent())
            return call(*args, **kwargs)

    return quiet


@contextmanager
def watched_torch() -> Iterator[None]:
    """Let torch tell the current recorder of calls that no function mode sees.

    To be entered before an app is imported: it may import functions by name.
    """
    with ExitStack() as stack:

        def replace(
            owner: Any,
            name: str,
            tell: Callable[[Recorder, tuple[Any, ...], dict[str, Any]], None],
            silences: Callable[[Recorder, Any], bool] = lambda recorder, owner: False,
        ) -> None:
            original = getattr(owner, name)

            @functools.wraps(original)
            def told(*args: Any, **kwargs: Any) -> Any:
                with ExitStack() as silence:
                    for recorder in _current:
                        tell(recorder, args, kwargs)
                        if silences(recorder, args[0]):
                            silence.enter_context(recorder.silent())
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
            "state_dict",
            "parameters",
            "named_parameters",
            "train",
            "eval",
            "to",
        )
        for name in whole:
            replace(nn.Module, name, lambda recorder, args, _: recorder.know(args[0]))
        replace(
            nn.Module,
            "load_state_dict",
            lambda recorder, args, _: recorder.know(args[0]),
            lambda recorder, module: recorder.loads(module),
        )
        for owner in (nn.Module, torch.optim.Optimizer):
            replace(
                owner,
                "zero_grad",
                lambda recorder, args, _: recorder.zeroed(args[0]),
                lambda recorder, _: True,
            )
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            stack.enter_context(patch.object(torch.nn.utils, name, _told_of_clipping(name)))
        stack.enter_context(patch.object(threading.Thread, "run", _watched_thread()))
        with _normalise(replace):
            handles = [
                register_optimizer_step_pre_hook(_step),
                register_optimizer_step_post_hook(lambda *_: _stepped()),
            ]
            try:
                yield
            finally:
                for handle in handles:
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


def _step(optimiser: torch.optim.Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
    return _current[-1].stepping(optimiser, args, kwargs) if _current else None


def _stepped() -> None:
    if _current:
        _current[-1].stepped()


def _watched_thread() -> Callable[[threading.Thread], None]:
    """Return the main function of threads, which are watched like the one that starts them."""
    original = threading.Thread.run

    @functools.wraps(original)
    def run(thread: threading.Thread) -> None:
        if not _current:
            original(thread)
            return
        with _current[-1]:
            original(thread)

    return run


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
        with ExitStack() as silence:
            for recorder in _current:
                recorder.clipped(values["parameters"], most, values.get("norm_type", 2.0), by_value=by_value)
                silence.enter_context(recorder.silent())
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


def _writes(func: Any, kwargs: Mapping[str, Any]) -> bool:
    """Return whether a function of torch changes a tensor that it is given."""
    name = getattr(func, "__name__", "")
    if name == "__set__":
        return getattr(func, "__self__", None) in (Tensor.grad, Tensor.data)
    return name in _WRITES or (name.endswith("_") and not name.endswith("__")) or "out" in kwargs


def _may_draw(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return any(word in name for word in _DRAWS)
