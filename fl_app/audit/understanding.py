"""Proof that an app is understood: its training, played again, gives the reply that it sent."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from fl_app.audit.arrays import Match, Name, State, arrays_of, match, match_by_name, match_order
from fl_app.audit.batches import Batch, batch_of, batches_of
from fl_app.audit.low_digits import other_digits
from fl_app.audit.tape import Call, Player, Tape
from fl_app.audit.traffic import Exchange

TOLERANCE = 1e-3
"""Largest distance of the replayed update from the true one, relative to the true one."""


@dataclass
class Understanding:
    """What was found out about one client's round."""

    proven: bool = False
    error: float | None = None
    """Distance of the replayed update from the true one, relative to it."""
    tried: list[str] = field(default_factory=list)
    """Statements on what was tried, for a reader."""
    reason: str = ""
    """Why it gets no grade; "" if it is understood and was attacked."""
    facts: dict[str, object] = field(default_factory=dict)
    model: nn.Module | None = None
    """Copy of the trained model as it was before training."""
    update: dict[str, Tensor] = field(default_factory=dict)
    """Update by parameter as it was sent."""
    names: Mapping[Name, str] = field(default_factory=dict)
    order_names: Mapping[Name, str] = field(default_factory=dict)
    meaning: Match | None = None
    unknown: tuple[Name, ...] = ()
    beside: tuple[Name, ...] = ()
    """Arrays of order and reply that are of other models which the client trains."""
    tape: Tape | None = None
    number: int = 0
    """Which model of the tape it is."""
    batches: list[Batch] = field(default_factory=list)
    exchange: Exchange | None = None
    defended: bool = False
    """Whether mods of the app changed the update before it was sent."""
    added: float = 0.0
    """Standard deviation of what the app's mods add to the update."""
    other_digits: int = 0
    """Numbers of the reply that training did not leave to the last digit."""
    noise: float | None = None
    """Standard deviation of noise in the first step's gradient, if it has noise."""

    @property
    def is_gradient(self) -> bool:
        """Whether gradients are sent and not weights."""
        return self.meaning is not None and self.meaning.kind.endswith("gradients")


def understand(exchange: Exchange, tape: Tape) -> Understanding:
    """Find out what a client did from its messages and its tape, and prove it by a replay."""
    found = Understanding(exchange=exchange, tape=tape)
    inner = arrays_of(exchange.inner if exchange.inner is not None else exchange.reply.content)
    sent = arrays_of(exchange.reply.content)
    if not inner:
        return _not(found, "the reply holds no arrays")
    if tape.problems:
        return _not(found, tape.problems[0])
    if not tape.models:
        return _not(
            found,
            "no torch model was called while the client trained: the app trains with numpy, scikit-learn or "
            "another library, whose updates these attacks do not read",
        )
    number, meaning = _replying_model(inner, tape)
    found.number, found.model = number, copy.deepcopy(tape.models[number].start)
    start, final = _states(tape, number)
    found.tried.append(
        f"compared {len(inner)} arrays of the reply with weights, differences and gradients of "
        f"{len(tape.models)} models, best a {type(found.model).__name__} with {len(start)} tensors"
    )
    if not meaning.names:
        return _not(
            found, "no array of the reply equals a weight, a difference or a gradient of the model", meaning
        )
    order = arrays_of(exchange.order.content)
    found.order_names = match_order(order, start)
    found.beside = _beside(meaning, found.order_names, inner, order, tape, number)
    found.meaning = meaning
    found.unknown = tuple(place for place in meaning.unknown if place not in found.beside)
    found.batches = [batch for step in tape.steps for batch in batches_of(step)]
    found.other_digits = other_digits(inner, meaning, _state(tape, number))
    _replay(found, start, final)
    _sent_update(found, inner, sent, start)
    found.facts |= _facts(found, start, final)
    return found


def _replay(found: Understanding, start: Mapping[str, Tensor], final: Mapping[str, Tensor]) -> None:
    """Play the tape and compare."""
    assert found.tape is not None
    tape, number = found.tape, found.number
    player = Player(tape)
    try:
        player.play(tape.steps)
    except Exception as error:  # a stranger's calls may raise anything
        _not(found, f"the recorded training could not be played again: {type(error).__name__}: {error}")
        return
    if found.is_gradient:
        replayed = {n: g.double() for (m, n), g in player.gradients().items() if m == number}
        true = {n: g.double() for n, g in _state(tape, number).gradients.items()}
    else:
        again = player.models[number].state_dict()
        replayed = {n: again[n].double() - t.double() for n, t in start.items() if t.is_floating_point()}
        true = {n: final[n].double() - t.double() for n, t in start.items() if t.is_floating_point()}
    size = _norm(true)
    off = _norm({n: replayed[n] - t for n, t in true.items() if n in replayed})
    found.error = off / size if size else float("inf")
    found.tried.append(
        f"played {len(tape.trained) or len(tape.steps)} recorded steps on a copy of the model: the update is "
        f"off by {found.error:.1e} of its size (allowed: {TOLERANCE:g})"
    )
    if not size:
        _not(found, "the client's weights did not change")
    elif found.error <= TOLERANCE and set(true) <= set(replayed):
        found.proven = True
        _control(found, true, size)
    else:
        _by_noise(found)


