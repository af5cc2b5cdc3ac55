"""Clues in the gradient of a masked language model, read before any search."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.knowledge import gradient_unit
from attacks.text.language_model import OUTPUT_BIAS, POSITIONS, TOKENS
from fl_app.types import Observation

SOURCES = ("auto", "infer", "granted", "optimise")
OVER = -1
"""Granted label behind the end of a sentence; other labels below 0 mark places that are not asked for."""
_SURELY, _HARDLY = 0.99, 1e-3
"""Chances of being masked that a search starts from lie between these."""
_MASKED = 0.15
"""The share of masked tokens, where nothing tells them apart."""


@dataclass(frozen=True, eq=False)
class Targets:
    """Possible targets and their places."""

    pieces: Tensor
    """The tokens that come into question (T,)."""
    chances: Tensor | None
    """Initial chance of each place to be masked (L,); None if the masked places are known."""
    known: Tensor
    """The share of each token, and last that of none, at each place (L, T + 1); zeros if it is sought."""
    note: str


def sentence_length(obs: Observation, who: str) -> tuple[int, str]:
    """Return the number of tokens in the sentence: by labels, or by positions with a gradient."""
    limit = len(dict(obs.model.named_parameters())[POSITIONS])
    if obs.labels is not None:
        if obs.labels.ndim != 2 or len(obs.labels) != 1:
            raise ValueError(f"{who}: granted labels must be (1, L), got {tuple(obs.labels.shape)}")
        length = int((obs.labels != OVER).sum())
        if not 1 <= length <= limit:
            raise ValueError(f"{who}: granted labels must be of 1 to {limit} tokens, got {length}")
        return length, f"length {length} granted with the labels"
    rows: Tensor = obs.update[POSITIONS].detach().any(dim=1) if POSITIONS in obs.update else torch.zeros(0)
    if not rows.any():
        raise ValueError(f"{who}: no row of update[{POSITIONS!r}] tells the length: labels must be granted")
    length = int(rows.nonzero().max()) + 1
    return length, f"length {length} read off the position embeddings' gradient: later rows are zero"


def find_targets(obs: Observation, length: int, source: str, *, who: str) -> Targets:
    """Return the known facts on the masked places and the tokens behind them, by one of `SOURCES`."""
    if source == "granted" or (source == "auto" and obs.labels is not None):
        return _granted(obs, length, who)
    pieces, note = _pieces(obs, source)
    known = torch.zeros(length, len(pieces) + 1, dtype=torch.float64)
    return Targets(pieces, _chances(obs, length), known, note)


def _granted(obs: Observation, length: int, who: str) -> Targets:
    if obs.labels is None:
        raise ValueError(f"{who}: targets='granted' needs labels (1, L), which are not granted")
    labels = obs.labels.detach().cpu()[0, :length]
    if not (labels >= 0).any():
        raise ValueError(f"{who}: granted labels must have one from 0 on, got none that is asked for")
    pieces = labels[labels >= 0].unique()
    known = torch.cat([labels[:, None] == pieces, (labels < 0)[:, None]], dim=1).double()
    return Targets(pieces, None, known, "masked places and targets granted")


def _pieces(obs: Observation, source: str) -> tuple[Tensor, str]:
    everything = torch.arange(len(dict(obs.model.named_parameters())[TOKENS]))
    if source == "optimise":
        return everything, "masked places and targets searched for, among all tokens"
    if OUTPUT_BIAS not in obs.update:
        return everything, f"update[{OUTPUT_BIAS!r}] is not there: targets searched for among all tokens"
    # the mean of p - y over what was asked for: below zero only where y is not
    gradient = obs.update[OUTPUT_BIAS].detach().cpu() / (
        1 if obs.local_steps is None else -gradient_unit(obs)
    )
    pieces = (gradient < 0).nonzero().flatten()
    if not len(pieces):
        return everything, "no output has a gradient below zero: targets searched for among all tokens"
    return pieces, (
        f"{len(pieces)} targets read off the output bias (gradient below zero: none is missed as long as "
        "the model is far from sure of them); which of them belongs where is searched for"
    )


def _chances(obs: Observation, length: int) -> Tensor:
    """Return larger chances where the gradient of the position is: others get theirs by attention alone."""
    if POSITIONS not in obs.update:
        return torch.full((length,), _MASKED, dtype=torch.float64)
    rows: Tensor = obs.update[POSITIONS].detach().cpu()[:length].double().norm(dim=1)
    largest = rows.max().clamp_min(torch.finfo(rows.dtype).tiny)
    return (_SURELY * rows / largest).clamp(_HARDLY, _SURELY)
