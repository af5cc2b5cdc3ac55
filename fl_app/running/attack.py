"""Leakage of the updates: attack every sighting after training, and score it against the truth."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from fl_app.adversary.attacker import Attacker
from fl_app.adversary.passive import PassiveServer, Public, Sighting, observe
from fl_app.console.progress import follow_search, track
from fl_app.console.stated_failure import StatedFailure, most_frequent
from fl_app.models import manipulate_like
from fl_app.report import save_images
from fl_app.results import Attack, Read, Recovery, Sentence, TracePoint, Trained, Transcript
from fl_app.running.bounds import bound_attack, exceeded_notes
from fl_app.running.result import Results
from fl_app.storage.fingerprint import short_hash
from fl_app.types import Observation, Truth, Update
from fl_app.wire.messages import Order

logger = logging.getLogger(__name__)

Rehearse = Callable[[nn.Module, Order, Tensor, Tensor], Update]
"""From a model, its order, and pixels with labels to the update that a client would send."""

EXACT = 70.0
"""The PSNR, in dB, above which an image counts as recovered: its pixels are right to the last level."""
_GIVES_UP = (ValueError, RuntimeError, IndexError, ArithmeticError, MemoryError)
"""Errors that end an attack on one client's update and nothing else: torch raises RuntimeError for all."""


class NotAttacked(StatedFailure):
    """The run was to be attacked and was not: its leak is not measured."""


_UNSCORED: dict[str, Any] = dict.fromkeys(("psnr", "ssim", "lpips", "mse", "labels"))


@dataclass(frozen=True)
class _Case:
    """One update to be attacked in one form."""

    sighting: Sighting
    undefended: bool
    adaptive: bool

    @property
    def title(self) -> str:
        if self.undefended:
            return "undefended"
        return "sum" if self.sighting.summed else "masked" if self.sighting.masked else "defended"

    @property
    def whose(self) -> str:
        sighting = self.sighting
        return (
            f"the sum of {sighting.summed} clients" if sighting.summed else f"client {sighting.order.client}"
        )

    @property
    def stem(self) -> str:
        whose = "sum" if self.sighting.summed else f"c{self.sighting.order.client}"
        return f"attacks/r{self.sighting.order.round}-{whose}"


def attack_sightings(
    sightings: list[Sighting],
    attacker: Attacker,
    template: nn.Module,
    public: Public,
    results: Results,
    *,
    rehearse: Rehearse | None = None,
) -> None:
    """Attack each sighting as it was sent and, for contrast, as it was before the defense.

    Updates of one round to one model are attacked together where the attack can:
    in one graph that is several times faster. ``rehearse`` is a client's work as the attacker can run it.
    """
    watch = _Watch(sightings, template, public, attacker, results.run.recovery, rehearse)
    for group in _groups(sightings, attacker):
        entries = _attack(group, attacker, watch, results.folder)
        results.add_attacks(entries)
        for note in exceeded_notes(entries):
            logger.warning("%s", note)
            if note not in results.run.notes:  # a run may be attacked again
                results.run.notes.append(note)
        results.save()


def check_attacked(auditor: PassiveServer, results: Results) -> None:
    """Raise `NotAttacked` if the run was to be attacked and nothing came of it."""
    if not auditor.reached():
        raise NotAttacked(
            "attack: no attacked client answered in an attacked round, so nothing was measured; see failures "
            "in result.json, and choose others by attack.rounds and attack.clients"
        )
    reasons = [entry.gave_up for entry in results.run.attacks if entry.gave_up is not None]
    if reasons and len(reasons) == len(results.run.attacks):
        raise NotAttacked(f"attack: it gave up on all {len(reasons)} updates: {most_frequent(reasons)}")


