"""Server that plants weights in the model it sends: the app's own code answers, and the reply is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message

from fl_app.audit.arrays import Match, arrays_of
from fl_app.audit.batches import as_pictures, batches_of, scale_of
from fl_app.audit.ladder import Declined, Ladder, Sight, adapted, joined, run_attack
from fl_app.audit.tape import Tape
from fl_app.audit.traffic import Exchange
from fl_app.audit.understanding import Understanding
from fl_app.config.build import lone_attack
from fl_app.flower.copies import copy_message
from fl_app.types import Observation

SITUATION, ATTACK = "malicious server", "curious"

Call = Callable[[Message], tuple[Exchange, Tape]]
"""Lets the client answer an order, recorded."""


def attack_as_server(found: Understanding, classes: int | None, call: Call, ladder: Ladder) -> None:
    """Send a model with trap weights and read what comes back."""
    reason = _refusal(found)
    if reason:
        ladder.declined.append(Declined(ATTACK, SITUATION, reason))
        return
    assert found.model is not None
    assert found.meaning is not None
    assert found.exchange is not None
    whole = joined(found.batches)
    assert whole is not None
    scale = scale_of(found.batches, found.tape.normalised if found.tape else None)
    shape = tuple(as_pictures(whole.inputs).shape[1:])
    attack: Any = lone_attack(f"attack={ATTACK} defense=none", adaptive=False)[0]
    model = adapted(found.model, whole, classes)
    try:
        bait = attack.plant(model, shape, mean=scale.mean, std=scale.std)
    except Exception as error:  # a model of any kind
        ladder.declined.append(Declined(ATTACK, SITUATION, str(error)))
        return
    planted = {name: tensor.detach() for name, tensor in bait.state_dict().items()}
    exchange, tape = call(_baited(found.exchange.order, found.order_names, planted))
    sent = arrays_of(None if exchange.failed else exchange.reply.content)
    if not sent or set(found.names) - set(sent):
        ladder.declined.append(Declined(ATTACK, SITUATION, "the client refused the planted model"))
        return
    batches = [batch for step in tape.steps for batch in batches_of(step)]
    told = joined(batches) or whole
    update = Match(found.meaning.kind, found.names, (), found.meaning.factor).update(sent, planted)
    parameters = dict(bait.named_parameters())
    seen = Observation(
        model=bait,
        update={name: t.to(parameters[name].dtype) for name, t in update.items() if name in parameters},
        num_classes=classes,
        input_shape=shape,
        mean=scale.mean,
        std=scale.std,
        training=found.facts["mode"] == "train",
    )
    granted = f"the model is the server's; the update as sent; normalisation ({scale.source})"
    run_attack(ATTACK, "", Sight(seen, told, scale, SITUATION, granted), ladder, attack=attack)


def _refusal(found: Understanding) -> str:
    if not found.update:
        return "the server sees no update of a single client"
    if found.model is None or found.meaning is None or not found.order_names:
        return "the arrays that the server sends are not those of the model, so it cannot plant weights"
    whole = joined(found.batches)
    if whole is None or whole.kind == "tokens":
        return "trap weights read pictures and rows of numbers"
    return ""


def _baited(
    order: Message, names: Mapping[tuple[str, str], str], planted: Mapping[str, torch.Tensor]
) -> Message:
    """Return an order with planted weights in the form of the honest ones."""
    message = copy_message(order)
    for name, record in order.content.array_records.items():
        arrays = {}
        for key, array in record.items():
            honest = array.numpy()
            own = names.get((name, key))
            values = (
                honest if own is None else planted[own].numpy().reshape(honest.shape).astype(honest.dtype)
            )
            arrays[key] = Array(np.ascontiguousarray(values))
        message.content[name] = ArrayRecord(arrays)
    return message
