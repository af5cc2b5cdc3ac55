"""One client's round: order in, update out, state kept."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor, nn

from fl_app import client_state
from fl_app.client_state import ClientState
from fl_app.defenses import Defense
from fl_app.messages import Answer, AuditOrder, MessageError, Order, Reply, pack_audit
from fl_app.models import ModelSpec, build_model
from fl_app.seeding import generator_for, seed_for, seeded
from fl_app.training import Job, LocalData, Trained, Trainer, batch_norm, parameters
from fl_app.transforms import State, residual_norm
from fl_app.types import RoundContext, Truth, Update
from fl_app.wire import apply_change, decode, encode

logger = logging.getLogger(__name__)


@dataclass
class Restored:
    """The weights that this process restored last.

    The clients of one process get the same blob and hold the same weights: one
    of them unpacks, and all of them share the result.
    """

    blob: bytes | None = None
    base: Update = field(default_factory=dict)
    weights: Update = field(default_factory=dict)

    def get(self, blob: bytes, base: Update, restore: Callable[[], Update]) -> Update:
        """Return what ``restore`` gives for ``blob`` on top of ``base``."""
        same = blob is self.blob and base.keys() == self.base.keys()
        if not (same and all(tensor is self.base[name] for name, tensor in base.items())):
            self.weights = restore()
            self.blob, self.base = blob, base
        return self.weights


@dataclass(frozen=True)
class ClientParts:
    """What every client of a run is made of. One per process: models are built once and reused."""

    model: ModelSpec
    trainer: Trainer
    defense: Defense
    data_of: Callable[[int, int], LocalData]
    """``data_of(client, num_clients)``"""
    device: torch.device
    dtype: torch.dtype
    seed: int
    training: bool = True
    bn: str = "sync"
    pin_model: bool = False
    models: dict[str, nn.Module] = field(default_factory=dict)
    restored: Restored = field(default_factory=lambda: Restored())


@dataclass(frozen=True)
class Client:
    """One client: its parts, who it is, and whether it may be audited."""

    parts: ClientParts
    client: int
    num_clients: int
    allow_audit: bool

    def answer(
        self,
        order: Order,
        model_blob: bytes,
        buffers_blob: bytes,
        audit: AuditOrder | None,
        records: RecordDict,
    ) -> tuple[Reply, ConfigRecord | None]:
        """Train as ordered; ``records`` is the client's memory and is written to at the very end."""
        if order.client != self.client:
            raise MessageError(f"client {self.client}: got an order for client {order.client}")
        if audit is not None and not self.allow_audit:
            raise PermissionError(
                f"client {self.client}: refuses the audit: its node-config does not have allow-audit=true"
            )
        parts = self.parts
        model = self._model(order)
        state = client_state.load(records, order.model_hash, parts.device)
        if order.base >= 0 and state.version != order.base:
            logger.info("client %d: holds version %d, not %d", self.client, state.version, order.base)
            return Reply(Answer(order.round, self.client, need_model=True)), None
        weights = self._weights(order, model_blob, state, model)
        buffers = self._buffers(buffers_blob, state, model)
        uncounted = self._uncounted(order, state, weights)

        with seeded(seed_for(parts.seed, order.round, self.client, "training"), parts.device):
            trained = self._train(model, weights, buffers, order, audit)
        memory = state.transform or parts.defense.transform.init(trained.update)
        ctx = RoundContext(
            round=order.round,
            client=self.client,
            generator=generator_for(parts.seed, order.round, self.client, "transform"),
            weights=weights,
            uncounted=uncounted,
        )
        sent, memory = parts.defense.transform.apply(trained.update, memory, ctx)
        blob = encode(sent)
        after = _read_buffers(model)
        client_state.save(
            records,
            order.model_hash,
            ClientState(
                version=order.version if order.keep else -1,
                weights=weights if order.keep else {},
                buffers=after if parts.bn == "local" else {},
                transform=memory,
                sent_round=order.round,
                sent_blob=blob if _remembers(memory) else b"",
            ),
        )
        reply = Reply(
            answer=Answer(order.round, self.client, trained.samples, trained.steps),
            update=blob,
            buffers=encode(after) if after and parts.bn == "sync" else b"",
            metrics=_metrics(trained, memory),
        )
        return reply, _evidence(audit, trained) if audit is not None else None

    def _model(self, order: Order) -> nn.Module:
        """Return this process's instance of the model that the order names."""
        parts = self.parts
        spec = parts.model
        if order.model_hash != spec.hash:
            if parts.pin_model:
                raise PermissionError(
                    f"client {self.client}: refuses model {order.model_hash[:8]}: pinned to {spec.hash[:8]}"
                )
            spec = ModelSpec.from_json(order.model_spec)
            if spec.hash != order.model_hash:
                raise MessageError(
                    f"client {self.client}: model {order.model_hash[:8]} is not the one described"
                )
        if spec.hash not in parts.models:
            built = build_model(spec, allowed=[parts.model.target])
            batch_norm.set_mode(built, training=parts.training, bn=parts.bn)
            parts.models[spec.hash] = built.to(device=parts.device, dtype=parts.dtype)
        return parts.models[spec.hash]

    def _weights(self, order: Order, blob: bytes, state: ClientState, model: nn.Module) -> Update:
        if order.base < 0:
            like = {name: p.detach() for name, p in parameters(model).items()}
            return self.parts.restored.get(blob, {}, lambda: decode(blob, like))
        return self.parts.restored.get(blob, state.weights, lambda: apply_change(state.weights, blob))

    def _buffers(self, blob: bytes, state: ClientState, model: nn.Module) -> Update:
        own = _read_buffers(model)
        if self.parts.bn == "local":
            return state.buffers or _initial(own)
        return decode(blob, own) if blob else own

    def _uncounted(self, order: Order, state: ClientState, weights: Update) -> Update | None:
        if not state.sent_blob or state.sent_round == order.counted:
            return None
        logger.info("client %d: the update of round %d was not counted", self.client, state.sent_round)
        return decode(state.sent_blob, weights)

    def _train(
        self, model: nn.Module, weights: Update, buffers: Update, order: Order, audit: AuditOrder | None
    ) -> Trained:
        parts = self.parts
        with torch.no_grad():
            for name, tensor in (parameters(model) | dict(model.named_buffers())).items():
                tensor.copy_(weights[name] if name in weights else buffers[name])
        job = Job(
            round=order.round,
            lr=order.lr,
            generator=generator_for(parts.seed, order.round, self.client, "rules"),
            rules=parts.defense.rules,
            batch_size=(audit.batch_size or None) if audit is not None else None,
            keep_batches=audit is not None and audit.truth,
        )
        return parts.trainer(model, parts.data_of(self.client, self.num_clients), job)


def _read_buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_buffers()}


def _initial(buffers: Update) -> Update:
    """Return BatchNorm's own start: mean 0, variance 1, nothing counted."""
    return {
        name: torch.ones_like(tensor) if name.endswith("running_var") else torch.zeros_like(tensor)
        for name, tensor in buffers.items()
    }


def _remembers(state: State) -> bool:
    return any(isinstance(node, Tensor) or _remembers(node) for node in state.values())


def _metrics(trained: Trained, memory: State) -> dict[str, float]:
    residual = residual_norm(memory)
    return {"loss": trained.loss} | ({} if residual is None else {"residual_norm": residual})


def _evidence(audit: AuditOrder, trained: Trained) -> ConfigRecord:
    truth = None
    if audit.truth:
        truth = Truth(
            inputs=torch.cat([batch.pixels for batch in trained.batches]).cpu(),
            labels=torch.cat([batch.labels for batch in trained.batches]).cpu(),
        )
    return pack_audit(truth, trained.update if audit.raw else None)
