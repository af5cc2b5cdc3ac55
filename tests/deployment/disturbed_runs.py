"""What a disturbed run has left, and whether that is what it must be."""

from __future__ import annotations

from itertools import combinations

from compose_harness import Harness
from deployed import SMALL, rows_of
from lossy_history import Losses, model_after, same
from safetensors.torch import load_file

from fl_app.types import Update

BRIEF = f"clients=3 evaluate_every=1 model=mlp model.hidden=[16] attack=none {SMALL}"
DGP = f"{BRIEF} defense=dgp"
"""Clients that hold back most of their gradients: what a fault makes of that shows in the model."""


def model_in(federation: Harness, folder: str) -> Update:
    return load_file(federation.volume("runs") / folder / "model.safetensors")


def log_of(federation: Harness, folder: str) -> str:
    return (federation.volume("runs") / folder / "run.log").read_text()


def counts(federation: Harness, folder: str) -> list[int]:
    return [row["clients"] for row in rows_of(federation, folder)]


def failures(federation: Harness, folder: str) -> dict[tuple[int, int], str]:
    """By client and round: why an update did not count."""
    return {
        (failure["client"], row["round"]): failure["reason"]
        for row in rows_of(federation, folder)
        for failure in row["failures"]
    }


def history_of(federation: Harness, folder: str, overrides: str, client: int) -> Losses:
    """Return the history of one disturbed client that the model of a run is that of; it must be one.

    Where the client is named, it did not get the order, or its answer did not count; where it is
    missing without being named, it was not asked.
    """
    named = sorted(failures(federation, folder))
    assert named
    assert {who for who, _ in named} == {client}
    absent = {
        (client, row["round"])
        for row in rows_of(federation, folder)
        if row["clients"] + len(row["failures"]) < 3
    }
    histories = [
        Losses(unheard=frozenset({*unheard, *absent}), uncounted=frozenset({*named} - {*unheard}))
        for number in range(len(named) + 1)
        for unheard in combinations(named, number)
    ]
    assert len(histories) <= 16
    models = [model_after(overrides, losses) for losses in histories]
    assert not any(same(one, other) for one, other in combinations(models, 2))
    found = model_in(federation, folder)
    assert not same(found, model_after(overrides, Losses()))
    (history,) = [losses for losses, model in zip(histories, models, strict=True) if same(model, found)]
    print(f"{folder}: {history}; {failures(federation, folder)}; {counts(federation, folder)}")
    return history
