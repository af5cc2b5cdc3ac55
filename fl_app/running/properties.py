"""Property inference on a run: example updates of public samples, the attack, and its score."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fl_app.adversary.attacker import Attacker
from fl_app.adversary.passive import Public, Sighting, observe
from fl_app.console.progress import track
from fl_app.data.dataset import Samples
from fl_app.data.traits import Trait
from fl_app.defenses import Defense
from fl_app.privacy.member_bound import exact_interval
from fl_app.results import PropertyAnswer, PropertyInference
from fl_app.running.attack import NotAttacked
from fl_app.running.result import Results
from fl_app.seeding import SERVER, generator_for
from fl_app.training import Job, LocalData, Rules, Trainer
from fl_app.types import PropertyQuestion, RoundContext, Update

logger = logging.getLogger(__name__)

PROPERTY = "property"
_GIVES_UP = (ValueError, RuntimeError, IndexError, ArithmeticError, MemoryError)


@dataclass(frozen=True)
class Rehearsal:
    """A client's work on public samples: training, and its defense."""

    trainer: Trainer
    defense: Defense
    data: LocalData
    """Public samples, as a client would have them."""

    def update(self, model: nn.Module, rows: Tensor, order: Any, *, defended: bool, seed: int) -> Update:
        """Return the update that a client with the samples at ``rows`` would send."""
        return self.update_of(model, self.data.samples.take(rows), order, defended=defended, seed=seed)

    def update_of(
        self, model: nn.Module, samples: Samples, order: Any, *, defended: bool, seed: int
    ) -> Update:
        """Return the update that a client with ``samples`` would send."""
        generator = generator_for(seed, order.round, SERVER, "rehearsal")
        rules = self.defense.rules if defended else Rules()
        data = replace(self.data, samples=samples)
        job = Job(order.round, order.lr, generator, rules, batch_size=len(samples))
        update = self.trainer(model, data, job).update
        if not defended:
            return update
        weights = {name: p.detach() for name, p in model.named_parameters()}
        context = RoundContext(order.round, 0, generator, weights=weights)
        transform = self.defense.transform
        sent, _ = transform.apply(update, transform.init(update), context)
        return sent


def infer_properties(
    sightings: list[Sighting],
    attacker: Attacker,
    template: nn.Module,
    public: Public,
    results: Results,
    *,
    rehearsal: Rehearsal,
    trait: Trait,
) -> None:
    """Attack every sighting in every form, and add a row for each form to the result."""
    if not sightings:
        raise NotAttacked("attack: no attacked client answered in an attacked round, so nothing was measured")
    for adaptive, attack in attacker.forms.items():
        if not public.defense and adaptive and len(attacker.forms) > 1:
            continue  # nothing to adapt to
        start = time.perf_counter()
        row = PropertyInference(
            trait=trait.name,
            holds=trait.holds,
            adaptive=adaptive,
            examples=attacker.settings["examples"],
            settings={**attacker.settings, "adaptive": adaptive},
        )
        title = f"{attacker.name}{', adaptive' if adaptive else ''}"
        try:
            with track(title, len(sightings)) as advance:
                for number, sighting in enumerate(sightings, 1):
                    _ask(sighting, attack, template, public, row, rehearsal, trait)
                    advance(number, "")
            row = scored(row)
        except _GIVES_UP as error:
            logger.warning("property: %s", error)
            row.gave_up = str(error)
        row.seconds = time.perf_counter() - start
        results.run.properties = [*(results.run.properties or []), row]
        results.save()
    gave_up = [row.gave_up for row in results.run.properties or []]
    if gave_up and None not in gave_up:
        raise NotAttacked(f"attack: it gave up: {gave_up[0]}")


def scored(row: PropertyInference) -> PropertyInference:
    """Return the row with its rate over the answers whose truth is known."""
    known = [answer for answer in row.answers if answer.truth is not None]
    if known:
        row.asked = len(known)
        row.right = sum((answer.score > 0) == answer.truth for answer in known)
        row.rate = row.right / row.asked
        row.rate_low, row.rate_high = exact_interval(row.right, row.asked)
        yes = sum(bool(answer.truth) for answer in known) / len(known)
        row.baseline = max(yes, 1 - yes)
        if row.baseline == 1:
            row.notes.append("every update had the same answer: the attack could not show anything")
    return row


def _ask(
    sighting: Sighting,
    attack: Any,
    template: nn.Module,
    public: Public,
    row: PropertyInference,
    rehearsal: Rehearsal,
    trait: Trait,
) -> None:
    seen = observe(sighting, template, public, grant_labels=False)
    model = seen.model.train(public.training)
    count, order = max(1, sighting.samples or 1), sighting.order
    batches = draw_batches(rehearsal.data.samples, trait, count, row.examples, order.round)
    examples = [
        rehearsal.update(model, rows, order, defended=row.adaptive or not public.defense, seed=number)
        for number, rows in enumerate(batches)
    ]
    samples = rehearsal.data.samples
    answers = torch.tensor([trait.of_batch(samples.inputs[rows], samples.labels[rows]) for rows in batches])
    guess = attack(PropertyQuestion(seen, examples, answers))
    truth = None
    if sighting.truth is not None:
        truth = trait.of_batch(sighting.truth.inputs, sighting.truth.labels)
    row.answers.append(PropertyAnswer(round=order.round, client=order.client, score=guess.score, truth=truth))
    row.expected = guess.expected if row.expected is None else (row.expected + guess.expected) / 2


def draw_batches(samples: Samples, trait: Trait, size: int, count: int, seed: int) -> list[Tensor]:
    """Return ``count`` batches of ``size`` public samples, every second one with the property."""
    generator = generator_for(seed, 0, SERVER, "property")
    has = trait.has(samples.inputs, samples.labels)
    inside, outside = torch.nonzero(has).flatten(), torch.nonzero(~has).flatten()
    if not len(inside) or not len(outside):
        raise ValueError(
            f"property: public samples must have and lack {trait.name}, {len(inside)} of {len(samples)} have"
        )

    def some(rows: Tensor, number: int) -> Tensor:
        return rows[torch.randint(len(rows), (number,), generator=generator)]

    found = []
    for number in range(count):
        if number % 2:
            least, most = (1, size) if trait.holds == "any" else (size // 2 + 1, size)
        else:
            least, most = (0, 0) if trait.holds == "any" else (0, size // 2)
        with_it = int(torch.randint(least, most + 1, (1,), generator=generator))
        rows = torch.cat([some(inside, with_it), some(outside, size - with_it)])
        found.append(rows[torch.randperm(size, generator=generator)])
    return found
