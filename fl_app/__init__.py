"""Defended federated training on Flower, measured as the server's attacker would see it.

``fl_app.run`` trains and attacks a federation in this process, ``fl_app.attack`` attacks an update of
any model, and ``fl_app.load_run`` reads a run's folder. Names are imported on first use: torch and
Flower take seconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_app.api.attack import attack as attack
    from fl_app.api.run import Run as Run
    from fl_app.api.run import load_run as load_run
    from fl_app.api.run import run as run
    from fl_app.types import Observation as Observation
    from fl_app.types import Truth as Truth
    from fl_app.types import Update as Update

    __version__: str

_MODULES = {
    "Observation": "types",
    "Run": "api.run",
    "Truth": "types",
    "Update": "types",
    "__version__": "api.version",
    "attack": "api.attack",
    "load_run": "api.run",
    "run": "api.run",
}
__all__ = ["Observation", "Run", "Truth", "Update", "__version__", "attack", "load_run", "run"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name != "__version__":
        import_module(f"{__name__}.flower")  # refuses an unsupported Flower
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(globals().keys() | set(__all__))
