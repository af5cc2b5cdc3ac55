"""Scores of a result against the truth; no other module sees both."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from attacks.base import LabelSet, MemberScores, Reconstruction, Rows, Snapshot, Transcript
from attacks.membership.curve import measure
from attacks.metrics import identifies, lpips, match, mse, psnr, registered_psnr, ssim
from attacks.tables.columns import Columns
from fl_app.text.word_errors import count_edits, word_error_rate
from fl_app.types import Observation, Truth

NEAR = 0.319
"""Deviations within which a number of a row counts as found, as in TabLeak."""
Scores = dict[str, Any]
"""Plain numbers, lists and dictionaries of such, ready for JSON."""


def score(
    result: Reconstruction | LabelSet | Transcript | Rows,
    truth: Truth,
    *,
    lpips_net: str = "alex",
    spell: Callable[[Sequence[int]], str] | None = None,
    granted: bool = False,
    others: Tensor | None = None,
) -> Scores:
    """Return plain numbers, ready for JSON.

    Images: ``psnr``, ``ssim``, ``lpips`` and ``mse`` list one number per true image, in
    the truth's order and None for an image without a counterpart; ``matching`` gives the
    counterpart's index; ``lpips``, by the network ``lpips_net``, is None as a whole where
    its weights are missing.
    ``others`` (M, C, H, W) are images of other people: with them ``identified`` says of each true image
    whether its reconstruction is closest to it among all ``candidates``.
    Labels, for both kinds of result: ``precision``, ``recall``, ``f1`` and ``exact``
    (1.0 or 0.0), or None if the attack names none.
    Rows: ``row_accuracy`` is the share of columns that are right in all rows, ``row_numbers`` and
    ``row_categories`` that of numbers (within `NEAR`) and categories alone.
    Transcripts: ``tokens`` has the ``accuracy`` (how many of the true tokens are in their place; where
    labels were ``granted``, of those that they do not tell, None if they tell all), ``exact``, the
    ``error_rate`` (edits of tokens, for each true one), and with ``spell``, from tokens to text, the
    ``wer`` (that of words), else None. Their ``labels`` are those of the set of tokens, unless granted.
    """
    if isinstance(result, Reconstruction):
        scores = _image_scores(result.images, truth, lpips_net)
        scores |= _identification(result.images, truth, scores["matching"], others)
        return {**scores, "labels": _reconstructed_labels(result, truth)}
    if isinstance(result, Rows):
        return {**_row_scores(result, truth), "labels": _reconstructed_labels(result, truth)}
    if isinstance(result, LabelSet):
        return {"labels": _set_of_labels(result, truth)}
    if isinstance(result, Transcript):
        scores = _token_scores(list(result.tokens), truth, spell, granted)
        return {"tokens": scores, "labels": None if granted else _bag(result, truth)}
    expected = "a Reconstruction, a LabelSet, a Transcript or Rows"
    raise TypeError(f"score: expected {expected}, got {type(result).__name__}")


def score_members(result: MemberScores, members: Tensor, *, seed: int = 0) -> Scores:
    """Return how well each statistic tells members from strangers: see `attacks.membership.curve.measure`."""
    measured = measure(result.scores, members, seed=seed)
    for name, values in result.scores.items():
        measured["statistics"][name]["scores"] = values.tolist()
    return measured | {"truth": members.bool().tolist()}


def score_trace(trace: Sequence[Snapshot], truth: Truth, *, lpips_net: str = "alex") -> list[Scores]:
    """Return the scores of a search's snapshots: means over the true images, matched separately for each."""

    def mean(values: Sequence[float | None] | None) -> float | None:
        known = [value for value in values or () if value is not None]
        return sum(known) / len(known) if known else None

    rows = []
    for snapshot in trace:
        scores = _image_scores(snapshot.images, truth, lpips_net)
        rows.append({name: mean(scores[name]) for name in ("mse", "psnr", "ssim", "lpips")})
    return rows


def aligned(result: Reconstruction, truth: Truth) -> Tensor:
    """Return the recovered images in the truth's order, black where one is missing."""
    images = result.images.detach().cpu().clamp(0, 1)
    pairs = match(images, truth.inputs.cpu())
    return torch.stack([torch.zeros_like(truth.inputs[0].cpu()) if i is None else images[i] for i in pairs])


def layer_errors(result: Reconstruction, obs: Observation, truth: Truth) -> dict[str, float]:
    """Return how far the input of every solved layer is from the true one, relative to its norm, by name.

    The true input is the layer's input when the observed model sees the true image, which must be one.
    """
    if len(truth.inputs) != 1:
        raise ValueError(f"layer_errors: layers are solved for one image, the truth has {len(truth.inputs)}")
    model = copy.deepcopy(obs.model).double().cpu().train(bool(obs.training))
    seen: dict[str, Tensor] = {}
    for layer in result.layers:
        module = model.get_submodule(layer.name.removesuffix("weight").removesuffix("."))
        module.register_forward_pre_hook(
            lambda _, args, name=layer.name: seen.update({name: args[0][0].flatten()})
        )
    shift, scale = (
        torch.tensor(list(default if given is None else given), dtype=torch.float64).view(-1, 1, 1)
        for given, default in ((obs.mean, (0.0,)), (obs.std, (1.0,)))
    )
    with torch.no_grad():
        model((truth.inputs.cpu().double() - shift) / scale)
    return {
        layer.name: float((layer.input.flatten() - seen[layer.name]).norm() / seen[layer.name].norm())
        for layer in result.layers
    }


