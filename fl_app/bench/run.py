"""One bench: the steps of the criterion, most decisive first, within a time; a card whenever it stops."""

from __future__ import annotations

import json
import platform
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from fl_app import __version__
from fl_app.bench.card import Accuracy, Attacked, Bytes, Card, Condition, write_card
from fl_app.bench.criterion import (
    BenchAttacker,
    BenchModel,
    Criterion,
    View,
    attackers,
    criterion,
    criterion_hash,
)
from fl_app.bench.effort import Effort
from fl_app.bench.judge import attacked, judge, judge_accuracy, judge_bytes, judge_condition
from fl_app.bench.leak import LeakBench, NotMeasured, Scores, Watched, attacks_hash
from fl_app.bench.sources import FALLBACK, overrides_of
from fl_app.bench.subject import Subject
from fl_app.bench.training import TrainingBench, final_accuracy, mean_bytes
from fl_app.results import Run, write_json
from fl_app.storage.fingerprint import hash_tensors

_TIMES = "minutes.json"
_LIBRARIES = ("torch", "flwr", "numpy", "scipy")

Say = Callable[[str], None]


class OutOfTime(Exception):
    """No time is left for the next step."""


@dataclass
class Clock:
    """The time budget of one call."""

    minutes: float
    began: float = field(default_factory=time.monotonic)
    longest: float = 0.0
    """Seconds of the longest step so far: the next one is begun only if as many are left."""

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began

    def begin(self, expected: float = 0.0) -> None:
        """Raise `OutOfTime` if a step that takes ``expected`` seconds would not end in time."""
        if self.spent + expected > 60 * self.minutes:
            raise OutOfTime


@dataclass(frozen=True)
class Place:
    """Where attacks are tried."""

    model: BenchModel
    images_of: str
    view: View

    @property
    def name(self) -> str:
        """Name in progress and errors."""
        return f"{self.model.name}, {self.images_of}, {self.view.name}"


