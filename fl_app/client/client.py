"""One client's round: it takes an order, returns an update and keeps its state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor, nn

from fl_app.client import state as client_state
from fl_app.client.guard import Guard
from fl_app.client.inspection import Inspection
from fl_app.client.movement import LastMove
from fl_app.client.own_attack import OwnAttack
from fl_app.client.secure import SecureSettings
from fl_app.client.state import ClientState, Work
from fl_app.data import Game, pixels
from fl_app.defenses import Defense
from fl_app.models import MOST_ENTRIES, ModelSpec, build_model
from fl_app.policy import Refusal, RunPlan
from fl_app.privacy import ClientNoise, Release
from fl_app.seeding import generator_for, seed_for, seeded
from fl_app.sketches.selection import largest, location_counts
from fl_app.training import (
    Job,
    LocalData,
    Rules,
    Trained,
    Trainer,
    batch_norm,
    evaluate_own,
    parameters,
    state_buffers,
)
from fl_app.transforms import State, corrected, norm, residual_norm
from fl_app.types import Records, RoundContext, Truth, Update
from fl_app.wire import apply_change, decode, decode_masks, encode
from fl_app.wire.messages import (
    Answer,
    AuditOrder,
    LocationQuery,
    MessageError,
    Order,
    Parcel,
    Reply,
    pack_audit,
)

logger = logging.getLogger(__name__)


@dataclass
class Restored:
    """Cache of the last value that this process unpacked.

    The clients of one process get the same blob and hold the same weights: one
    client unpacks it, and all share the result.
    """

    blob: bytes | None = None
    base: Update = field(default_factory=dict)
    result: Update = field(default_factory=dict)

    def get(self, blob: bytes, base: Update, restore: Callable[[], Update]) -> Update:
        """Return what ``restore`` gives for ``blob`` on top of ``base``."""
        same = blob is self.blob and base.keys() == self.base.keys()
        if not (same and all(tensor is self.base[name] for name, tensor in base.items())):
            self.result = restore()
            self.blob, self.base = blob, base
        return self.result


@dataclass(frozen=True)
class ClientParts:
    """Parts that all clients of a run share. One set per process: models are built once and reused."""

    model: ModelSpec
    trainer: Trainer
    defense: Defense
    data_of: Callable[[int, int], LocalData]
    """``data_of(client, num_clients)``"""
    device: torch.device
    dtype: torch.dtype
    seed: int
    start: Callable[[], Update] | None
    """Initial weights of the run, if every client can build them itself."""
    settings: str = ""
    """Hash of the settings that determine updates beside the orders; secure rounds compare it."""
    facts: str = ""
    """Facts on the task, the server's if the samples are the client's own; secure rounds compare them."""
    privacy: ClientNoise | None = None
    secure: SecureSettings | None = None
    training: bool = True
    bn: str = "sync"
    plan: RunPlan | None = None
    """The run as the node's policy sees it; None without a policy."""
    norms: bool = False
    """True if clients report the norm of their gradient, and the share that they withhold."""
    pin_model: bool = False
    own_attack: OwnAttack | None = None
    """Attacks that a node with a policy may try on its own updates."""
    game: Game | None = None
    """Rule of a membership audit; clients that allow audits play."""
    inspection: Inspection | None = None
    models: dict[str, nn.Module] = field(default_factory=dict)
    restored: Restored = field(default_factory=Restored)
    located: Restored = field(default_factory=Restored)
    last_move: LastMove = field(default_factory=LastMove)


