"""Privacy mechanisms that an app declares, read from the objects that it makes."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Strategy

from fl_app.audit.audited_grid import check_quorum
from fl_app.audit.probe import Probe
from fl_app.audit.recorder import unrecorded
from fl_app.audit.sandbox import place_of
from fl_app.flower.internals import legacy_server, privacy_parts

LOCAL_DP, SECAGG = "LocalDpMod", ("SecAggPlusWorkflow", "SecAggWorkflow")
WRAPPER = "DifferentialPrivacy"


@dataclass(frozen=True)
class Declaration:
    """One object that states a mechanism."""

    kind: str
    """Name of its class."""
    made: Any
    place: str
    arguments: dict[str, Any]

    def value(self, name: str) -> Any:
        """Return a setting: an argument of the constructor, else an attribute."""
        return self.arguments.get(name, getattr(self.made, name, None))


@dataclass
class SampleLevel:
    """DP-SGD by Opacus in one exchange."""

    steps: list[tuple[float, float]] = field(default_factory=list)
    """Noise multiplier and sampling rate of each step."""
    claimed: list[tuple[float, float]] = field(default_factory=list)
    """ε and δ as the engine's accountant told the app."""
    settings: dict[str, Any] = field(default_factory=dict)
    place: str = ""
    claim_place: str = ""


@dataclass
class Declared:
    """All that an app declares while it is imported and run."""

    root: Path
    parts: list[Declaration] = field(default_factory=list)
    mods: list[tuple[str, list[Any], str]] = field(default_factory=list)
    """Function of the client app, its mods and where they are named."""
    rounds: int | None = None
    """Rounds that the app asks for."""
    opacus: list[SampleLevel] = field(default_factory=list)
    """One for each exchange; `begin` adds it."""

    def of(self, *kinds: str) -> list[Declaration]:
        """Return the declarations of some classes, by the beginnings of their names."""
        return [part for part in self.parts if part.kind.startswith(kinds)]

    def begin(self) -> None:
        """Begin an exchange."""
        self.opacus.append(SampleLevel())

    def train_mods(self) -> list[Any]:
        """Return the mods around training, the outermost first."""
        return [
            mod
            for function in ("all", "train")
            for name, mods, _ in self.mods
            if name == function
            for mod in mods
        ]

    def place_of_mods(self) -> str:
        """Return where the mods around training are named."""
        return next((place for name, _, place in self.mods if name in ("all", "train")), "")

    @property
    def level(self) -> SampleLevel:
        """The current exchange."""
        if not self.opacus:
            self.begin()
        return self.opacus[-1]


@contextmanager
def declarations(root: Path, probe: Probe, nodes: int, rounds: int) -> Iterator[Declared]:
    """Note what an app declares from now on; let it run ``rounds`` rounds at most and wait for no one."""
    declared = Declared(root)
    with ExitStack() as stack:
        for kind in privacy_parts().values():
            _watch_constructor(stack, declared, kind)
        _watch_client_app(stack, declared, probe)
        _watch_rounds(stack, declared, rounds)
        manager = legacy_server()[0]
        original = manager.wait_for  # type: ignore[attr-defined]

        def wait_for(self: Any, num_clients: int, timeout: int = 86400) -> bool:
            check_quorum(num_clients, nodes)
            return bool(original(self, num_clients, timeout))

        stack.enter_context(patch.object(manager, "wait_for", wait_for))
        yield declared