@dataclass(frozen=True)
class _Watch:
    """All sightings of the server; makes the observation of one case."""

    sightings: list[Sighting]
    template: nn.Module
    public: Public
    attacker: Attacker
    recovery: Recovery | None
    """The facts behind bounds, under differential privacy."""
    rehearse: Rehearse | None = None
    """A client's work as the attacker can run it; None: its gradient and `Attacker.defend` say it all."""
    earlier: dict[tuple[int, int], Observation] = field(default_factory=dict)
    """Observations by round and client: each has a model of its own, and is made once."""

    def observe(self, case: _Case) -> Observation:
        """Return the observation of a case, with earlier rounds of the same client as its history."""
        if case.undefended:
            return self._see(case.sighting, undefended=True)
        seen = self._see(case.sighting, history=[self._before(one) for one in self._past(case.sighting)])
        if not case.adaptive:
            return seen
        work = None
        if self.rehearse is not None and seen.known is not None:
            work = partial(self.rehearse, seen.model.train(self.public.training), case.sighting.order)
        return replace(seen, defend=self.attacker.defend, rehearse=work)

    def _see(self, sighting: Sighting, **more: Any) -> Observation:
        manipulated = sighting.manipulated
        template = self.template if manipulated is None else manipulate_like(self.template, manipulated)
        seen = observe(
            sighting,
            template,
            self.public,
            grant_labels=self.attacker.grant_labels,
            grant_length=self.attacker.grant_length,
            **more,
        )
        return replace(seen, known=self.attacker.known)

    def _past(self, sighting: Sighting) -> list[Sighting]:
        """Return earlier sightings of the client; to a manipulated model it has no past."""
        if sighting.manipulated is not None:
            return []
        order = sighting.order
        past = [s for s in self.sightings if s.order.client == order.client and s.order.round < order.round]
        return sorted((s for s in past if s.manipulated is None), key=lambda s: s.order.round)

    def _before(self, sighting: Sighting) -> Observation:
        key = sighting.order.round, sighting.order.client
        if key not in self.earlier:
            self.earlier[key] = self._see(sighting)
        return self.earlier[key]


def _groups(sightings: list[Sighting], attacker: Attacker) -> list[list[_Case]]:
    """Return the cases that can share a graph; in one of them, all cases have the same form.

    An attack that takes one at a time gets each by itself: a copy of the model for all of them at once
    would be memory for nothing.
    """
    groups: dict[tuple[object, ...], list[_Case]] = {}
    for sighting in sightings:
        for case in _cases(sighting, attacker):
            order = sighting.order
            key: tuple[object, ...] = (len(groups),)
            if hasattr(attacker.forms[case.adaptive], "many"):
                key = order.round, order.model_hash, sighting.samples, sighting.answer.steps, case.adaptive
            groups.setdefault(key, []).append(case)
    return list(groups.values())


def _cases(sighting: Sighting, attacker: Attacker) -> list[_Case]:
    plain = min(attacker.forms)  # the plain form, if there is one
    as_sent = [_Case(sighting, False, adaptive) for adaptive in attacker.forms]
    if sighting.raw is None:
        return as_sent
    if _same(sighting.raw, sighting.update):
        return [_Case(sighting, False, plain)]  # nothing to adapt to
    return [*as_sent, _Case(sighting, True, plain)]


def _same(raw: Update, sent: Update) -> bool:
    return all(torch.equal(raw[name].to(tensor.device), tensor) for name, tensor in sent.items())


def _attack(cases: list[_Case], attacker: Attacker, watch: _Watch, folder: Path) -> list[Attack]:
    observations = [watch.observe(case) for case in cases]
    start = time.perf_counter()
    results = _run(attacker, cases, observations)
    seconds = (time.perf_counter() - start) / len(cases)
    entries = [
        _entry(case, observation, result, attacker, folder, seconds)
        for case, observation, result in zip(cases, observations, results, strict=True)
    ]
    return [
        entry.model_copy(update=_bound(case, result, entry, attacker, watch.recovery))
        for case, result, entry in zip(cases, results, entries, strict=True)
    ]


def _bound(
    case: _Case, result: Any, entry: Attack, attacker: Attacker, recovery: Recovery | None
) -> dict[str, Any]:
    """Return the share of images that was found and its bound, where noise protected the update."""
    if recovery is None or case.undefended:
        return {}
    return bound_attack(
        recovery,
        case.sighting,
        entry.mse,
        guesses=len(getattr(result, "images", ())),
        granted=entry.labels_from == "granted",
        mse_below=attacker.mse_below,
    )


def _run(attacker: Attacker, cases: list[_Case], observations: list[Observation]) -> list[Any]:
    """Return a result, or an error, for each observation."""
    attack = attacker.forms[cases[0].adaptive]
    title = f"{attacker.name}{', adaptive' if cases[0].adaptive else ''}"
    if len(cases) == 1:
        title += f" on {cases[0].whose}, {cases[0].title}"
    elif hasattr(attack, "many"):
        with track(f"{title} on {len(cases)} updates", 100) as advance, suppress(*_GIVES_UP):
            # one failing update would stop all: then each is attacked by itself
            return list(attack.many(observations, on_step=follow_search(advance)))
    results: list[Any] = []
    for number, observation in enumerate(observations, 1):
        with track(
            title if len(cases) == 1 else f"{title} on update {number} of {len(cases)}", 100
        ) as advance:
            try:
                results.append(attack(observation, on_step=follow_search(advance)))
            except _GIVES_UP as error:
                results.append(error)
    return results


