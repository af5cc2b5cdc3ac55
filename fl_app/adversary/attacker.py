"""Configured attack, with the functions that score its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from fl_app.types import Known, Manipulated, Update


@dataclass(frozen=True)
class Attacker:
    """The forms of one attack; this package knows attacks only as callables that a config names."""

    name: str
    forms: Mapping[bool, Callable[..., Any]]
    """The attack by whether it adapts to the defense."""
    grant_labels: bool
    grant_length: bool
    """Whether the attacker is told the number of tokens behind an update."""
    score: Callable[..., Any]
    """From a result and the truth to numbers."""
    score_trace: Callable[..., Any]
    """From snapshots of a search and the truth to numbers for each."""
    mse_below: float
    """Mean squared error below which an image of a snapshot counts as found."""
    aligned: Callable[..., Any]
    """A result's images in the order of the truth."""
    spell: Callable[[Sequence[int]], str] | None = None
    """From tokens to text, where samples have transcripts or are sentences."""
    pieces: Sequence[str] = ()
    """Text of each token, where labels are tokens."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """All settings of the attack, as a result states them."""
    mark: str = ""
    """Ending of the names of its pictures, where others of the same attack lie beside them."""
    known: Known | None = None
    """Images that the attacker has and no client."""
    defend: Callable[[Update], Update] | None = None
    """The defense as an attacker can run it; None: it does not work on an update alone."""
    manipulate: Callable[[nn.Module], Manipulated] | None = None
    """Manipulation of the model before a client gets it; None: the attacker only watches."""