@contextmanager
def watched_opacus(declared: Declared) -> Iterator[None]:
    """Note what Opacus is asked for, if the app has imported it."""
    opacus = sys.modules.get("opacus")
    if opacus is None or not hasattr(opacus, "PrivacyEngine"):
        yield
        return
    from opacus import accountants
    from opacus.optimizers import DPOptimizer

    def made(engine: Any, result: Any, arguments: dict[str, Any]) -> None:
        declared.level.settings |= {
            "secure_mode": bool(getattr(engine, "secure_mode", False)),
            "poisson_sampling": arguments.get("poisson_sampling", True),
        }
        declared.level.place = place_of(declared.root)

    def told(engine: Any, result: Any, arguments: dict[str, Any]) -> None:
        declared.level.claimed.append((float(result), float(arguments["delta"])))
        declared.level.claim_place = place_of(declared.root)

    def optimised(optimiser: Any, result: Any, arguments: dict[str, Any]) -> None:
        names = ("noise_multiplier", "max_grad_norm", "expected_batch_size")
        declared.level.settings |= {name: getattr(optimiser, name, None) for name in names}

    def stepped(accountant: Any, result: Any, arguments: dict[str, Any]) -> None:
        declared.level.steps.append((float(arguments["noise_multiplier"]), float(arguments["sample_rate"])))

    with ExitStack() as stack:
        # clipping and noise are explained by what the engine states, not by a replay
        stack.enter_context(patch.object(DPOptimizer, "pre_step", unrecorded(DPOptimizer.pre_step)))
        engine = opacus.PrivacyEngine
        for name in ("make_private", "make_private_with_epsilon"):
            _after(stack, engine, name, made)
        _after(stack, engine, "get_epsilon", told)
        _after(stack, DPOptimizer, "__init__", optimised)
        for accountant in (
            accountants.RDPAccountant,
            accountants.PRVAccountant,
            accountants.GaussianAccountant,
        ):
            _after(stack, accountant, "step", stepped)
        yield


def _after(
    stack: ExitStack, owner: type, name: str, tell: Callable[[Any, Any, dict[str, Any]], None]
) -> None:
    """Call ``tell`` with the object, the result and the arguments after each call of a method."""
    original = getattr(owner, name)
    signature = inspect.signature(original)

    @functools.wraps(original)
    def told(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        tell(self, result, dict(bound.arguments) | dict(bound.arguments.get("kwargs", {})))
        return result

    stack.enter_context(patch.object(owner, name, told))


def _watch_constructor(stack: ExitStack, declared: Declared, kind: type) -> None:
    original = kind.__init__  # type: ignore[misc]
    signature = inspect.signature(original)

    @functools.wraps(original)
    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if any(part.made is self for part in declared.parts):
            return  # the constructor of a base class
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        arguments = {name: value for name, value in bound.arguments.items() if name != "self"}
        declared.parts.append(Declaration(type(self).__name__, self, place_of(declared.root), arguments))

    stack.enter_context(patch.object(kind, "__init__", made))


def _watch_client_app(stack: ExitStack, declared: Declared, probe: Probe) -> None:
    original = ClientApp.__init__

    @functools.wraps(original)
    def made(self: ClientApp, client_fn: Any = None, mods: Sequence[Any] | None = None) -> None:
        place = place_of(declared.root)
        if mods:
            declared.mods.append(("all", list(mods), place))
        # functions that are registered later get these mods before their own, and the probe with those
        original(self, client_fn, [*(mods or []), *([probe] if client_fn is not None else [])])

    stack.enter_context(patch.object(ClientApp, "__init__", made))
    for name in ("train", "evaluate", "query"):
        _watch_function(stack, declared, probe, name)


def _watch_function(stack: ExitStack, declared: Declared, probe: Probe, name: str) -> None:
    original = getattr(ClientApp, name)

    @functools.wraps(original)
    def decorate(self: ClientApp, action: str = "default", *, mods: Sequence[Any] | None = None) -> Any:
        if mods:
            declared.mods.append((name, list(mods), place_of(declared.root)))
        return original(self, action, mods=[*(mods or []), probe])

    stack.enter_context(patch.object(ClientApp, name, decorate))


def _watch_rounds(stack: ExitStack, declared: Declared, rounds: int) -> None:
    """Note the number of rounds that the app asks for, and give it fewer."""
    original = Strategy.start
    signature = inspect.signature(original)

    @functools.wraps(original)
    def start(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        declared.rounds = int(bound.arguments["num_rounds"])
        bound.arguments["num_rounds"] = min(declared.rounds, rounds)
        return original(*bound.args, **bound.kwargs)

    stack.enter_context(patch.object(Strategy, "start", start))
    config = legacy_server()[1]
    before = config.__init__  # type: ignore[misc]

    @functools.wraps(before)
    def configure(self: Any, num_rounds: int = 1, round_timeout: float | None = None) -> None:
        declared.rounds = num_rounds
        before(self, min(num_rounds, rounds), round_timeout)

    stack.enter_context(patch.object(config, "__init__", configure))
