"""Membership audit of a run: the attack on its candidates, scored against the clients' coins."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fl_app.adversary.attacker import Attacker
from fl_app.adversary.passive import SUM, PassiveServer, Public, Sighting, observe
from fl_app.console.progress import follow_search, track
from fl_app.data.dataset import Samples, pixels
from fl_app.defenses.ats import public_rewrites
from fl_app.models import manipulate_like
from fl_app.privacy.member_bound import member_bound, refutes
from fl_app.results import Membership
from fl_app.running.attack import NotAttacked
from fl_app.running.result import Results
from fl_app.running.shadows import Train
from fl_app.strategies import FedSGD
from fl_app.types import Inquiry, Observation, Records, Shadow

logger = logging.getLogger(__name__)

MEMBERS = "members"
MOST_PUBLIC = 500
"""Public records that stand for the population, at most."""
_GIVES_UP = (ValueError, RuntimeError, IndexError, ArithmeticError, MemoryError)


@dataclass(frozen=True)
class Promise:
    """Differential privacy of the run towards one observer."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class Party:
    """Candidates that the attacker compares with the same messages."""

    candidates: Records
    members: Tensor
    sightings: Sequence[Sighting]
    rows: Tensor
    """Their places among all candidates."""


def infer_members(
    auditor: PassiveServer,
    attacker: Attacker,
    template: nn.Module,
    public: Public,
    results: Results,
    *,
    known: Samples,
    train_shadows: Train | None,
    promise: Promise | None,
) -> None:
    """Attack the candidates in every form of the attack, and add a row for each to the result."""
    if not auditor.candidates:
        raise NotAttacked(
            "attack: no attacked client that allows audits answered, so there are no candidates; choose "
            "clients by attack.clients"
        )
    parties = parties_of(auditor, attacker.settings["viewpoint"])
    shadows_from, population = _split(known)
    undefended = not public.defense
    for adaptive, attack in attacker.forms.items():
        if undefended and adaptive and len(attacker.forms) > 1:
            continue  # nothing to adapt to
        start = time.perf_counter()
        row = _row(auditor, attacker, parties, adaptive=adaptive, promise=promise)
        try:
            shadows = _shadows(train_shadows, adaptive or undefended, parties, shadows_from, row)
            found = _scores(attack, attacker, template, public, parties, shadows, population)
            row = _measured(row, attacker, found, parties, promise)
        except _GIVES_UP as error:
            logger.warning("membership: %s", error)
            row.gave_up = str(error)
        row.seconds = time.perf_counter() - start
        results.run.membership = [*(results.run.membership or []), row]
        results.save()
    _say_what_exceeds(results)
    gave_up = [row.gave_up for row in results.run.membership or []]
    if gave_up and None not in gave_up:
        raise NotAttacked(f"attack: it gave up: {gave_up[0]}")


def parties_of(auditor: PassiveServer, viewpoint: str) -> list[Party]:
    """Return the candidates with the messages that tell of them.

    A server compares each client's candidates with its own updates, or all with sums where it sees only
    those; a participant compares all with the mean of the others.
    """
    clients = sorted(auditor.candidates)
    sizes = [len(auditor.candidates[client][0]) for client in clients]
    rows = torch.arange(sum(sizes)).split(sizes)
    summed = any(sighting.summed for sighting in auditor.sightings)
    if viewpoint == "server" and not summed:
        return [
            Party(*auditor.candidates[client], _of(auditor.sightings, client), place)
            for client, place in zip(clients, rows, strict=True)
        ]
    shown = [auditor.candidates[client] for client in clients]
    everyone = Records(
        torch.cat([one.inputs for one, _ in shown]), torch.cat([one.labels for one, _ in shown])
    )
    seen: list[Sighting] = []
    if viewpoint == "participant":
        seen = auditor.sightings
    elif viewpoint == "server":
        seen = _of(auditor.sightings, SUM)
    return [Party(everyone, torch.cat([members for _, members in shown]), seen, torch.cat(list(rows)))]


def promise_of(strategy: FedSGD, viewpoint: str) -> Promise | None:
    """Return the promise to an observer; None without differential privacy."""
    if not strategy.records:
        return None
    last = strategy.records[-1]
    epsilon = last.epsilon
    if viewpoint == "server" and last.epsilon_server is not None:
        epsilon = last.epsilon_server
    delta = strategy.charges.delta if strategy.privacy is None else strategy.privacy.delta
    return None if epsilon is None or delta is None else Promise(epsilon, delta)


