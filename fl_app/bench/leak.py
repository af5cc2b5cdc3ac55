"""Attacks on a defense: a federation is watched once, and its updates are attacked in parts.

Every client has images of its own: one, or another for every round. Whatever is done is stored, so that a
bench that was cut short goes on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from hydra.utils import get_method
from torch import Tensor

from fl_app.adversary.passive import Sighting, observe
from fl_app.adversary.sightings import load_sightings
from fl_app.bench.criterion import BenchAttacker, BenchModel, Criterion, View
from fl_app.bench.effort import Effort
from fl_app.bench.subject import Subject
from fl_app.config.build import ServerParts, server_parts
from fl_app.config.compose import compose, join_overrides, quote
from fl_app.config.trust import WHOLE
from fl_app.experiments.sweep import Cell, run_sweep
from fl_app.results import load_run, write_json
from fl_app.storage.fingerprint import hash_json, hash_tensors
from fl_app.types import Observation

MOST_SILENT = 80
"""Rounds that a bench waits for clients to speak."""
_WAITS = (1, 4, 8)
"""Multiples of a view's rounds that are tried until clients have spoken in enough of them."""


class NotMeasured(Exception):
    """A condition that cannot be measured; the message says why."""


@dataclass(frozen=True)
class Watched:
    """The updates of one federation."""

    sightings: Sequence[Sighting]
    speaking: tuple[int, ...]
    """Rounds in which clients sent anything but zeros."""
    labels: float | None
    mark: str
    """Hash of the settings of the federation and of the images."""

    def at(self, number: int) -> list[Sighting]:
        """Return all clients' sightings of a round, by client."""
        return sorted((s for s in self.sightings if s.order.round == number), key=lambda s: s.order.client)