@dataclass(frozen=True)
class Client:
    """One client: its parts, its identity, and its permission for audits."""

    parts: ClientParts
    client: int
    num_clients: int
    allow_audit: bool
    guard: Guard | None = None
    """Policy of the node; None: the node trusts the run."""

    def locate(self, parcel: Parcel, query: LocationQuery, records: RecordDict) -> Reply:
        """Name the largest entries of the update before pruning; the round's training order comes later.

        The gradient is kept until then, so that it is computed once.
        """
        order = self._accept(parcel, "locate")
        self._check_query(query)
        state = self._state(order, records)
        if state.sent is not None and state.sent_round >= order.round:
            raise self._too_late(order, state)
        start = self._start(parcel, state)
        if start is None:
            return Reply(Answer(order.round, self.client, need_model=True))
        work = self._work(start, parcel)
        pruned = corrected(work.update, start.memory(work, self.parts.defense), self._context(order, start))
        counts = location_counts(pruned, query.share, query.min_size)
        named = {name: largest(tensor, counts[name]) for name, tensor in pruned.items()}
        kept = replace(start.state, version=order.version, weights=start.weights, work=work)
        reply = Reply(Answer(order.round, self.client, work.samples, work.steps), encode(named))
        if self.guard is not None:
            self.guard.locate(order.round, self.guard.digest(parcel, start.weights), query, len(reply.update))
        self._remember(records, order, kept)
        return reply

    def answer(self, parcel: Parcel, records: RecordDict) -> tuple[Reply, ConfigRecord | None]:
        """Train as ordered; ``records`` is the client's memory, written at the very end."""
        parts, order = self.parts, self._accept(parcel, "train")
        state = self._state(order, records)
        again = self._again(parcel, state) if self.guard is None else None
        if again is not None:
            return again, None
        start = self._start(parcel, state)
        if start is None:
            return Reply(Answer(order.round, self.client, need_model=True)), None
        digest = self._digest(parcel, {})
        again = self._again_guarded(order, state, digest, start.weights)
        if again is not None:
            return again, None
        kept = start.state.work
        work = kept if kept is not None and kept.round == order.round else self._work(start, parcel)
        locations = self._locations(parcel, start)
        ctx = replace(self._context(order, start), locations=locations or None, samples=work.samples or None)
        sent, memory = parts.defense.transform.apply(work.update, start.memory(work, parts.defense), ctx)
        release, drawn = parts.defense.release, parts.defense.transform.drawn
        metrics = _metrics(work, memory)
        if parts.norms:
            metrics |= _norms(work, corrected(work.update, start.memory(work, parts.defense), ctx), sent)
        reply = Reply(
            answer=Answer(order.round, self.client, work.samples, work.steps),
            update=encode(sent, within=locations, drawn=drawn and drawn(sent, order.round)),
            buffers=encode(work.buffers) if work.buffers and parts.bn == "sync" else b"",
            # metrics of the data itself would leave without noise
            metrics=self._told(metrics) if release is None else {},
            release=release(work.rate, max(1, work.steps)) if release is not None else None,
        )
        self._attack_own(order, start, sent, work)
        self._leave(parcel, digest, reply, work, [] if reply.release is None else [reply.release])
        own_buffers = work.buffers if parts.bn == "local" else {}
        self._remember(
            records,
            order,
            ClientState(
                version=order.version if order.keep else -1,
                # a guarded client compares the next model with them
                weights=start.weights if order.keep or self.guard is not None else {},
                buffers=own_buffers,
                transform=memory,
                sent_round=order.round,
                sent_order=digest,
                sent=reply if own_buffers or remembers(memory) or self.guard is not None else None,
                locations=locations,
                plan=self._plan_digest,
            ),
        )
        return reply, self._evidence(parcel.audit, work)

    def evaluate(self, parcel: Parcel) -> tuple[int, dict[str, float]]:
        """Evaluate the whole model in an order on the client's own samples; keep no memory of it.

        Metrics of chosen models leak information about the samples: a node with a policy refuses.
        """
        if self.guard is not None or self.parts.privacy is not None or self.parts.secure is not None:
            raise Refusal("metrics", f"client {self.client}: evaluates no model that it is sent")
        order = self._accept(parcel, "evaluate")
        if order.base >= 0:
            raise MessageError(f"client {self.client}: evaluates whole models alone, got a change")
        start = self._start(parcel, ClientState())
        if start is None:
            raise MessageError(f"client {self.client}: got no model to evaluate")
        self._load(start)
        start.model.eval()
        try:
            return evaluate_own(start.model, self._data())
        finally:
            batch_norm.set_mode(start.model, training=self.parts.training, bn=self.parts.bn)

    @property
    def _plan_digest(self) -> str:
        return "" if self.guard is None else self.guard.plan.digest

    def _state(self, order: Order, records: RecordDict) -> ClientState:
        """Return the memory of the model under this plan; memories of other plans are ignored."""
        state = client_state.load(records, order.model_hash, self.parts.device)
        return state if state.plan == self._plan_digest else ClientState(plan=self._plan_digest)

    def _check_query(self, query: LocationQuery) -> None:
        """Refuse to name positions that the defense does not need, or that would bypass noise or masks."""
        share = self.parts.defense.transform.located
        if share is None or self.parts.privacy is not None or self.parts.secure is not None:
            raise Refusal("locate", f"client {self.client}: its defense has no use for positions")
        if not 0 < query.share <= 1:
            raise MessageError(f"client {self.client}: share must be in (0, 1], got {query.share}")
        if self.guard is not None and query.share > share:
            raise Refusal("locate", f"client {self.client}: share must be at most {share}, got {query.share}")

    def _digest(self, parcel: Parcel, weights: Update) -> str:
        """Return the digest of an order; ``weights`` are those that the client does not keep."""
        return parcel.digest if self.guard is None else self.guard.digest(parcel, weights)

    def _again_guarded(self, order: Order, state: ClientState, digest: str, weights: Update) -> Reply | None:
        """Return the stored answer to the same order; refuse a different order for an answered round."""

        def same_model() -> bool:
            kept = state.weights
            return all(torch.equal(tensor, weights[name]) for name, tensor in kept.items())

        if self.guard is None or not self.guard.is_repeated(order.round, digest, same_model):
            return None
        if state.sent is None or state.sent_order != digest:
            raise Refusal("order", f"client {self.client}: its answer to round {order.round} is gone")
        return state.sent

    def _told(self, metrics: dict[str, float]) -> dict[str, float]:
        return metrics if self.guard is None else self.guard.metrics(metrics)

    def _attack_own(self, order: Order, start: Start, sent: Update, work: Work) -> None:
        """Withhold an update from which the node itself rebuilds its samples."""
        limits = None if self.guard is None else self.guard.policy.own_attack
        if limits is None or self.parts.own_attack is None or work.truth is None:
            return
        self._load(start)
        who = f"client {self.client}, round {order.round}"
        reason = self.parts.own_attack(
            limits,
            model=start.model,
            update=sent,
            defense=self.parts.defense,
            data=self._data(),
            truth=work.truth,
            lr=order.lr,
            steps=work.steps,
            who=who,
        )
        if reason is not None:
            raise Refusal("leak", f"{who}: {reason}")

    def _leave(
        self, parcel: Parcel, digest: str, reply: Reply, work: Work, releases: Sequence[Release]
    ) -> None:
        """Check an answer against the policy before it leaves."""
        if self.guard is not None:
            held = len(self._data())
            self.guard.leave(parcel, digest, reply, samples=work.samples, held=held, releases=releases)

    def _remember(self, records: RecordDict, order: Order, state: ClientState) -> None:
        client_state.save(records, order.model_hash, state)
        client_state.keep_only(records, {self.parts.model.hash, order.model_hash})

    def _again(self, parcel: Parcel, state: ClientState) -> Reply | None:
        """Return the stored answer to an order that was answered before; None if there is none."""
        if state.sent is None or state.sent_round < parcel.order.round:
            return None
        if state.sent_order != parcel.digest:
            raise self._too_late(parcel.order, state)
        logger.info("client %d: gives its answer to round %d again", self.client, parcel.order.round)
        return state.sent

    def _too_late(self, order: Order, state: ClientState) -> MessageError:
        return MessageError(
            f"client {self.client}: expected an order after round {state.sent_round}, which it has answered, "
            f"got another one of round {order.round}: what it holds back would be counted twice"
        )

    def _accept(self, parcel: Parcel, kind: str) -> Order:
        """Return the order; refuse one for another client, or one that exceeds what this client gives."""
        if self.guard is not None:
            self.guard.accept(parcel, kind)
        if parcel.order.client != self.client:
            raise MessageError(f"client {self.client}: got an order for client {parcel.order.client}")
        if parcel.audit is not None and not self.allow_audit:
            raise PermissionError(
                f"client {self.client}: refuses the audit: its node-config does not have allow-audit=true"
            )
        return parcel.order

    def _start(self, parcel: Parcel, state: ClientState) -> Start | None:
        """Return the starting point of the round, or None if the whole model is needed first."""
        order = parcel.order
        model = self._model(order)
        # the client may have that version already if this order is a repeat
        if order.base >= 0 and state.version not in (order.base, order.version):
            logger.info("client %d: holds version %d, not %d", self.client, state.version, order.base)
            return None
        weights = self._weights(order, parcel.model, state, model)
        state = self._follow(order, state, weights)
        buffers = self._buffers(parcel.buffers, state, model)
        return Start(model, state, weights, buffers, self._uncounted(order, state, weights))

    def _follow(self, order: Order, state: ClientState, weights: Update) -> ClientState:
        """Refuse a model that jumped; forget the residual if the model has moved too far for it."""
        if self.guard is None:
            return state
        if self.guard.follow(state.weights, weights, order.round, len(self._data())):
            return state
        logger.info("client %d: the model moved far: the residual is dropped", self.client)
        return replace(state, transform={})

    def _draws(self, order: Order, purpose: str) -> torch.Generator:
        """Return the generator: seeded by the run, or the operating system's if the run is not trusted."""
        if self.guard is not None:
            return self.guard.draws
        return generator_for(self.parts.seed, order.round, self.client, purpose)

    def _context(self, order: Order, start: Start) -> RoundContext:
        return RoundContext(
            round=order.round,
            client=self.client,
            generator=self._draws(order, "transform"),
            weights=start.weights,
            uncounted=start.uncounted,
        )

    def _locations(self, parcel: Parcel, start: Start) -> Update:
        blob = parcel.locations
        return self.parts.located.get(blob, {}, lambda: decode_masks(blob, start.weights)) if blob else {}

    def _model(self, order: Order) -> nn.Module:
        """Return this process's instance of the model that the order names."""
        parts = self.parts
        spec = parts.model
        if order.model_hash != spec.hash:
            spec = self._described(order)
        if spec.hash not in parts.models:
            # keep only the last of other models: a server may send many
            for other in parts.models.keys() - {parts.model.hash}:
                del parts.models[other]
            most = None if spec == parts.model else MOST_ENTRIES
            built = build_model(spec, allowed=[parts.model.target], manipulated=self.allow_audit, most=most)
            if self.guard is not None and parts.defense.check is not None:
                parts.defense.check(built)
            batch_norm.set_mode(built, training=parts.training, bn=parts.bn)
            parts.models[spec.hash] = built.to(device=parts.device, dtype=parts.dtype)
        return parts.models[spec.hash]

    def _described(self, order: Order) -> ModelSpec:
        """Return a model other than the configured one, if this client accepts it."""
        who, pinned = f"client {self.client}", self.parts.model
        spec = ModelSpec.from_json(order.model_spec)
        if spec.hash != order.model_hash:
            raise MessageError(f"{who}: model {order.model_hash[:8]} is not the one described")
        if self.parts.pin_model and not spec.looks_like(pinned):
            raise PermissionError(f"{who}: refuses model {order.model_hash[:8]}: pinned to {pinned.hash[:8]}")
        if spec.is_manipulated and not self.allow_audit:
            raise PermissionError(
                f"{who}: refuses a manipulated model: its node-config does not have allow-audit=true"
            )
        return spec

    def _weights(self, order: Order, blob: bytes, state: ClientState, model: nn.Module) -> Update:
        if order.base < 0:
            like = {name: p.detach() for name, p in parameters(model).items()}
            return self.parts.restored.get(blob, {}, lambda: decode(blob, like))
        if state.version == order.version:
            return state.weights
        return self.parts.restored.get(
            blob, state.weights, lambda: apply_change(state.weights, blob, within=state.locations)
        )

    def _buffers(self, blob: bytes, state: ClientState, model: nn.Module) -> Update:
        own = _read_buffers(model)
        if self.parts.bn == "local":
            return state.buffers or _initial(own)
        return decode(blob, own) if blob else own

    def _uncounted(self, order: Order, state: ClientState, weights: Update) -> Update | None:
        if state.sent is None or state.sent_round == order.counted or not remembers(state.transform):
            return None
        logger.info("client %d: the update of round %d was not counted", self.client, state.sent_round)
        return decode(state.sent.update, weights, within=state.locations)

    def _work(self, start: Start, parcel: Parcel, rules: Rules | None = None) -> Work:
        """Compute the update by ``rules``; None: the defense's own."""
        parts, order, audit = self.parts, parcel.order, parcel.audit
        rules = parts.defense.rules if rules is None else rules
        if self.guard is not None:
            self.guard.may_work(len(self._data()))
        if parts.inspection is not None:
            self._load(start)
            parts.inspection(start.model, self._data(), who=f"client {self.client}, round {order.round}")
        trained = self._train(start, order, audit, rules)
        buffers = _read_buffers(start.model)
        raw = None
        if audit is not None and audit.raw:
            # a defense that changes the model has no raw update: the model itself is the defense
            defended = rules != Rules() and parts.defense.model is None
            raw = self._train(start, order, audit, Rules()).update if defended else trained.update
        return Work(
            round=order.round,
            update=trained.update,
            buffers=buffers,
            samples=trained.samples,
            steps=trained.steps,
            rate=trained.rate,
            loss=trained.loss,
            metrics=trained.metrics,
            truth=_truth(trained) if trained.batches else None,
            raw=raw,
        )

    def _train(self, start: Start, order: Order, audit: AuditOrder | None, rules: Rules) -> Trained:
        """Train by ``rules``, from the round's start, with the round's seed."""
        parts = self.parts
        self._load(start)
        job = Job(
            round=order.round,
            lr=order.lr,
            generator=self._draws(order, "rules"),
            rules=rules,
            batch_size=(audit.batch_size or None) if audit is not None else None,
            keep_batches=(audit is not None and audit.truth) or self._attacks_own,
        )
        seed = seed_for(parts.seed, order.round, self.client, "training") if self.guard is None else None
        with seeded(seed, parts.device):
            return parts.trainer(start.model, self._data(), job)

    @property
    def _attacks_own(self) -> bool:
        return self.guard is not None and self.guard.policy.own_attack is not None

    def _load(self, start: Start) -> None:
        """Put the weights and the buffers that the round starts from into its model."""
        model = start.model
        with torch.no_grad():
            for name, tensor in (parameters(model) | state_buffers(model)).items():
                tensor.copy_(start.weights[name] if name in start.weights else start.buffers[name])

    def _data(self) -> LocalData:
        whole = self.parts.data_of(self.client, self.num_clients)
        game = self._game
        return whole if game is None else replace(whole, samples=game.deal(self.client, whole.samples).kept)

    @property
    def _game(self) -> Game | None:
        """The membership audit that this client plays in."""
        game = self.parts.game
        return game if game is not None and self.allow_audit and game.plays(self.client) else None

    def _evidence(self, audit: AuditOrder | None, work: Work) -> ConfigRecord | None:
        """Return what an audited client reveals beside its update."""
        if audit is None:
            return None
        return pack_audit(work.truth if audit.truth else None, work.raw, self._candidates(audit))

    def _candidates(self, audit: AuditOrder) -> tuple[Records, Tensor] | None:
        if self._game is None or audit.candidates <= 0:
            return None
        whole = self.parts.data_of(self.client, self.num_clients).samples
        shown, members, _ = self._game.deal(self.client, whole)
        most = audit.candidates
        return Records(pixels(shown.inputs[:most], "cpu"), shown.labels[:most]), members[:most]