def _control(found: Understanding, true: Mapping[str, Tensor], size: float) -> None:
    """Play the tape with other data: an update that stays as it is does not come from the batches."""
    assert found.tape is not None
    if not found.tape.by_hand:
        return
    player = Player(found.tape, altered=True)
    try:
        player.play(found.tape.steps)
    except Exception:  # other data may not fit a stranger's code, which then depends on them
        return
    if found.is_gradient:
        other = {n: g.double() for (m, n), g in player.gradients().items() if m == found.number}
        off = _norm({n: other[n] - t for n, t in true.items() if n in other})
    else:
        again, start = player.models[found.number].state_dict(), found.tape.models[found.number].start
        moved = {n: again[n].double() - t.double() for n, t in start.state_dict().items()}
        off = _norm({n: moved[n] - t for n, t in true.items()})
    found.tried.append(
        f"played them on other data, since the app changes weights or gradients itself: the update moves by "
        f"{off / size:.1e} of its size"
    )
    if off <= TOLERANCE * size:
        _not(found, "the update does not depend on the batches that were recorded")


def _by_noise(found: Understanding) -> None:
    """Explain the first step as clipped gradients of samples plus noise (DP-SGD)."""
    assert found.tape is not None
    step = next((s for s in found.tape.steps if s.gradients), None)
    batch = None if step is None else batch_of(step)
    if step is None or batch is None or found.tape.dp is None:
        _not(found, "the replayed training gives another update, and no noise of DP-SGD explains it")
        return
    clip, sigma, expected = found.tape.dp
    total: dict[str, Tensor] = {}
    for row in range(len(batch.inputs)):
        player = Player(found.tape, row=row)
        state = torch.get_rng_state()
        try:
            player.compute(step)
        except Exception as error:
            _not(found, f"single samples could not be played: {type(error).__name__}: {error}")
            return
        finally:
            torch.set_rng_state(state)
        own = _own(player.gradients(), found.number)
        factor = min(1.0, clip / (_norm(own) + 1e-6))
        for name, gradient in own.items():
            total[name] = total.get(name, torch.zeros(())) + factor * gradient.double()
    true = _own(step.gradients or {}, found.number)
    residual = torch.cat([(true[n].double() - total[n] / expected).flatten() for n in true])
    measured, stated = float(residual.std()), sigma * clip / expected
    found.noise = measured
    found.tried.append(
        f"clipped the gradients of {len(batch.inputs)} single samples to {clip:g}: the rest of the first "
        f"step has a standard deviation of {measured:.3g}; the noise stated by the app has {stated:.3g}"
    )
    # the deviation of n draws is itself known to one part in √(2n)
    allowed = 0.02 + 4 / (2 * len(residual)) ** 0.5
    if stated and abs(measured / stated - 1) < allowed:
        found.proven, found.reason = True, ""
    else:
        _not(found, "the rest of the first step is not the noise that the app states")


def _sent_update(
    found: Understanding,
    inner: Mapping[Name, np.ndarray],
    sent: Mapping[Name, np.ndarray],
    start: Mapping[str, Tensor],
) -> None:
    """Read the update as the server sees it, behind the app's mods."""
    assert found.meaning is not None
    meaning = found.meaning
    same = set(inner) == set(sent) and all(np.array_equal(inner[place], sent[place]) for place in inner)
    found.defended = not same
    names = {place: name for place, name in meaning.names.items() if place in sent}
    readable = [p for p in names if sent[p].size == inner[p].size]
    if found.defended and len(readable) < len(meaning.names):
        names = match_by_name(sent, {name: start[name] for name in meaning.names.values()})
        readable = list(names)
    found.names = {place: names[place] for place in readable}
    visible = Match(meaning.kind, found.names, (), meaning.factor)
    update = visible.update(sent, start)
    if found.defended:
        honest = Match(meaning.kind, meaning.names, (), meaning.factor).update(inner, start)
        off = [(tensor - honest[name]).flatten() for name, tensor in update.items()]
        found.added = float(torch.cat(off).std()) if off else 0.0
    assert found.model is not None
    parameters = dict(found.model.named_parameters())
    found.update = {n: t.to(parameters[n].dtype) for n, t in update.items() if n in parameters}