def _entry(
    case: _Case, observation: Observation, result: Any, attacker: Attacker, folder: Path, seconds: float
) -> Attack:
    failed = isinstance(result, Exception)
    granted = observation.labels is not None
    labels_from = "granted" if granted else "inferred"
    unfinished = partial(
        Attack,
        attack=attacker.name,
        adaptive=case.adaptive,
        update=case.title,
        round=case.sighting.order.round,
        client=case.sighting.order.client,
        summed=case.sighting.summed,
        participant=case.sighting.participant,
        batch_size=case.sighting.samples,
        **_hashes(case.sighting),
        manipulated=case.sighting.manipulated is not None,
        broadcaster=observation.broadcaster,
        settings=_settings(case, attacker),
        granted=_granted(observation),
        labels_from=labels_from,
        update_distance=_distance(case),
        objective=None if failed else getattr(result, "objective", None),
        gave_up=str(result) if failed else None,
        notes=[f"the attack gave up: {result}"] if failed else list(result.notes),
        seconds=seconds,
    )
    if failed:
        return unfinished(**_UNSCORED, images=None, truth=None)
    scores = _scores(case, result, attacker, granted=granted)
    if granted:
        scores["labels"] = None  # granted labels do not count as recovered
    if case.sighting.manipulated is not None and scores["psnr"]:
        found = [value is not None and value > EXACT for value in scores["psnr"]]
        scores["recovered"] = sum(found) / len(found)
    images, truth = _pictures(case, result, attacker, folder, labels_from)
    return unfinished(
        **scores,
        images=images,
        truth=truth,
        **_names(case, result),
        **_transcript(case, result, attacker),
        **_reads(case, result, attacker, granted=granted),
        **_search(case, result, attacker, folder, images),
    )


def _hashes(sighting: Sighting) -> dict[str, Any]:
    """Return what tells this update from others: its model, and its samples where an audit revealed them."""
    found: dict[str, Any] = {"model": short_hash([*sighting.weights.values(), *sighting.buffers.values()])}
    if sighting.truth is not None:
        found["samples"] = [short_hash([sample]) for sample in sighting.truth.inputs]
    return found


def _settings(case: _Case, attacker: Attacker) -> dict[str, Any]:
    form = {"adaptive": case.adaptive} if "adaptive" in attacker.settings else {}
    return {**attacker.settings, **form}


def _distance(case: _Case) -> float | None:
    """Return the distance of the attacked update from the raw one, relative to its norm; None if unknown."""
    raw, sent = case.sighting.raw, case.sighting.update
    if case.undefended or raw is None:
        return 0.0 if case.undefended else None

    def square(update: Update) -> float:
        return sum(float(tensor.double().square().sum()) for tensor in update.values())

    away = square({name: tensor.to(raw[name].device) - raw[name] for name, tensor in sent.items()})
    return (away / whole) ** 0.5 if (whole := square(raw)) else None


def _search(case: _Case, result: Any, attacker: Attacker, folder: Path, images: str | None) -> dict[str, Any]:
    """Return the scored snapshots of a search, and the number of steps until it succeeded."""
    found = {"iterations": result.iterations} if hasattr(result, "iterations") else {}
    if images is None or not (trace := getattr(result, "trace", ())):
        return found
    truth = case.sighting.truth
    scores = [{}] * len(trace) if truth is None else attacker.score_trace(trace, truth)
    rows = [
        TracePoint(
            iteration=snapshot.iteration,
            objective=snapshot.objective,
            distance=snapshot.distance,
            layers=dict(snapshot.layers),
            **scored,
        )
        for snapshot, scored in zip(trace, scores, strict=True)
    ]
    close = (row.iteration for row in rows if row.mse is not None and row.mse < attacker.mse_below)
    picture = f"{images.removesuffix('.png')}-trace.png"
    shown = [s.images if truth is None else attacker.aligned(s, truth) for s in trace]
    save_images(torch.stack([one[0] for one in shown]), folder / picture)
    return found | {"iterations_mse": next(close, None), "trace": rows, "trace_images": picture}


