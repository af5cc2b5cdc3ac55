"""Rehearsal of a resume: whether a strategy that somebody else wrote would go on as if never cut short.

A strategy's own `history` says what is saved. Whether it is all cannot be told from the code, so it is tried:
a copy of the strategy as it was built restores the history, and must then hold what the running one holds.
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
    """Tries, for one strategy, to resume from what it would save.

    The strategies and optimisers of this package are tested for it, and are not tried again in every run.
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
        except Exception as error:  # whatever a stranger's object raises when it is copied
            self._refusal = self._say(f"cannot be copied to see what it keeps ({error})")

    def refusal(self, history: dict[str, Tree]) -> str | None:
        """Return why a run cannot be resumed from ``history``; None if it can, bit for bit."""
        if self._built is None:
            return self._refusal
        try:
            twin = copy.deepcopy(self._built)
            twin.restore(stored(history))
            return self._difference(twin)
        except Exception as error:  # in a stranger's restore, or in what it keeps
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
        """Return all that could remember outside of the strategy's attributes, and where it is."""
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
    """Say whether a class, a function or a callable object comes from outside of this package."""
    while isinstance(part, functools.partial):
        part = part.func
    module = getattr(part, "__module__", None) or type(part).__module__
    return module.split(".")[0] not in _LIBRARIES
