"""DAGER (Petrov et al., NeurIPS 2024): exact text from the span of attention gradients.

The gradient of a linear layer is ``sum_i delta_i z_i^T`` over the tokens' states ``z_i``: its rows lie in the
span of these, whatever the deltas. With fewer tokens than the states are wide, that span leaves nearly all
of space out, so each token of the vocabulary at each place can be asked alone whether its state, the first
layer's input, lies in it. No search is needed, and no target is known. The gradient of a low-rank adapter's
first matrix (LoRA: ``W + B A``) has the same rows, as long as its rank exceeds the number of tokens.

Of several sentences each place has several tokens, and more than theirs: states are sums of a token and a
place, and those of ``a`` and ``b`` at one place and ``a`` at another span that of ``b`` there. Sequences of
them are then asked whether the states that the first layer makes of them lie in the span of the second
layer's gradient.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attacks.base import StepListener, Transcript
from attacks.text.language_model import OUTPUT_BIAS, as_language_model
from fl_app.types import Observation

Spell = Callable[[Sequence[int]], str]

PROJECTIONS = ("query", "key", "value")
WHO = "dager"
RANK_FLOOR = 1e-6
"""Singular values below this part of the largest are rounding of float32."""
INSIDE = 1e-3
"""Part of a state that may lie outside of the span."""
MOST_SEQUENCES = 20_000
"""Sequences that are asked, at most."""
AT_ONCE = 512
MOST_ORDERS = 5_040
IGNORED = -2


@dataclass(frozen=True, kw_only=True)
class Dager:
    """Read the tokens of a sentence off an update, or say which premise fails.

    Works on the gradient of the projections of attention in the first layer, or of their adapters; a weight
    difference of one local step serves as well. ``spell`` gives the result a text.
    """

    spell: Spell | None = None

    reads: ClassVar[str] = "text"

    def __call__(self, obs: Observation, *, on_step: StepListener | None = None) -> Transcript:
        """Attack the update of one sentence; raise ValueError where a premise fails."""
        if obs.batch_size not in (None, 1):
            raise ValueError(
                f"{WHO}: one sentence at a time, got {obs.batch_size}; `sentences` reads several"
            )
        found, notes = self._candidates(obs)
        open_places = [place for place, tokens in enumerate(found) if len(tokens) > 1]
        if open_places:
            found = [torch.tensor(row) for row in zip(*self._chosen(obs, found), strict=True)]
            if any(len(tokens) > 1 for tokens in found):
                raise ValueError(f"{WHO}: more than one token fits at {len(open_places)} places")
            notes.append(f"{len(open_places)} places settled by the second layer")
        tokens, about = _with_targets(obs, [int(row[0]) for row in found])
        return Transcript(
            tokens=tokens,
            text=None if self.spell is None else self.spell(tokens),
            notes=[*notes, *about],
            rule="span",
        )

    def sentences(self, obs: Observation) -> list[list[int]]:
        """Return all sentences of one length behind an update, as the model saw them."""
        found, _ = self._candidates(obs)
        return [[int(token) for token in one] for one in self._chosen(obs, found)]

    def _candidates(self, obs: Observation) -> tuple[list[Tensor], list[str]]:
        """Return the tokens that fit at each place, up to the first place where none does."""
        language = as_language_model(obs.model, WHO)
        space, names = _span(obs, 0)
        table = language.get_parameter("tokens.weight").detach()
        places = len(language.get_parameter("positions.weight"))
        model = as_language_model(copy.deepcopy(obs.model).double(), WHO)
        found = []
        with torch.no_grad():
            for place in range(places):
                # alone at each place: what stands before does not enter the first layer's input
                row = table.double()[:, None, :].expand(-1, place + 1, -1)
                outside = _outside(model.place(row)[:, place], space)
                fits = (outside < INSIDE).nonzero().flatten()
                if not len(fits):
                    break
                found.append(fits[outside[fits].argsort()])
        if not found:
            raise ValueError(f"{WHO}: no token's state lies in the span: the update is defended or too noisy")
        rank, width = len(space), space.shape[1]
        return found, [f"span of rank {rank} in {width} dimensions from {len(names)} gradients of layer 0"]

    def _chosen(self, obs: Observation, found: list[Tensor]) -> list[tuple[int, ...]]:
        """Return the sequences of candidates that the second layer's gradient confirms."""
        number = math.prod(len(tokens) for tokens in found)
        if number > MOST_SEQUENCES:
            raise ValueError(
                f"{WHO}: {number} sequences fit the first layer, at most {MOST_SEQUENCES} are asked"
            )
        space, names = _span(obs, 1)
        model = copy.deepcopy(obs.model).double()
        seen: list[Tensor] = []
        layer = model.get_submodule(names[0].rsplit(".", 1)[0].removesuffix(".lora_A"))
        handle = layer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        chosen = []
        with torch.no_grad():
            every = list(itertools.product(*(tokens.tolist() for tokens in found)))
            for part in (every[first : first + AT_ONCE] for first in range(0, len(every), AT_ONCE)):
                seen.clear()
                model(torch.tensor(part))
                outside = torch.stack([_outside(states, space) for states in seen[0].unbind(1)], dim=1)
                fits = outside.amax(dim=1) < INSIDE
                chosen += [one for one, fit in zip(part, fits.tolist(), strict=True) if fit]
        handle.remove()
        if not chosen:
            raise ValueError(
                f"{WHO}: no sequence of the tokens that fit explains the second layer's gradient"
            )
        return chosen