@dataclass
class Bench:
    """Bench of one defense; whatever it has measured is stored in ``into`` and not measured again."""

    subject: Subject
    effort: Effort
    into: Path
    minutes: float
    say: Say
    command: Sequence[str] = ()
    tuning: bool = False
    only: Sequence[str] = ()
    """Views, `bytes` or `accuracy`: nothing else is measured now. Empty: everything."""
    rule: Criterion = field(default_factory=criterion)

    def __post_init__(self) -> None:
        self._clock = Clock(self.minutes)
        self._sources, self._lacking = self._found()
        self._conditions: dict[str, Condition] = {}
        self._runs: dict[tuple[str, int], Run] = {}
        self._limit: Run | None = None
        self._left_out: list[str] = []

    @property
    def folder(self) -> Path:
        """Folder of the card."""
        kept = "".join(c if c.isalnum() or c in "-_.=" else "-" for c in self.subject.name)
        return self.into / "cards" / f"{kept}-{self.effort.size}{'-tuning' if self.tuning else ''}"

    def run(self) -> Card:
        """Measure within the time, and write the card, also if it is interrupted."""
        try:
            self._measure()
        except OutOfTime:
            self.say("the time is up; the same command goes on with what is left")
        finally:
            card = self._card()
            self.folder.mkdir(parents=True, exist_ok=True)
            write_card(self.folder, card)
        return card

    def _measure(self) -> None:
        every = list(self._steps())
        steps = [
            (name, step) for name, step in every if not self.only or name.rpartition(", ")[2] in self.only
        ]
        self._left_out = [name for name, _ in every if name not in {kept for kept, _ in steps}]
        for number, (name, step) in enumerate(steps, 1):
            began = time.monotonic()
            try:
                step()
            except NotMeasured as reason:
                self.say(f"{number} of {len(steps)}: {name}: not measured: {reason}")
                continue
            except OutOfTime:
                self._left_out += [left for left, _ in steps[number - 1 :]]
                raise
            took = time.monotonic() - began
            self.say(f"{number} of {len(steps)}: {name}: {self._news(name)}{took:.0f} s")

    def _steps(self) -> Iterator[tuple[str, Callable[[], None]]]:
        places = [
            Place(model, images_of, view)
            for model in self.effort.models
            for images_of in self._sources
            for view in self.effort.views
        ]
        # the first condition tells most; then what training costs, since a defense may fall there
        for place in places[:1]:
            yield place.name, lambda place=place: self._attack(place)  # type: ignore[misc]
        yield "bytes", self._count
        for place in places[1 : len(self.effort.views)]:
            yield place.name, lambda place=place: self._attack(place)  # type: ignore[misc]
        yield "accuracy", self._train
        for place in places[len(self.effort.views) :]:
            yield place.name, lambda place=place: self._attack(place)  # type: ignore[misc]

    def _news(self, name: str) -> str:
        found = self._conditions.get(name)
        return "" if found is None else f"{found.verdict}: {found.why}; "

    def _attack(self, place: Place) -> None:
        bench = LeakBench(self.subject, self.rule, self.effort, self.into, self._sources)
        condition = Condition(model=place.model.name, images_of=place.images_of, view=place.view.name)
        where = place.model, place.images_of, place.view
        watched: list[Watched] = []
        wanted = attackers(place.view.name)
        try:
            for chunk in range(bench.chunks if self.subject.summed else 1):
                self._clock.begin()
                watched.append(bench.watch(*where, chunk))
            # sums have a federation for each part, and other updates one for all
            parts = watched if self.subject.summed else watched * bench.chunks
            images = [bench.images(one, place.view, chunk) for chunk, one in enumerate(parts)]
            told = [one.labels for one in watched if one.labels is not None]
            condition = condition.model_copy(
                update={
                    "steps": self.effort.steps,
                    "restarts": self.effort.restarts,
                    "grey": bench.grey(torch.cat(images)),
                    "images_hash": hash_tensors(images),
                    "first_round": watched[0].speaking[0],
                    "labels": sum(told) / len(told) if told else None,
                }
            )
            for attacker in wanted:
                condition.attacks.append(self._scores(bench, parts, place, attacker))
        except NotMeasured as reason:
            condition = condition.model_copy(update={"why": str(reason)})
            raise
        finally:
            sizes = [len(one.ssim) for one in condition.attacks]
            condition = condition.model_copy(update={"images": min(sizes, default=0)})
            self._conditions[place.name] = judge_condition(
                condition,
                self.rule,
                expected=[one.name for one in wanted],
                of_criterion=place.images_of in self.rule.leak.images_of and not self.tuning,
            )

    def _scores(
        self, bench: LeakBench, parts: Sequence[Watched], place: Place, attacker: BenchAttacker
    ) -> Attacked:
        found: list[Scores] = []
        where = place.model, place.images_of, place.view
        for chunk, watched in enumerate(parts):
            stored = bench.is_attacked(watched, place.view, attacker, chunk)
            if not stored:
                self._clock.begin(self._clock.longest)
            began = time.monotonic()
            found.append(bench.attack(watched, *where, attacker, chunk))
            if not stored:
                self._clock.longest = max(self._clock.longest, time.monotonic() - began)
        ssim = [[v for row in rows for v in row] for rows in zip(*(s.ssim for s in found), strict=True)]
        psnr = [[v for row in rows for v in row] for rows in zip(*(s.psnr for s in found), strict=True)]
        notes = sorted({note for scores in found for note in scores.notes})
        return attacked(attacker.name, attacker.knows, ssim, psnr, notes, self.rule)

    def _training(self) -> TrainingBench:
        wanted = self.rule.accuracy.images_of
        source = self._sources.get(wanted) or next(iter(self._sources.values()))
        return TrainingBench(self.subject, self.rule, self.effort, self.into, source)

    def _count(self) -> None:
        """Run the first pair of seeds that also counts the bytes, and the run whose uplink is the limit."""
        bench = self._training()
        self._clock.begin()
        self._limit = bench.run(bench.limit_cell())

    def _train(self) -> None:
        bench = self._training()
        longest = 0.0
        for name, seed, overrides in bench.cells():
            if not bench.is_done(overrides):
                self._clock.begin(longest)
            began = time.monotonic()
            self._runs[name, seed] = bench.run(overrides)
            longest = max(longest, time.monotonic() - began)

    def _found(self) -> tuple[dict[str, list[str]], list[str]]:
        found = {name: overrides_of(name) for name in self.effort.images_of}
        sources = {name: overrides for name, overrides in found.items() if overrides is not None}
        lacking = [name for name in found if name not in sources]
        if not sources:
            sources = {FALLBACK: overrides_of(FALLBACK) or []}
        return sources, lacking

    def _accuracy(self) -> Accuracy:
        accuracy = {seed: final_accuracy(r) for (name, seed), r in self._runs.items() if name != "none"}
        without = {seed: final_accuracy(r) for (name, seed), r in self._runs.items() if name == "none"}
        if self.subject.name == "none":
            accuracy = without
        return judge_accuracy(
            accuracy,
            without,
            self.effort.accuracy_rounds,
            self.rule,
            of_criterion=self.rule.accuracy.images_of in self._sources,
        )

    def _bytes(self) -> Bytes:
        own = [run for (name, _), run in self._runs.items() if name == self.subject.name]
        limit = None if self._limit is None else mean_bytes(self._limit)[0]
        if not own:
            return judge_bytes(None, None, limit, None)
        rows = [mean_bytes(run) for run in own]
        up, down = (sum(values) / len(values) for values in zip(*rows, strict=True))
        parameters = own[0].model.parameters
        dense = None if parameters is None else 4.0 * parameters * self.rule.accuracy.clients
        return judge_bytes(up, down, limit, dense)

    def _card(self) -> Card:
        card = Card(
            defense=self.subject.name,
            source=self.subject.source,
            overrides=list(self.subject.overrides),
            criterion_version=self.rule.version,
            criterion_hash=criterion_hash(),
            size=self.effort.size,
            seed=self.effort.seed,
            tuning=self.tuning,
            verdict="not measured",
            why="",
            conditions=list(self._conditions.values()),
            accuracy=self._accuracy(),
            bytes=self._bytes(),
            not_measured=self._not_measured(),
            versions=_versions(),
            minutes=self._minutes(),
            command=shlex.join(self.command),
        )
        verdict, why = judge(card)
        return card.model_copy(update={"verdict": verdict, "why": why})

    def _not_measured(self) -> list[str]:
        rule, effort = self.rule, self.effort
        found = [f"{name}: no such data in $FL_APP_DATA" for name in self._lacking]
        found += [f"images of {name}" for name in rule.leak.images_of if name not in effort.images_of]
        names = {model.name for model in effort.models}
        found += [f"model {model.name}" for model in rule.leak.models if model.name not in names]
        sizes = (("images", effort.images, rule.leak.images), ("steps", effort.steps, rule.leak.steps))
        sizes += (("restarts", effort.restarts, rule.leak.restarts),)  # type: ignore[assignment]
        sizes += (("rounds of training", effort.accuracy_rounds, rule.accuracy.rounds),)  # type: ignore[assignment]
        sizes += (("seeds", len(effort.accuracy_seeds), len(rule.accuracy.seeds)),)  # type: ignore[assignment]
        found += [f"{what}: {have} of {wanted}" for what, have, wanted in sizes if have < wanted]
        found += [f"{name}: no time, or not asked for" for name in self._left_out]
        found += [f"{name}: {c.why}" for name, c in self._conditions.items() if c.verdict == "not measured"]
        found.append("membership: see attack=membership")
        return found

    def _minutes(self) -> float:
        """Return the minutes of all calls, this one included."""
        path = self.folder / _TIMES
        before = 0.0
        if path.is_file():
            before = float(json.loads(path.read_text(encoding="utf-8"))["minutes"])
        total = before + self._clock.spent / 60
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(path, {"minutes": total})
        return round(total, 2)


def _versions() -> dict[str, str]:
    found = {"fl-app": __version__, "python": platform.python_version(), "attacks": attacks_hash()}
    for name in _LIBRARIES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