def _facts(
    found: Understanding, start: Mapping[str, Tensor], final: Mapping[str, Tensor]
) -> dict[str, object]:
    assert found.tape is not None
    assert found.meaning is not None
    assert found.model is not None
    tape = found.tape
    parameters = dict(found.model.named_parameters())
    changed = [n for n in parameters if not torch.equal(start[n], final[n])]
    buffers = [n for n in start if n not in parameters]
    groups = tape.trained[0].groups if tape.trained else []
    sizes = sorted({len(batch.inputs) for batch in found.batches})
    return {
        "model": type(found.model).__name__,
        "sends": found.meaning.kind,
        "records": sorted({place[0] for place in found.meaning.names}),
        "parameters": sum(p.numel() for p in parameters.values()),
        "tensors sent": len(found.meaning.names),
        "tensors changed": len(changed),
        "changed": changed if len(changed) <= 12 else [*changed[:6], "…", *changed[-5:]],
        "frozen parameters": len(parameters) - len(changed),
        "buffers sent": sum(name in buffers for name in found.meaning.names.values()),
        "BatchNorm": any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in found.model.modules()),
        "mode": _mode(found),
        "optimiser": type(tape.optimisers[0]).__name__ if tape.optimisers else "none",
        "learning rate": groups[0].get("lr") if groups else _rate_by_hand(found),
        "momentum": groups[0].get("momentum") if groups else None,
        "local steps": len(tape.trained) or sum(batch_of(step) is not None for step in tape.steps),
        "batch size": sizes[-1] if sizes else None,
        "samples": sum(len(batch.inputs) for batch in found.batches),
        "changes weights or gradients by hand": tape.by_hand,
        "changed by mods": found.defended,
    }


def _mode(found: Understanding) -> str:
    assert found.tape is not None
    modes = [
        any(entry.modes)
        for step in found.tape.steps
        for entry in step.entries
        if isinstance(entry, Call) and entry.modes
    ]
    return "train" if all(modes) else "eval" if not any(modes) else "both"


def _rate_by_hand(found: Understanding) -> float | None:
    """Return the learning rate of an app that steps without an optimiser; None if a step is no such one."""
    assert found.tape is not None
    if found.is_gradient:
        return None
    player = Player(found.tape)
    for step in found.tape.steps:
        before = {n: p.detach().clone() for n, p in player.models[found.number].named_parameters()}
        player.play([step])
        after = dict(player.models[found.number].named_parameters())
        own = _own(player.gradients(), found.number)
        gradient = torch.cat([g.double().flatten() for g in own.values()] or [torch.zeros(1)])
        move = torch.cat(
            [(after[n].detach() - before[n]).double().flatten() for n in own] or [torch.zeros(1)]
        )
        if move.any() and gradient.any():
            rate = -float(move @ gradient / (gradient @ gradient))
            off = float((move + rate * gradient).norm() / move.norm())
            return rate if rate > 0 and off < TOLERANCE else None
    return None


def _replying_model(inner: Mapping[Name, np.ndarray], tape: Tape) -> tuple[int, Match]:
    """Return the model whose state explains most of a reply, and how; the trained one of equals."""
    best = _trained_model(tape)
    matches = [match(inner, _state(tape, number)) for number in range(len(tape.models))]
    explained = [sum(inner[place].size + 1 for place in found.names) for found in matches]
    number = max(range(len(matches)), key=lambda i: (explained[i], i == best))
    return number, matches[number]


def _states(tape: Tape, number: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return a model's state before and after."""
    start, final = (
        {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
        for module in (tape.models[number].start, tape.models[number].live)
    )
    return start, final


def _state(tape: Tape, number: int) -> State:
    # the last entries of a tape may be mere reading
    last: dict[tuple[int, str], Tensor] = next((s.gradients for s in tape.steps[::-1] if s.gradients), {})
    return State(*_states(tape, number), _own(last, number))


def _beside(
    meaning: Match,
    order_names: Mapping[Name, str],
    inner: Mapping[Name, np.ndarray],
    order: Mapping[Name, np.ndarray],
    tape: Tape,
    number: int,
) -> tuple[Name, ...]:
    """Return the arrays of a reply and of its order that belong to other models of the client."""
    found: list[Name] = []
    rest = {place: inner[place] for place in meaning.unknown}
    ordered = {place: array for place, array in order.items() if place not in order_names}
    for other in range(len(tape.models)):
        if other != number:
            found += match(rest, _state(tape, other)).names
            found += match_order(ordered, _states(tape, other)[0])
    return tuple(dict.fromkeys(found))


def _trained_model(tape: Tape) -> int:
    """Return the model that an optimiser changes, or that has gradients; else the largest."""
    counts = [0] * len(tape.models)
    for step in tape.steps:
        for number, _ in step.gradients or {}:
            counts[number] += 1
    sizes = [sum(p.numel() for p in model.start.parameters()) for model in tape.models]
    return max(range(len(tape.models)), key=lambda number: (counts[number] > 0, sizes[number]))


def _own(gradients: Mapping[tuple[int, str], Tensor], number: int) -> dict[str, Tensor]:
    return {name: gradient for (model, name), gradient in gradients.items() if model == number}


def _norm(tensors: Mapping[str, Tensor]) -> float:
    return float(sum(t.double().square().sum() for t in tensors.values()) ** 0.5) if tensors else 0.0


def _not(found: Understanding, reason: str, meaning: Match | None = None) -> Understanding:
    found.proven, found.reason = False, reason
    if meaning is not None:
        found.unknown = meaning.unknown
    return found