@dataclass(frozen=True)
class Start:
    """Starting point of a client's round."""

    model: nn.Module
    state: ClientState
    weights: Update
    buffers: Update
    uncounted: Update | None

    def memory(self, work: Work, defense: Defense) -> State:
        """Return the transform's state."""
        return self.state.transform or defense.transform.init(work.update)


def _read_buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in state_buffers(model).items()}


def _initial(buffers: Update) -> Update:
    """Return BatchNorm's initial buffers: mean 0, variance 1, count 0."""
    return {
        name: torch.ones_like(tensor) if name.endswith("running_var") else torch.zeros_like(tensor)
        for name, tensor in buffers.items()
    }


def remembers(state: State) -> bool:
    """Return whether a transform's state holds anything."""
    return any(isinstance(node, Tensor) or remembers(node) for node in state.values())


def _metrics(work: Work, memory: State) -> dict[str, float]:
    residual = residual_norm(memory)
    return measured(work) | ({} if residual is None else {"residual_norm": residual})


def measured(work: Work) -> dict[str, float]:
    """Return the metrics of training: those of the user's function, else the loss."""
    return dict(work.metrics) or {"loss": work.loss}


def _norms(work: Work, whole: Update, sent: Update) -> dict[str, float]:
    """Return the gradient's norm, and the share of the squared norm that the defense withheld."""
    held_back = norm([tensor - sent[name] for name, tensor in whole.items()])
    everything = norm(list(whole.values()))
    share = (held_back / everything) ** 2 if everything else 0.0
    return {"gradient_norm": norm(list(work.update.values())), "pruned_share": share}


def _truth(trained: Trained) -> Truth:
    def joined(part: str) -> Tensor:
        return torch.cat([getattr(batch, part) for batch in trained.batches]).cpu()

    augmented = any(batch.trained is not batch.pixels for batch in trained.batches)
    return Truth(joined("pixels"), joined("labels"), joined("trained") if augmented else None)