def with_bound(row: Membership, promise: Promise) -> Membership:
    """Return the row with the promise beside every point, and a verdict on each."""
    points = [point for one in row.statistics.values() for point in one.points if point.tpr is not None]
    for point in points:
        if point.fpr is None or point.hits is None or point.alarms is None:
            continue
        point.bound = member_bound(point.fpr, promise.epsilon, promise.delta)
        point.exceeds = refutes(
            point.hits,
            row.reporting_members,
            point.alarms,
            row.reporting_strangers,
            epsilon=promise.epsilon,
            delta=promise.delta,
            tests=len(points),
        )
    return row


def _of(sightings: Sequence[Sighting], client: int) -> list[Sighting]:
    return sorted((s for s in sightings if s.order.client == client), key=lambda s: s.order.round)


def _split(known: Samples) -> tuple[Samples, Records]:
    """Return the public samples that shadows train on, and those that nobody trains on."""
    order = torch.randperm(len(known), generator=torch.Generator().manual_seed(0))
    half = len(known) // 2
    rest = known.take(order[half : half + MOST_PUBLIC])
    return known.take(order[:half]), Records(pixels(rest.inputs, "cpu"), rest.labels)


def _row(
    auditor: PassiveServer,
    attacker: Attacker,
    parties: list[Party],
    *,
    adaptive: bool,
    promise: Promise | None,
) -> Membership:
    members = torch.cat([party.members for party in parties])
    participants = {s.participant for party in parties for s in party.sightings}
    return Membership(
        attack=attacker.name,
        viewpoint=attacker.settings["viewpoint"],
        clients=sorted(auditor.candidates),
        participant=next(iter(participants - {None}), None),
        adaptive=adaptive,
        active=bool(attacker.settings.get("active")),
        rounds=sorted({s.order.round for party in parties for s in party.sightings}),
        members=int(members.sum()),
        strangers=int((~members).sum()),
        epsilon=None if promise is None else promise.epsilon,
        delta=None if promise is None else promise.delta,
        settings={**attacker.settings, "adaptive": adaptive},
    )


def _shadows(
    train: Train | None, defended: bool, parties: list[Party], public: Samples, row: Membership
) -> Sequence[Shadow]:
    """Return the shadows; without any, the attack goes on with less, and the row says why."""
    if train is None:
        return ()
    everyone = Records(
        torch.cat([party.candidates.inputs for party in parties]),
        torch.cat([party.candidates.labels for party in parties]),
    )
    try:
        found = train(defended, everyone, public)
    except _GIVES_UP as error:
        logger.warning("shadow models: %s", error)
        row.notes.append(f"no shadow models, so neither RMIA nor LiRA: {error}")
        return ()
    row.shadows = len(found)
    if found:
        row.notes.append(
            f"each shadow model was trained on {len(public)} public samples and half of the candidates"
        )
    return found


def _scores(
    attack: Callable[..., Any],
    attacker: Attacker,
    template: nn.Module,
    public: Public,
    parties: list[Party],
    shadows: Sequence[Shadow],
    population: Records,
) -> Any:
    """Return the attack's result over the candidates of all parties, in their order."""
    parts = []
    for party in parties:
        inquiry = Inquiry(
            candidates=party.candidates,
            final=template,
            rounds=[_observe(sighting, template, public) for sighting in party.sightings],
            population=population,
            shadows=[Shadow(one.model, one.members[party.rows]) for one in shadows],
            defense=public.defense,
            mean=public.mean,
            std=public.std,
            rewrites=public_rewrites(public.defense),
        )
        with track(f"{attacker.name} on {len(party.candidates)} candidates", 100) as advance:
            parts.append(attack(inquiry, on_step=follow_search(advance)))
    first = parts[0]
    names = [name for name in first.scores if all(name in part.scores for part in parts)]
    scores = {name: torch.cat([part.scores[name] for part in parts]) for name in names}
    return type(first)(scores, first.notes)


def _observe(sighting: Sighting, template: nn.Module, public: Public) -> Observation:
    manipulated = sighting.manipulated
    model = template if manipulated is None else manipulate_like(template, manipulated)
    return observe(sighting, model, public, grant_labels=False)


def _measured(
    row: Membership, attacker: Attacker, found: Any, parties: list[Party], promise: Promise | None
) -> Membership:
    members = torch.cat([party.members for party in parties])
    scored = attacker.score(found, members)
    told = row.as_json() | scored | {"notes": [*row.notes, *found.notes]}
    measured = Membership.model_validate(told)
    return measured if promise is None else with_bound(measured, promise)


def _say_what_exceeds(results: Results) -> None:
    for row in results.run.membership or []:
        note = (
            f"membership: attack {row.attack} tells members better than epsilon {row.epsilon:.3g} allows"
            if row.exceeds_bound and row.epsilon is not None
            else ""
        )
        if note and note not in results.run.notes:
            logger.warning("%s", note)
            results.run.notes.append(note)
