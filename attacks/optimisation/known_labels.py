"""Initial labels of an attack on images: granted by the threat model, or read off the update."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attacks.labels import fill_batch, idlg_label, output_gradient, yin_labels
from attacks.optimisation.problem import Problem
from fl_app.types import Observation

SOURCES = ("auto", "granted", "infer")
"""Use granted labels or else infer; use only granted labels; never use granted labels."""


def known_labels(obs: Observation, problem: Problem, source: str, *, who: str) -> tuple[Tensor, list[str]]:
    """Return one label per sample (B,) and a note on where they come from."""
    if problem.rounds is not None and problem.rounds.stream:
        seen = [*obs.history, obs]
        alone = replace(problem, rounds=None, batch_size=problem.batch_size // len(seen))
        found = [known_labels(one, alone, source, who=who) for one in seen]
        return torch.cat([labels for labels, _ in found]), list(
            dict.fromkeys(note for _, n in found for note in n)
        )
    if source == "granted" and obs.labels is None:
        raise ValueError(f"{who}: labels='granted' needs labels in the observation, got None")
    if source == "infer" or obs.labels is None:
        return _inferred(obs, problem, who)
    if obs.labels.shape != (problem.batch_size,):
        raise ValueError(
            f"{who}: labels must have shape ({problem.batch_size},), got {tuple(obs.labels.shape)}"
        )
    return obs.labels.detach().long().to(problem.device), ["labels granted"]


def _inferred(obs: Observation, problem: Problem, who: str) -> tuple[Tensor, list[str]]:
    if problem.batch_size == 1:
        found = idlg_label()(obs)
        return found.labels.to(problem.device), ["label inferred (iDLG)", *found.notes]
    found = yin_labels()(obs)
    rows = output_gradient(obs, who=who).rows
    labels = fill_batch(found.labels, rows, problem.batch_size)
    return labels.to(problem.device), ["labels inferred (Yin), repeats by row sums", *found.notes]
