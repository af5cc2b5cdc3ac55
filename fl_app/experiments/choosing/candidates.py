"""Candidates of a choice: defenses with their settings, and the line that puts each into a Flower app."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fl_app.config.compose import ConfigError, nearest

BASELINE = "none"


class Candidate(NamedTuple):
    """A defense in one setting."""

    name: str
    overrides: tuple[str, ...]
    use: str = ""
    """Line of Python that defends the user's own Flower app."""


def _mod(call: str) -> str:
    name = call.partition("(")[0]
    return f"from fl_app.mods import {name}; app = ClientApp(mods=[{call}])"


def candidates(epsilon: float | None = None) -> list[Candidate]:
    """Return the candidates; with ``epsilon`` also DP-SGD, which alone of them bounds it."""
    found = [
        Candidate(BASELINE, ("defense=none",)),
        Candidate("int8", ("defense=int8",), _mod('quantise_mod("int8")')),
        Candidate("sign", ("defense=sign",), _mod("sign_mod()")),
        Candidate("topk-20", ("defense=topk", "defense.share=0.2"), _mod("topk_mod(k=0.2)")),
        Candidate("topk-5", ("defense=topk", "defense.share=0.05"), _mod("topk_mod(k=0.05)")),
        Candidate("dgp", ("defense=dgp",), _mod("dgp_mod(k1=0.05, k2=0.75)")),
        Candidate("adgp", ("defense=adgp",), "from fl_app.strategies import ADGP; see docs/library.md"),
        Candidate("common-signs", ("defense=common_signs",), _mod("common_signs_mod()")),
        Candidate("noise-0.01", ("defense=gaussian", "defense.std=0.01"), _mod("noise_mod(std=0.01)")),
        Candidate("noise-0.1", ("defense=gaussian", "defense.std=0.1"), _mod("noise_mod(std=0.1)")),
    ]
    if epsilon is not None:
        settings = ("defense=dp_sgd", f"defense.epsilon={epsilon:g}")
        line = (
            "from fl_app.client import app; from fl_app.defenses import dp_sgd; "
            f"client = app(model=net, train=train, defense=dp_sgd(epsilon={epsilon:g}, rounds=ROUNDS))"
        )
        found.append(Candidate("dp_sgd", settings, line))
    return found


def chosen(names: Sequence[str], epsilon: float | None) -> list[Candidate]:
    """Return the baseline and the candidates of these names; all of them if there are no names."""
    every = candidates(epsilon)
    known = [candidate.name for candidate in every]
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(
            f"defenses: expected names among {', '.join(known)}, "
            f"got {unknown[0]!r}{nearest(unknown[0], known)}"
        )
    return [one for one in every if not names or one.name in names or one.name == BASELINE]
