"""A hostile server, or whoever starts runs, against the client app with a deployed node's settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from flwr.app import Message, RecordDict
from torch import nn

from fl_app.client.client import ClientParts
from fl_app.client_app import app as client_app
from fl_app.config.build import client_parts
from fl_app.config.trust import Trust
from fl_app.flower import InlineGrid
from fl_app.models import ModelSpec, build_model
from fl_app.training import parameters
from fl_app.types import Update
from fl_app.wire import decode, encode
from fl_app.wire.messages import (
    TRAIN,
    AuditOrder,
    Order,
    Plan,
    RunName,
    add_audit_order,
    pack_blob,
    pack_order,
    pack_plan,
    unpack_reply,
)

DEPLOYED = {"trust-config": False, "allow-audit": False}
"""What a SuperNode's node-config says if nobody wrote anything into it."""
SMALL = "attack=none threads=1 clients=2 data.train_per_class=20 data.test_per_class=2"
FIRST_NODE = 1000


def node(sent: str, nodes: int = 2, *, run_id: int = 1, **config: Any) -> InlineGrid:
    """Return nodes that got a run's overrides; ``config`` is their own (``_`` stands for ``-``)."""
    own = {key.replace("_", "-"): value for key, value in config.items()}
    return InlineGrid(
        client_app,
        nodes,
        run_config={"overrides": sent},
        node_config={**DEPLOYED, **own},
        run_id=run_id,
    )


def parts_of(overrides: str, own: str = "") -> ClientParts:
    """Return what a node makes of a run."""
    return client_parts(overrides, Trust(own=own))


def model_of(spec: ModelSpec, seed: int = 0) -> nn.Module:
    """Return a model with random weights."""
    torch.manual_seed(seed)
    return build_model(spec, allowed=[spec.target])


def order(
    spec: ModelSpec,
    model: nn.Module,
    *,
    round: int = 1,
    client: int = 0,
    lr: float = 0.1,
    plan: Plan | None = None,
    facts: str | None = None,
    key: str | None = None,
) -> RecordDict:
    """Return an order with the whole model."""
    weights = {name: p.detach() for name, p in parameters(model).items()}
    buffers = dict(model.named_buffers())
    return pack_order(
        Order(round, client, lr, spec.hash, 0, model_spec=spec.to_json()),
        pack_blob(encode(weights)),
        buffers=pack_blob(encode(buffers)) if buffers else None,
        plan=None if plan is None else pack_plan(plan),
        facts=None if facts is None else pack_blob(facts.encode()),
        run=None if key is None else RunName(key),
    )


def send(
    grid: InlineGrid, content: RecordDict, kind: str = TRAIN, audit: AuditOrder | None = None
) -> Message:
    """Return a node's reply."""
    message = Message(content, FIRST_NODE, kind)
    if audit is not None:
        add_audit_order(message, audit)
    (reply,) = grid.send_and_receive([message])
    return reply


def code_of(reply: Message) -> str | None:
    """Return the code of a refusal; None if the node answered."""
    if not reply.has_error():
        return None
    return str(reply.error.reason).partition("[")[2].partition("]")[0]


def update_of(reply: Message, model: nn.Module) -> Update:
    """Return the update in an answer."""
    like = {name: p.detach() for name, p in parameters(model).items()}
    return decode(unpack_reply(reply).update, like)


def vector_of(reply: Message, model: nn.Module) -> torch.Tensor:
    """Return the vector in an answer of the FL-TOP family."""
    entries = sum(p.numel() for p in parameters(model).values())
    return decode(unpack_reply(reply).update, {"values": torch.empty(entries)})["values"]


def first_batch(parts: ClientParts, size: int, clients: int = 2) -> torch.Tensor:
    """Return the inputs of the first batch of client 0, flat."""
    data = parts.data_of(0, clients)
    return data.batch(data.order(0)[:size], torch.device("cpu"), torch.float32).inputs.flatten(1)


def worst_match(update: Mapping[str, torch.Tensor], samples: torch.Tensor) -> float:
    """Return the squared error per entry of the sample that rows of a first linear layer show best."""
    weight, bias = (update[f"hidden1.{part}"] for part in ("weight", "bias"))
    shown = weight[bias.abs() > 1e-9] / bias[bias.abs() > 1e-9, None]
    return float((torch.cdist(shown, samples) ** 2).min() / samples.shape[1]) if len(shown) else float("inf")