@dataclass(frozen=True)
class LeakBench:
    """Attacks on one defense."""

    subject: Subject
    criterion: Criterion
    effort: Effort
    folder: Path
    """Of everything that is stored; shared by all defenses."""
    sources: dict[str, list[str]]
    """Overrides of each data set."""

    def watch(self, model: BenchModel, images_of: str, view: View) -> Watched:
        """Return the updates of a federation whose clients spoke in enough rounds."""
        speaking: tuple[int, ...] = ()
        for factor in _WAITS if view.rounds > 1 else (1, 10, MOST_SILENT):
            rounds = min(view.rounds * factor, MOST_SILENT)
            folder = self._run(self._federation(model, images_of, view, rounds), "federations")
            sightings, _, _ = load_sightings(folder)
            loud = {s.order.round for s in sightings if any(bool(t.any()) for t in s.update.values())}
            speaking = tuple(sorted(loud))
            if len(speaking) >= view.rounds:
                shown = [s.truth.inputs for s in sightings if s.truth is not None]
                images = hash_tensors(shown)
                return Watched(sightings, speaking, _labels(folder, speaking[0]), f"{folder.name}/{images}")
        raise NotMeasured(
            f"in {rounds} rounds clients sent {len(speaking)} updates that are not empty; "
            f"expected {view.rounds}"
        )

    def attack(
        self,
        watched: Watched,
        model: BenchModel,
        images_of: str,
        view: View,
        attacker: BenchAttacker,
        chunk: int,
        on_step: Callable[[int, int, float], None] | None = None,
    ) -> dict[str, Any]:
        """Return the scores of one attacker on one part of the images; stored ones are read."""
        path = self._part(watched, view, attacker, chunk)
        if path.is_file():
            stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return stored
        parts = self._parts(model, images_of, view, attacker)
        last = watched.speaking[view.rounds - 1]
        at = slice(chunk * self.effort.chunk, (chunk + 1) * self.effort.chunk)
        targets = watched.at(last)[at]
        observations = [self._observe(watched, target, parts) for target in targets]
        if parts.attacker is None:
            raise NotMeasured(f"{attacker.name} is no attacker")
        attack: Any = parts.attacker.forms[max(parts.attacker.forms)]
        results = attack.many(observations, on_step=on_step)
        shown = [
            (result.images.cpu().float(), target.truth.inputs.float())
            for result, target in zip(results, targets, strict=True)
            if target.truth is not None
        ]
        scores = {
            "ssim": [_best(get_method("attacks.metrics.ssim"), found, true) for found, true in shown],
            "psnr": [_best(get_method("attacks.metrics.psnr"), found, true) for found, true in shown],
            "notes": sorted({note for result in results for note in result.notes}),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, scores)
        return scores

    def is_attacked(self, watched: Watched, view: View, attacker: BenchAttacker, chunk: int) -> bool:
        """Return whether a part is stored."""
        return self._part(watched, view, attacker, chunk).is_file()

    def grey(self, watched: Watched, view: View) -> tuple[float, str]:
        """Return the mean SSIM of a mid-grey image, and the hash of the images."""
        last = watched.speaking[view.rounds - 1]
        true = [s.truth.inputs[:1].float() for s in watched.at(last) if s.truth is not None]
        images = torch.cat(true)[: self.effort.images]
        ssim = get_method("attacks.metrics.ssim")
        return float(ssim(torch.full_like(images, 0.5), images).mean()), hash_tensors([images])

    @property
    def chunks(self) -> int:
        """Number of parts of a condition."""
        return -(-self.effort.images // self.effort.chunk)

    def _observe(self, watched: Watched, target: Sighting, parts: ServerParts) -> Observation:
        past = [
            s
            for s in watched.sightings
            if s.order.client == target.order.client and s.order.round < target.order.round
        ]
        history = [
            observe(s, parts.model, parts.public, grant_labels=True)
            for s in sorted(past, key=lambda s: s.order.round)
        ]
        seen = observe(target, parts.model, parts.public, grant_labels=True, history=history)
        if parts.attacker is None:
            return seen
        return replace(seen, known=parts.attacker.known, defend=parts.attacker.defend)

    def _parts(self, model: BenchModel, images_of: str, view: View, attacker: BenchAttacker) -> ServerParts:
        return _built(join_overrides(self._attacked(model, images_of, view, attacker)))

    def _attacked(self, model: BenchModel, images_of: str, view: View, attacker: BenchAttacker) -> list[str]:
        federation = self._federation(model, images_of, view, view.rounds)
        kept = [o for o in federation if not o.startswith(("attack", "+attack"))]
        effort = self.effort
        own = [
            f"attack.steps={effort.steps}",
            f"attack.restarts={effort.restarts}",
            "attack.grant.labels=true",
        ]
        return [*kept, *attacker.overrides, *own, f"attack.rehearsals={effort.rehearsals}"]

    def _federation(self, model: BenchModel, images_of: str, view: View, rounds: int) -> list[str]:
        """Return the overrides of a run in which every client is watched in every round."""
        new = view.stream == "new"
        # a client that has fewer images than are asked for is known to compute on all that it has
        batch = 1 if new else 2
        init = [] if model.trained_rounds == 0 else [f"init={quote(self._trained(model, images_of))}"]
        return [
            *self.sources[images_of],
            f"model={model.model}",
            *self.subject.overrides,
            *init,
            *("attack=bias_labels", "attack.rounds=all", "attack.clients=all"),
            "+attack.known_images=held_out",  # so that no client has them
            f"public.samples={self.effort.public_images}",
            f"clients={self.effort.images}",
            *("partition=fixed", f"partition.samples={rounds if new else 1}"),
            *(f"batch_size={batch}", f"audit.batch_size={batch}", "audit.contrast=false"),
            *(f"rounds={rounds}", f"evaluate_every={rounds}", f"lr={self.criterion.accuracy.lr}"),
            *(f"seed={self.effort.seed}", "threads=1", "checkpoint=false"),
        ]

    def _trained(self, model: BenchModel, images_of: str) -> Path:
        rule = self.criterion.accuracy
        folder = self._run(
            [
                *self.sources[images_of],
                *(f"model={model.model}", "defense=none", "attack=none", f"clients={rule.clients}"),
                *(f"batch_size={rule.batch_size}", f"rounds={model.trained_rounds}", f"lr={rule.lr}"),
                *(f"evaluate_every={model.trained_rounds}", f"seed={self.effort.seed}", "threads=1"),
            ],
            "trained",
        )
        return folder / "model.safetensors"

    def _run(self, overrides: list[str], kind: str) -> Path:
        return run_cell([*overrides, "baseline=false"], self.folder / kind)

    def _part(self, watched: Watched, view: View, attacker: BenchAttacker, chunk: int) -> Path:
        effort = self.effort
        facts = [
            attacks_hash(),
            watched.mark,
            view.name,
            attacker.name,
            list(attacker.overrides),
            effort.steps,
        ]
        facts += [effort.restarts, effort.chunk, effort.public_images, effort.rehearsals, chunk]
        return self.folder / "attacked" / f"{view.name}-{attacker.name}-{chunk}-{hash_json(facts)[:12]}.json"


@lru_cache(maxsize=1)
def attacks_hash() -> str:
    """Return a hash of the attacks' code: what other code recovered is no result of this one."""
    spec = find_spec("attacks")
    root = Path(next(iter((spec and spec.submodule_search_locations) or ["."])))
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def run_cell(overrides: list[str], folder: Path) -> Path:
    """Run one cell, if it is not finished, and return its folder; a run that fails is not measured."""
    end = run_sweep([Cell(overrides, folder, "bench")], lambda line: None)
    if end.reasons:
        raise NotMeasured(next(iter(end.reasons.values())))
    return end.finished[0]


_PARTS: dict[str, ServerParts] = {}


def _built(overrides: str) -> ServerParts:
    """Return the parts of a run; the last ones are kept, since they hold the attacker's images."""
    if overrides not in _PARTS:
        compose(overrides)
        _PARTS.clear()
        _PARTS[overrides] = server_parts(overrides, WHOLE)
    return _PARTS[overrides]


def _best(measure: Callable[[Tensor, Tensor], Tensor], found: Tensor, true: Tensor) -> float:
    """Return the score of the recovered image that is most like the true one."""
    count = len(found)
    return float(measure(found, true[:1].expand(count, *true.shape[1:])).max())


def _labels(folder: Path, number: int) -> float | None:
    """Return the share of clients whose label was told by the update of a round."""
    exact = [
        float(entry.label_scores["exact"])
        for entry in load_run(folder).attacks
        if entry.round == number and "exact" in entry.label_scores
    ]
    return sum(exact) / len(exact) if exact else None
