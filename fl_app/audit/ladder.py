"""Attacks on what a client sent, from cheap to dear, each with what its attacker was granted."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from hydra.utils import get_method
from torch import Tensor, nn

from fl_app.audit.batches import Batch, Scale, as_pictures, scale_of
from fl_app.audit.tape import Player
from fl_app.audit.understanding import Understanding
from fl_app.config.build import lone_attack
from fl_app.console.progress import follow_search, track
from fl_app.types import Observation, Trace, Truth

CLOSE = 0.02
"""Largest error of a recovered row's values, of their range, at which the row counts as recovered."""
_SEARCHED_SAMPLES = 4
_SHOWN = 8
_ROUNDING = 1e-6
_REFUSED = "refused: "
"""Beginning of an attack's note that its premise does not hold."""


@dataclass(frozen=True)
class Result:
    """Outcome of one attack on one update."""

    attack: str
    situation: str
    """``as sent``, ``one sample`` or ``malicious server``."""
    target: str
    """``labels``, ``pictures``, ``rows`` or ``tokens``."""
    score: float | None
    """F1 of labels and tokens, best SSIM of pictures, share of recovered rows; None if nothing came out."""
    measure: str
    granted: str
    seconds: float
    adaptive: bool = False
    notes: tuple[str, ...] = ()
    images: Tensor | None = None
    """Recovered pictures in the order of the true ones (N, C, H, W)."""
    truth: Tensor | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Declined:
    """An attack that was not tried, and why."""

    attack: str
    situation: str
    reason: str


@dataclass
class Ladder:
    """Attacks that were tried and those that were not."""

    results: list[Result] = field(default_factory=list)
    declined: list[Declined] = field(default_factory=list)


@dataclass(frozen=True)
class Sight:
    """Update under attack, with the truth for the score."""

    seen: Observation
    batch: Batch
    scale: Scale | None
    situation: str
    granted: str


def attack_update(found: Understanding, seconds: float, traces: tuple[Trace, ...] | None) -> Ladder:
    """Attack a client's update as it was sent, and the update of one of its samples."""
    ladder = Ladder()
    if not found.update:
        reason = "the server sees no update of a single client: its arrays are masked or were left out"
        ladder.declined.append(Declined("all", "as sent", reason))
        return ladder
    whole = joined(found.batches)
    if whole is None:
        ladder.declined.append(Declined("all", "as sent", "the client's batches have different shapes"))
        return ladder
    if whole.kind == "tokens":
        _attack_tokens(found, whole, ladder)
        return ladder
    head = _classifier(found, whole)
    if head is None:
        reason = "the model's output is not one score for each class, so no label can be asked for"
        ladder.declined += [Declined(name, "as sent", reason) for name in ("labels", "ig")]
    scale = scale_of(found.batches, found.tape.normalised if found.tape else None)
    sight = _sight(found, whole, scale, head)
    _climb(sight, ladder, seconds, traces, searches=len(whole.inputs) <= _SEARCHED_SAMPLES)
    single = _single(found, whole, scale, head)
    if isinstance(single, Sight):
        _climb(single, ladder, seconds, traces, searches=True)
    else:
        ladder.declined.append(Declined("all", "one sample", single))
    return ladder


def _climb(
    sight: Sight, ladder: Ladder, seconds: float, traces: tuple[Trace, ...] | None, *, searches: bool
) -> None:
    """Try labels, the first layer and a search."""
    classes = sight.seen.num_classes is not None and sight.batch.labels is not None
    one = len(sight.batch.inputs) == 1
    plans: list[tuple[str, str, bool]] = []
    if classes:
        plans.append(("idlg_label" if one else "rlg", "", True))
    plans.append(("first_linear", "", True))
    plans.append(("ig", f"attack.steps=300 attack.time_budget={seconds:g}", searches and classes))
    for name, settings, possible in plans:
        if not possible:
            reason = (
                f"a search over {len(sight.batch.inputs)} samples at once takes longer than an audit; the "
                "single sample below is searched for"
                if classes
                else "the loss compares with no classes"
            )
            ladder.declined.append(Declined(name, sight.situation, reason))
            continue
        adapts = traces is not None and name in ("ig",)
        for adaptive in (False, True) if adapts else (False,):
            run_attack(name, settings, sight, ladder, adaptive=adaptive, traces=traces)


def run_attack(
    name: str,
    settings: str,
    sight: Sight,
    ladder: Ladder,
    *,
    adaptive: bool = False,
    traces: tuple[Trace, ...] | None = None,
    attack: Callable[..., Any] | None = None,
) -> None:
    """Run one attack and score it."""
    begun = time.monotonic()
    seen = replace(sight.seen, defense=traces if adaptive else sight.seen.defense)
    try:
        method = attack or lone_attack(f"attack={name} defense=none {settings}".strip(), adaptive=adaptive)[0]
        with track(f"{name}, {sight.situation}", 100) as advance, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            outcome = method(seen, on_step=follow_search(advance))
        refused = next((note for note in outcome.notes if note.startswith(_REFUSED)), None)
        if refused is not None:
            ladder.declined.append(Declined(name, sight.situation, refused.removeprefix(_REFUSED)))
            return
        ladder.results.append(_scored(name, sight, outcome, time.monotonic() - begun, adaptive))
    except Exception as error:  # a model of any kind: an attack may not fit it
        ladder.declined.append(Declined(name, sight.situation, _one_line(error)))