def _transcript(case: _Case, result: Any, attacker: Attacker) -> dict[str, Any]:
    """Return the recovered sequence and the true one, as text where tokens can be spelled."""
    if not hasattr(result, "tokens"):
        return {}
    truth = case.sighting.truth
    true = None if truth is None else truth.tokens()[0].tolist()

    def text(tokens: Sequence[int] | None) -> str | None:
        if tokens is None:
            return None
        return attacker.spell(tokens) if attacker.spell is not None else " ".join(map(str, tokens))

    return {
        "transcript": Transcript(found=text(list(result.tokens)), true=text(true)),
        "variables": getattr(result, "variables", None),
        "rule": getattr(result, "rule", None),
    }


def _reads(case: _Case, result: Any, attacker: Attacker, *, granted: bool) -> dict[str, Any]:
    """Return the tokens that a search reads after some of its steps, and at its end."""
    if not getattr(result, "history", None):
        return {}

    def named(tokens: Sequence[int]) -> list[str]:
        return [attacker.pieces[token] if attacker.pieces else str(token) for token in tokens]

    def right(tokens: Sequence[int]) -> float | None:
        if case.sighting.truth is None:
            return None
        scores = attacker.score(replace(result, tokens=tokens), case.sighting.truth, granted=granted)
        return cast(float | None, scores["tokens"]["accuracy"])

    true, told = None, None
    if case.sighting.truth is not None:
        tokens, labels = case.sighting.truth.tokens()
        true, told = named(tokens.tolist()), labels.tolist()
    reads = [*result.history.items(), (None, result.tokens)]
    return {
        "tokens_by_iteration": Sentence(
            true=true,
            masked=told,
            reads=[
                Read(iteration=step, tokens=named(tokens), accuracy=right(tokens)) for step, tokens in reads
            ],
        )
    }


def _names(case: _Case, result: Any) -> dict[str, Any]:
    """Return the classes that an attack on labels alone named, and those of the truth."""
    if not hasattr(result, "counts"):
        return {}
    truth, counts = case.sighting.truth, result.counts
    true = None if truth is None else sorted(truth.labels[truth.labels >= 0].tolist())
    return {
        "found_labels": result.labels.tolist(),
        "label_counts": None if counts is None else counts.tolist(),
        "true_labels": true,
        "rank": result.rank,
        "rule": result.rule,
        "rank_error": None if true is None or result.rank is None else abs(result.rank - len(true)),
    }


def _granted(observation: Observation) -> dict[str, Any]:
    """Describe the attacker's knowledge beside the model and the update."""
    return (
        {
            "labels": observation.labels is not None,
            "batch_size": observation.batch_size,
            "mode": "train" if observation.training else "eval",
            "normalisation": observation.mean is not None,
            "BatchNorm statistics": observation.buffers is not None,
            "local_steps": observation.local_steps,
            "lr": observation.lr,
            "history": len(observation.history) or None,
            "same_batch": observation.same_batch,
            "threat model": f"{observation.threat.name} ({observation.threat})",
        }
        | ({} if observation.length is None else {"length": observation.length})
        | ({} if observation.known is None else {"images": len(observation.known.images)})
    )


def _scores(case: _Case, result: Any, attacker: Attacker, *, granted: bool) -> dict[str, Any]:
    """Score against the client's own samples and, where the defense trained on others, against those too."""
    truth = case.sighting.truth
    if truth is None:
        return dict(_UNSCORED)
    scores = _UNSCORED | dict(attacker.score(result, truth, granted=granted))
    # of tokens: in their place, all of them, edits, and edits of words
    scores |= {f"token_{name}": value for name, value in (scores.pop("tokens", None) or {}).items()}
    if truth.trained is not None and len(getattr(result, "images", ())) and not case.undefended:
        against = attacker.score(result, Truth(truth.trained, truth.labels))
        scores["trained"] = Trained(**against, images=f"{case.stem}-trained.png")
    return scores


def _pictures(
    case: _Case, result: Any, attacker: Attacker, folder: Path, labels_from: str
) -> tuple[str | None, str | None]:
    """Save the recovered images, in the truth's order where it is known, and the truth; return the paths."""
    if not hasattr(result, "images") or not len(result.images):
        return None, None
    form = ("-adaptive" if case.adaptive else "") + ("" if labels_from == "granted" else f"-{labels_from}")
    path, original = f"{case.stem}-{attacker.name}{form}-{case.title}{attacker.mark}.png", None
    shown, truth = result.images, case.sighting.truth
    if truth is not None:
        shown = attacker.aligned(result, truth)
        original = f"{case.stem}-truth.png"
        save_images(truth.inputs, folder / original)
        if truth.trained is not None:
            save_images(truth.trained, folder / f"{case.stem}-trained.png")
    save_images(shown, folder / path)
    return path, original