dager = Dager


def _span(obs: Observation, layer: int) -> tuple[Tensor, list[str]]:
    """Return a basis (r, E) of the rows of a layer's gradients, and the parameters that they are of."""
    width = dict(obs.model.named_parameters())["tokens.weight"].shape[1]
    names = [
        name
        for name, entries in obs.update.items()
        if f"layers.{layer}." in name
        and any(f".{part}." in name for part in PROJECTIONS)
        and entries.ndim == 2
        and entries.shape[1] == width
        and not name.endswith("lora_B")
    ]
    if not names:
        raise ValueError(
            f"{WHO}: expected gradients of {', '.join(PROJECTIONS)} (or adapters) of layer {layer}, got none"
        )
    if obs.local_steps not in (None, 1):
        raise ValueError(f"{WHO}: expected a gradient or one local step, got {obs.local_steps} steps")
    rows = [obs.update[name].detach().cpu().double() for name in names]
    units = [part / part.norm().clamp_min(torch.finfo(part.dtype).tiny) for part in rows]
    _, values, directions = torch.linalg.svd(torch.cat(units), full_matrices=False)
    rank = int((values > RANK_FLOOR * values[0]).sum()) if values[0] > 0 else 0
    most = min(width, sum(len(part) for part in rows))
    if rank >= most:
        raise ValueError(
            f"{WHO}: the gradients of layer {layer} have full rank {rank}: expected fewer tokens than "
            f"{most}, and an update without noise"
        )
    return directions[:rank], names


def _outside(states: Tensor, space: Tensor) -> Tensor:
    """Return the part of each state (N, E) that lies outside of the span."""
    rest = states - (states @ space.t()) @ space
    norm: Tensor = rest.norm(dim=1) / states.norm(dim=1)
    return norm


def _with_targets(obs: Observation, ids: list[int]) -> tuple[list[int], list[str]]:
    """Return the sentence with the tokens that its masks hide, as far as the update tells them."""
    if obs.labels is not None:
        labels = obs.labels[0].tolist()
        return [lab if lab >= 0 else token for token, lab in zip(ids, labels, strict=False)], [
            "targets granted"
        ]
    if OUTPUT_BIAS not in obs.update or obs.local_steps is not None:
        return ids, ["masked tokens are left as masks: the output's gradient was not sent"]
    pieces = (obs.update[OUTPUT_BIAS] < 0).nonzero().flatten().tolist()
    for mask in {token for token in ids if ids.count(token) >= len(pieces)}:
        places = [place for place, token in enumerate(ids) if token == mask]
        repeats = itertools.combinations_with_replacement(pieces, len(places) - len(pieces))
        tried = 0
        for more in repeats:
            for order in set(itertools.permutations([*pieces, *more])):
                tried += 1
                if tried > MOST_ORDERS:
                    break
                if _explains(obs, ids, dict(zip(places, order, strict=True))):
                    full = list(ids)
                    for place, token in zip(places, order, strict=True):
                        full[place] = token
                    return full, [f"{len(places)} masked tokens confirmed by the whole gradient"]
    return ids, ["masked tokens are left as masks: no order of the targets explains the update"]


def _explains(obs: Observation, ids: list[int], targets: dict[int, int]) -> bool:
    """Return whether the output layer's gradient follows from a sentence and its targets."""
    model: nn.Module = copy.deepcopy(obs.model).requires_grad_(True)
    labels = torch.tensor([targets.get(place, IGNORED) for place in range(len(ids))])
    loss = F.cross_entropy(model(torch.tensor([ids]))[0], labels, ignore_index=IGNORED)
    weight = OUTPUT_BIAS.replace("bias", "weight")
    names = [name for name in (OUTPUT_BIAS, weight) if name in obs.update]
    parameters = dict(model.named_parameters())
    guessed = torch.autograd.grad(loss, [parameters[name] for name in names], allow_unused=True)
    for name, gradient in zip(names, guessed, strict=True):
        if gradient is None or (gradient - obs.update[name]).norm() > INSIDE * obs.update[name].norm():
            return False
    return True