def _scored(name: str, sight: Sight, outcome: Any, seconds: float, adaptive: bool) -> Result:
    notes = tuple(outcome.notes)
    shared: dict[str, Any] = {
        "attack": name,
        "situation": sight.situation,
        "granted": sight.granted,
        "seconds": seconds,
        "adaptive": adaptive,
        "notes": notes,
    }
    if not hasattr(outcome, "images"):
        labels = sight.batch.labels
        assert labels is not None
        scores = get_method("attacks.score.score")(outcome, Truth(sight.batch.inputs, labels))["labels"]
        guess = _guessed(labels, sight.seen.num_classes or 0)
        details = {**scores, "guess": guess}
        return Result(target="labels", score=scores["f1"], measure="F1", details=details, **shared)
    assert sight.scale is not None
    truth = sight.scale.to_unit(as_pictures(sight.batch.inputs))
    if sight.batch.kind == "rows":
        share, shown = _rows_recovered(outcome.images, truth)
        return Result(
            target="rows", score=share, measure="share of rows", images=shown, truth=truth, **shared
        )
    if not len(outcome.images):
        return Result(target="pictures", score=None, measure="SSIM", truth=truth[:_SHOWN], **shared)
    labels = (
        sight.batch.labels if sight.batch.labels is not None else torch.zeros(len(truth), dtype=torch.long)
    )
    told = Truth(truth, labels)
    scores = get_method("attacks.score.score")(outcome, told)
    ssim = [value for value in scores["ssim"] if value is not None]
    order = sorted(range(len(truth)), key=lambda i: -(scores["ssim"][i] or 0.0))[:_SHOWN]
    placed = get_method("attacks.score.aligned")(outcome, told)
    details = {
        "psnr": max((v for v in scores["psnr"] if v is not None), default=None),
        "recognised": sum(value >= 0.5 for value in ssim),
        "samples": len(truth),
    }
    return Result(
        target="pictures",
        score=max(ssim, default=None),
        measure="SSIM",
        images=placed[order],
        truth=truth[order],
        details=details,
        **shared,
    )


def _guessed(labels: Tensor, classes: int) -> float:
    """Return the F1 of naming all classes without looking at the update."""
    present = len(labels.unique())
    return 2 * present / (classes + present) if classes else 0.0


def _rows_recovered(found: Tensor, truth: Tensor) -> tuple[float, Tensor]:
    """Return the share of true rows that are among the found ones, and the closest of each."""
    if not len(found):
        return 0.0, torch.zeros_like(truth)
    off = (truth.flatten(1)[:, None] - found.to(truth).flatten(1)[None]).abs().amax(dim=2)
    return float((off.min(dim=1).values < CLOSE).double().mean()), found.to(truth)[off.argmin(dim=1)]


def _attack_tokens(found: Understanding, batch: Batch, ladder: Ladder) -> None:
    """Read the tokens whose embeddings moved."""
    assert found.model is not None
    begun = time.monotonic()
    tables = {
        f"{path}.weight".lstrip("."): module
        for path, module in found.model.named_modules()
        if isinstance(module, nn.Embedding) and f"{path}.weight".lstrip(".") in found.update
    }
    most = int(batch.inputs.max())
    name = max(
        (n for n in tables if tables[n].num_embeddings > most),
        key=lambda n: tables[n].num_embeddings,
        default=None,
    )
    if name is None:
        ladder.declined.append(
            Declined("embedding_rows", "as sent", "no table of token embeddings is in the update")
        )
        return
    rows = found.update[name].double().flatten(1).norm(dim=1)
    told = set(torch.nonzero(rows > _ROUNDING * rows.max()).flatten().tolist())
    true = set(batch.inputs.flatten().tolist())
    common = len(told & true)
    f1 = 2 * common / (len(told) + len(true)) if common else 0.0
    ladder.results.append(
        Result(
            "embedding_rows",
            "as sent",
            "tokens",
            f1,
            "F1 of the set of tokens",
            "the model before and after training; nothing else",
            time.monotonic() - begun,
            notes=(
                f"{len(told)} of {len(rows)} rows of {name} changed; order and number of tokens are not told",
            ),
            details={"found": len(told), "true": len(true), "right": common},
        )
    )
    ladder.declined.append(
        Declined("text_dlg", "as sent", "a search for the order of tokens needs one sentence")
    )


