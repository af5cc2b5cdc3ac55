"""Proof that an app is understood: its training, played again, gives the reply that it sent."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from fl_app.audit.arrays import Match, Name, State, arrays_of, match, match_by_name, match_order
from fl_app.audit.batches import Batch, batch_of
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
    tape: Tape | None = None
    number: int = 0
    """Which model of the tape it is."""
    batches: list[Batch] = field(default_factory=list)
    exchange: Exchange | None = None
    defended: bool = False
    """Whether mods of the app changed the update before it was sent."""
    added: float = 0.0
    """Standard deviation of what the app's mods add to the update."""
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
    if not tape.models:
        return _not(
            found,
            "no torch model was called while the client trained: the app trains with numpy, scikit-learn or "
            "another library, whose updates these attacks do not read",
        )
    if tape.problems:
        return _not(found, tape.problems[0])
    number = _trained_model(tape)
    found.number, found.model = number, copy.deepcopy(tape.models[number].start)
    start, final = (
        {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
        for module in (tape.models[number].start, tape.models[number].live)
    )
    gradients = _own(tape.steps[-1].gradients or {}, number) if tape.steps else {}
    meaning = match(inner, State(start, final, gradients))
    found.tried.append(
        f"compared {len(inner)} arrays of the reply with weights, differences and gradients of a "
        f"{type(found.model).__name__} with {len(start)} tensors"
    )
    if not meaning.names:
        return _not(
            found, "no array of the reply equals a weight, a difference or a gradient of the model", meaning
        )
    found.meaning, found.unknown = meaning, meaning.unknown
    found.order_names = match_order(arrays_of(exchange.order.content), start)
    found.batches = [batch for step in tape.steps if (batch := batch_of(step)) is not None]
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
        true = {n: g.double() for n, g in _own(tape.steps[-1].gradients or {}, number).items()}
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
    else:
        _by_noise(found)


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
        "learning rate": groups[0].get("lr") if groups else None,
        "momentum": groups[0].get("momentum") if groups else None,
        "local steps": len(tape.trained) or len(tape.steps),
        "batch size": sizes[-1] if sizes else None,
        "samples": sum(len(batch.inputs) for batch in found.batches),
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
