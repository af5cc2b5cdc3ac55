"""Rehearsal of a resume: a test that a third-party strategy goes on as if never interrupted.

A strategy's own `history` returns the state to save. The code does not show whether this is complete, so we
try it: a copy of the strategy as built restores the history, and must then equal the running one.
"""

from __future__ import annotations

import copy
import functools
import random
import sys
from typing import Any

import numpy as np

from fl_app.storage.snapshot import Snapshot, functions_in, members_of, snapshot
from fl_app.storage.tree_file import Tree, stored
from fl_app.strategies.fed_sgd import FedSGD

_LIBRARIES = sys.stdlib_module_names | {"fl_app", "flwr", "torch", "numpy"}


class Rehearsal:
    """Trial resume of one strategy from the state that it would save.

    Tests cover the strategies and optimisers of this package, so runs do not try them again.
    """

    def __init__(self, strategy: FedSGD) -> None:
        self._strategy = strategy
        self._classes = [kind for kind in type(strategy).__mro__ if _is_foreign(kind)]
        self._passing = frozenset[str]().union(
            *(vars(kind).get("passing", ()) for kind in type(strategy).__mro__)
        )
        self._built: FedSGD | None = None
        self._refusal: str | None = None
        parts = (strategy.optimiser.init, strategy.optimiser.update, strategy.lr)
        if not self._classes and not any(_is_foreign(part) for part in parts):
            return
        try:
            built = copy.deepcopy(strategy)
            kept = {name: value for name, value in vars(strategy).items() if name not in self._passing}
            self._functions = functions_in(kept, libraries=_LIBRARIES)
            self._hidden = self._hidden_memory()
            self._built = built
        except Exception as error:  # anything that a foreign object raises when copied
            self._refusal = self._say(f"cannot be copied to see what it keeps ({error})")

    def refusal(self, history: dict[str, Tree]) -> str | None:
        """Return the reason that a run cannot resume from ``history``; None if it can, bit for bit."""
        if self._built is None:
            return self._refusal
        try:
            twin = copy.deepcopy(self._built)
            twin.restore(stored(history))
            return self._difference(twin)
        except Exception as error:  # in a foreign restore, or in the state that it keeps
            return self._say(f"cannot be restored from its history ({type(error).__name__}: {error})")

    def _difference(self, twin: FedSGD) -> str | None:
        live, restored = vars(self._strategy), vars(twin)
        for name in sorted((live.keys() | restored.keys()) - self._passing):
            there = name in live and name in restored
            if not there or _take(live[name]) != _take(restored[name]):
                return self._say(f"keeps {name!r} between rounds, which its history() does not return")
        for (where, before), (_, now) in zip(self._hidden, self._hidden_memory(), strict=True):
            if before != now:
                return self._say(f"keeps something in {where}, which no checkpoint holds")
        return None

    def _hidden_memory(self) -> list[tuple[str, Snapshot]]:
        """Return all possible state outside of the strategy's attributes, with its location."""
        return [
            ("numpy's global generator", _take(np.random.get_state(legacy=False))),
            ("Python's global generator", _take(random.getstate())),
            *((f"function {f.__qualname__} or its module", _take(f)) for f in self._functions),
            *((f"class {kind.__name__} or its module", _take(members_of(kind))) for kind in self._classes),
        ]

    def _say(self, what: str) -> str:
        who = f"{type(self._strategy).__module__}.{type(self._strategy).__name__}"
        return f"strategy {who} {what}: the run cannot be resumed"


def _take(value: Any) -> Snapshot:
    return snapshot(value, libraries=_LIBRARIES)


def _is_foreign(part: Any) -> bool:
    """Return whether a class, function or callable object comes from outside of this package."""
    while isinstance(part, functools.partial):
        part = part.func
    module = getattr(part, "__module__", None) or type(part).__module__
    return module.split(".")[0] not in _LIBRARIES