def _image_scores(images: Tensor, truth: Truth, lpips_net: str) -> Scores:
    images, inputs = images.detach().cpu(), truth.inputs.cpu()
    matching = match(images, inputs)
    rows = [row for row, i in enumerate(matching) if i is not None]
    recovered = images[[matching[row] for row in rows]]
    scores: Scores = {}
    perceived = partial(lpips, net=lpips_net)
    for name, metric in (("psnr", psnr), ("ssim", ssim), ("lpips", perceived), ("mse", mse)):
        values = metric(recovered, inputs[rows])
        scores[name] = None if values is None else _in_place(values, rows, len(inputs))
    return {**scores, "matching": matching}


def _row_scores(result: Rows, truth: Truth) -> Scores:
    """Return shares of columns: categories that are right, numbers within `NEAR` deviations."""
    true, found = truth.inputs.cpu().double(), result.values.detach().cpu().double()
    pairs = match(found[..., None, None], true[..., None, None])
    columns, near, right = Columns.of(result.names), [], []
    for row, i in zip(true, pairs, strict=True):
        guess = torch.full_like(row, torch.nan) if i is None else found[i]
        near += [bool((guess[place] - row[place]).abs() <= NEAR) for place in columns.numbers]
        right += [bool((guess[list(p)] == row[list(p)]).all()) for _, p in columns.categories]
    every = [*near, *right]

    def share(parts: Sequence[bool]) -> float | None:
        return sum(parts) / len(parts) if parts else None

    return {"row_accuracy": share(every), "row_numbers": share(near), "row_categories": share(right)}


def _identification(
    images: Tensor, truth: Truth, matching: Sequence[int | None], others: Tensor | None
) -> Scores:
    images, inputs = images.detach().cpu(), truth.inputs.cpu()
    if images.ndim != 4 or inputs.ndim != 4:
        return {}
    rows = [row for row, i in enumerate(matching) if i is not None]
    recovered = images[[matching[row] for row in rows]]
    found: Scores = {
        "registered_psnr": _in_place(registered_psnr(recovered, inputs[rows]), rows, len(inputs))
    }
    if others is not None and others.shape[1:] == inputs.shape[1:]:
        right = dict(zip(rows, identifies(recovered, inputs[rows], others.to(recovered)), strict=True))
        found["identified"] = [right.get(row, False) for row in range(len(inputs))]
        found["identified_share"] = sum(found["identified"]) / max(1, len(inputs))
        found["candidates"] = 1 + len(others)
        found["identified_by"] = "correlation at the best shift"
    return found


def _in_place(values: Tensor, rows: Sequence[int], number: int) -> list[float | None]:
    placed: list[float | None] = [None] * number
    for row, value in zip(rows, values.tolist(), strict=True):
        placed[row] = value
    return placed


def _reconstructed_labels(result: Reconstruction | Rows, truth: Truth) -> Scores | None:
    if result.labels is None:
        return None
    return _agreement(Counter(result.labels.tolist()), Counter(truth.labels.tolist()))


def _set_of_labels(result: LabelSet, truth: Truth) -> Scores:
    true = truth.labels[truth.labels >= 0].tolist()  # a transcript is padded below 0
    if result.counts is None:
        # the attack says which classes occur, not how often: only that is judged
        return _agreement(Counter(set(result.labels.tolist())), Counter(set(true)))
    found = Counter(dict(zip(result.labels.tolist(), result.counts.tolist(), strict=True)))
    return _agreement(found, Counter(true))


def _token_scores(
    found: list[int], truth: Truth, spell: Callable[[Sequence[int]], str] | None, granted: bool
) -> dict[str, float | None]:
    tokens, told = truth.tokens()
    true = tokens.tolist()
    if not true:
        raise ValueError("score: the truth must have at least one token, got none")
    counted = [not (granted and known) for known in told.tolist()]
    right = sum(c and a == b for c, a, b in zip(counted, found, true, strict=False))
    edits = count_edits([str(token) for token in true], [str(token) for token in found])
    return {
        "accuracy": right / sum(counted) if any(counted) else None,
        "exact": float(found == true),
        "error_rate": edits / len(true),
        "wer": None if spell is None else word_error_rate([spell(true)], [spell(found)]),
    }


def _bag(result: Transcript, truth: Truth) -> Scores:
    return _agreement(Counter(set(result.tokens)), Counter(set(truth.tokens()[0].tolist())))


def _agreement(found: Counter[int], true: Counter[int]) -> Scores:
    common = (found & true).total()
    precision = common / found.total() if found else 0.0
    recall = common / true.total() if true else 0.0
    f1 = 2 * precision * recall / (precision + recall) if common else 0.0
    return {"precision": precision, "recall": recall, "f1": f1, "exact": float(+found == +true)}