def _sight(found: Understanding, whole: Batch, scale: Scale, classes: int | None) -> Sight:
    settings = found.facts
    assert found.model is not None
    steps = int(settings["local steps"])  # type: ignore[call-overload]
    lr = settings["learning rate"]
    is_delta = not found.is_gradient and isinstance(lr, float | int) and lr > 0
    seen = Observation(
        model=adapted(found.model, whole, classes),
        update=found.update,
        lr=float(lr) if is_delta else None,  # type: ignore[arg-type]
        local_steps=steps if is_delta else None,
        local_batch_size=settings["batch size"],  # type: ignore[arg-type]
        batch_size=len(whole.inputs),
        num_classes=classes,
        input_shape=tuple(as_pictures(whole.inputs).shape[1:]),
        mean=scale.mean,
        std=scale.std,
        training=settings["mode"] == "train",
    )
    granted = (
        f"the model, the update as sent, number of samples ({len(whole.inputs)}) and local steps, "
        f"normalisation ({scale.source})"
    )
    return Sight(seen, whole, scale, "as sent", granted)


def _single(found: Understanding, whole: Batch, scale: Scale, classes: int | None) -> Sight | str:
    """Return the gradient of the client's first sample alone, by its own loss."""
    assert found.tape is not None
    assert found.model is not None
    player = Player(found.tape, row=0)
    step = found.tape.steps[0]
    state = torch.get_rng_state()
    try:
        player.compute(step)
    except Exception as error:
        return f"the loss of one sample could not be computed: {_one_line(error)}"
    finally:
        torch.set_rng_state(state)
    sent = set(found.update)
    gradients = {
        name: g for (model, name), g in player.gradients().items() if model == found.number and name in sent
    }
    if not gradients or not all(torch.isfinite(g).all() for g in gradients.values()):
        return "one sample gives no finite gradient"
    batch = Batch(whole.inputs[:1], None if whole.labels is None else whole.labels[:1])
    seen = Observation(
        model=adapted(found.model, batch, classes),
        update=gradients,
        batch_size=1,
        num_classes=classes,
        input_shape=tuple(as_pictures(batch.inputs).shape[1:]),
        mean=scale.mean,
        std=scale.std,
        training=found.facts["mode"] == "train",
    )
    granted = (
        "the gradient of one sample, as a client with a single sample and one local step would send it "
        f"without any defense; the model; normalisation ({scale.source})"
    )
    return Sight(seen, batch, scale, "one sample", granted)


def adapted(model: nn.Module, batch: Batch, classes: int | None) -> nn.Module:
    """Return a copy that takes pictures and gives one score for each class; its weights keep their names."""
    twin = copy.deepcopy(model)
    if batch.inputs.ndim != 4:
        shape = tuple(batch.inputs.shape[1:])
        twin.register_forward_pre_hook(_Reshape(shape))
    if classes is not None:
        twin.register_forward_hook(_Scores())
    return twin


@dataclass(frozen=True)
class _Reshape:
    shape: tuple[int, ...]

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (args[0].reshape(-1, *self.shape), *args[1:])


@dataclass(frozen=True)
class _Scores:
    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor:
        return scores_of(output)


def scores_of(output: Any) -> Tensor:
    """Return one score for each class (N, K) from a model's output; one score alone is that of class 1."""
    tensor = getattr(output, "logits", output)
    if isinstance(tensor, list | tuple):
        tensor = tensor[0]
    if tensor.ndim == 1:
        tensor = tensor[:, None]
    if tensor.shape[1] == 1:
        inside = bool(((tensor >= 0) & (tensor <= 1)).all())
        score = torch.logit(tensor, eps=1e-6) if inside else tensor
        return torch.cat([torch.zeros_like(score), score], dim=1)
    return tensor  # type: ignore[no-any-return]


def _classifier(found: Understanding, batch: Batch) -> int | None:
    """Return the number of classes, if the model gives a score for each and the loss compares with labels."""
    if batch.labels is None or found.model is None:
        return None
    model = copy.deepcopy(found.model).eval()
    try:
        with torch.no_grad():
            scores = scores_of(model(batch.inputs[:2]))
    except Exception:  # a model of any kind
        return None
    fits = scores.ndim == 2 and len(scores) > 0 and int(batch.labels.max()) < scores.shape[1]
    return int(scores.shape[1]) if fits else None


def joined(batches: list[Batch]) -> Batch | None:
    """Return all samples of a round as one batch, each once."""
    if not batches or len({(tuple(b.inputs.shape[1:]), b.labels is None) for b in batches}) != 1:
        longest = max((b.inputs.shape[-1] for b in batches), default=0)
        if not batches or not all(b.kind == "tokens" and b.inputs.ndim == 2 for b in batches):
            return None
        padded = [nn.functional.pad(b.inputs, (0, longest - b.inputs.shape[1])) for b in batches]
        return Batch(torch.cat(padded), None)
    inputs = torch.cat([batch.inputs for batch in batches])
    labels = (
        None if batches[0].labels is None else torch.cat([b.labels for b in batches if b.labels is not None])
    )
    if inputs.ndim < 2:
        return None
    _, first = inputs.flatten(1).unique(dim=0, return_inverse=True)
    keep = [row for row in range(len(first)) if row == int((first == first[row]).nonzero()[0])]
    return Batch(inputs[keep], None if labels is None else labels[keep])


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
