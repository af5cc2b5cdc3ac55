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
        """Return the sightings of a round, by client; under masks, that of the sum."""
        return sorted((s for s in self.sightings if s.order.round == number), key=lambda s: s.order.client)

    def of(self, target: Sighting) -> list[Sighting]:
        """Return the sightings of a client up to ``target``, oldest first."""
        same = [s for s in self.sightings if s.order.client == target.order.client]
        return sorted((s for s in same if s.order.round <= target.order.round), key=lambda s: s.order.round)


@dataclass(frozen=True)
class Scores:
    """Scores of one attacker on one part of the images: rows of rounds, columns of images."""

    ssim: list[list[float]]
    psnr: list[list[float]]
    notes: list[str]


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

    @property
    def chunks(self) -> int:
        """Number of parts of a condition."""
        return -(-self.effort.images // self.effort.chunk)

    def watch(self, model: BenchModel, images_of: str, view: View, chunk: int) -> Watched:
        """Return the updates of a part's federation, whose clients spoke in enough rounds."""
        speaking: tuple[int, ...] = ()
        for factor in (1, 4, 8) if view.rounds > 1 else (1, 10, MOST_SILENT):
            rounds = min(view.rounds * factor, MOST_SILENT)
            folder = self._run(self._federation(model, images_of, view, rounds, chunk), "federations")
            seen = [s for s in load_sightings(folder)[0] if bool(s.summed) is self.subject.summed]
            loud = {s.order.round for s in seen if any(bool(t.any()) for t in s.update.values())}
            speaking = tuple(sorted(loud))
            if len(speaking) >= view.rounds:
                shown = [s.truth.inputs for s in seen if s.truth is not None]
                images = hash_tensors(shown)
                return Watched(seen, speaking, _labels(folder, speaking[0]), f"{folder.name}/{images}")
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
    ) -> Scores:
        """Return the scores of one attacker on one part of the images; stored ones are read."""
        path = self._part(watched, view, attacker, chunk)
        if path.is_file():
            return Scores(**json.loads(path.read_text(encoding="utf-8")))
        parts = _built(join_overrides(self._attacked(model, images_of, view, attacker, chunk)))
        if parts.attacker is None:
            raise NotMeasured(f"{attacker.name} is no attacker")
        attack: Any = parts.attacker.forms[max(parts.attacker.forms)]
        targets = self._targets(watched, view, chunk)
        results = attack.many([self._observe(watched, t, parts, view) for t in targets], on_step=on_step)
        found = [self._score(result, watched.of(t), view) for result, t in zip(results, targets, strict=True)]
        scores = Scores(
            ssim=[[v for row in rows for v in row] for rows in zip(*(s for s, _ in found), strict=True)],
            psnr=[[v for row in rows for v in row] for rows in zip(*(p for _, p in found), strict=True)],
            notes=sorted({note for result in results for note in result.notes}),
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, vars(scores))
        return scores

    def is_attacked(self, watched: Watched, view: View, attacker: BenchAttacker, chunk: int) -> bool:
        """Return whether a part is stored."""
        return self._part(watched, view, attacker, chunk).is_file()

    def images(self, watched: Watched, view: View, chunk: int) -> Tensor:
        """Return the true images of a part, of the last round that is attacked."""
        targets = self._targets(watched, view, chunk)
        return torch.cat([s.truth.inputs.float() for s in targets if s.truth is not None])

    def grey(self, images: Tensor) -> float:
        """Return the mean SSIM of a mid-grey image."""
        ssim = get_method("attacks.metrics.ssim")
        return float(ssim(torch.full_like(images, 0.5), images).mean())

    def _targets(self, watched: Watched, view: View, chunk: int) -> list[Sighting]:
        last = watched.at(watched.speaking[view.rounds - 1])
        if self.subject.summed:
            return last
        return last[chunk * self.effort.chunk : (chunk + 1) * self.effort.chunk]

    def _observe(self, watched: Watched, target: Sighting, parts: ServerParts, view: View) -> Observation:
        *history, seen = [self._see(s, parts, view) for s in watched.of(target)]
        seen = replace(seen, history=tuple(history))
        attacker = parts.attacker
        if attacker is None:
            return seen
        # one update alone cannot be defended as a sum
        defend = None if self.subject.summed else attacker.defend
        return replace(seen, known=attacker.known, defend=defend)

    def _see(self, sighting: Sighting, parts: ServerParts, view: View) -> Observation:
        """Return the most that a server may know of a round."""
        seen = observe(sighting, parts.model, parts.public, grant_labels=True)
        seen = replace(seen, same_batch=view.stream == "fixed")
        if seen.local_steps == 1 and seen.lr:
            # one step of SGD is a gradient
            seen = replace(
                seen, update={n: -t / seen.lr for n, t in seen.update.items()}, local_steps=None, lr=None
            )
        if self.subject.summed and seen.defense is not None:
            # a mean of signs has many levels
            traces = tuple(replace(trace, signs=False) for trace in seen.defense)
            seen = replace(seen, defense=traces)
        return seen

    def _score(self, result: Any, seen: Sequence[Sighting], view: View) -> tuple[list[list[float]], ...]:
        """Return SSIM and PSNR by round and image; of a fixed image, as of one round."""
        rounds = [*getattr(result, "earlier", ()), result.images]
        truths = [s.truth.inputs.float() for s in seen if s.truth is not None][-len(rounds) :]
        ssim, psnr = [], []
        for found, true in zip(rounds, truths, strict=True):
            images = found.detach().cpu().float()
            images = images[get_method("attacks.metrics.match")(images, true)]
            ssim.append(get_method("attacks.metrics.ssim")(images, true).tolist())
            psnr.append(get_method("attacks.metrics.psnr")(images, true).tolist())
        return ssim, psnr

    def _attacked(
        self, model: BenchModel, images_of: str, view: View, attacker: BenchAttacker, chunk: int
    ) -> list[str]:
        federation = self._federation(model, images_of, view, view.rounds, chunk)
        kept = [o for o in federation if not o.startswith(("attack", "+attack"))]
        effort = self.effort
        return [
            *kept,
            *attacker.overrides,
            *(f"attack.steps={effort.steps}", f"attack.restarts={effort.restarts}"),
            *("attack.grant.labels=true", f"attack.rehearsals={effort.rehearsals}"),
        ]

    def _federation(
        self, model: BenchModel, images_of: str, view: View, rounds: int, chunk: int
    ) -> list[str]:
        """Return the overrides of a run in which every client is watched in every round.

        Clients whose updates are summed form a federation for each part.
        """
        new, summed = view.stream == "new", self.subject.summed
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
            f"clients={self.effort.chunk if summed else self.effort.images}",
            *("partition=fixed", f"partition.samples={rounds if new else 1}"),
            *(f"batch_size={batch}", f"audit.batch_size={batch}", "audit.contrast=false"),
            *(f"rounds={rounds}", f"evaluate_every={rounds}", f"lr={self.criterion.accuracy.lr}"),
            *(f"seed={self.effort.seed + (chunk if summed else 0)}", "threads=1", "checkpoint=false"),
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
        code = f"-{self.subject.code}" if self.subject.code and kind != "trained" else ""
        return run_cell([*overrides, "baseline=false"], self.folder / f"{kind}{code}")

    def _part(self, watched: Watched, view: View, attacker: BenchAttacker, chunk: int) -> Path:
        effort = self.effort
        facts: list[Any] = [attacks_hash(), watched.mark, view.name, attacker.name, list(attacker.overrides)]
        facts += [effort.steps, effort.restarts, effort.chunk, effort.public_images, effort.rehearsals, chunk]
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


def _labels(folder: Path, number: int) -> float | None:
    """Return the share of clients whose label was told by the update of a round."""
    exact = [
        float(entry.label_scores["exact"])
        for entry in load_run(folder).attacks
        if entry.round == number and "exact" in entry.label_scores
    ]
    return sum(exact) / len(exact) if exact else None
