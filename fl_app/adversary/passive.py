"""Honest-but-curious server: records what it saw of chosen clients in chosen rounds.

Nothing is attacked during training: a sighting keeps references to what passed
by anyway, and becomes an `Observation` afterwards.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from flwr.app import Message
from torch import Tensor, nn

from fl_app.adversary.evidence_checks import check_candidates, check_like, check_truth, check_work
from fl_app.console.words import foreign
from fl_app.data import Vocabulary
from fl_app.defenses.ats import public_rewrites
from fl_app.models import ModelSpec
from fl_app.text import WordPiece
from fl_app.types import Observation, Records, Trace, Truth, Update
from fl_app.wire import CodecError, decode, decode_masks
from fl_app.wire.messages import (
    IDENTIFY,
    LOCATE,
    TRAIN,
    Answer,
    AuditOrder,
    MessageError,
    Order,
    add_audit_order,
    drop_audit,
    read_candidates,
    read_order,
    round_of,
    take_audit,
    unpack_identity,
    unpack_order,
    unpack_reply,
)

logger = logging.getLogger(__name__)

SUM = -1
"""The client of what secure aggregation reveals: the sum over all of them."""

Chosen = Sequence[int] | str
"""A list of numbers, or "all"."""


@dataclass(frozen=True)
class Sighting:
    """Server's view of one client in one round, with the truth that an audit revealed."""

    order: Order
    answer: Answer
    weights: Update
    buffers: Update
    update: Update
    sent_buffers: Update
    locations: Update | None
    """The positions that the order named."""
    broadcaster: bool
    """True if this client was asked to name them."""
    truth: Truth | None
    raw: Update | None
    asked: int | None = None
    """The batch size that an audit asked this client for; 0: its own; None: not known."""
    masked: bool = False
    """True if the update is hidden under the masks of secure aggregation."""
    summed: int = 0
    """Number of clients whose mean this is (the client is then `SUM`); 0: one client's own update."""
    cohort: tuple[int, ...] = ()
    """Those clients."""

    audited: int | None = None
    """Number of samples that an audit revealed."""
    participant: int | None = None
    """The client who saw it, from the models that it got; None: the server."""

    @property
    def samples(self) -> int | None:
        """Number of samples behind the update, as the client or an audit told; None: not known."""
        return self.answer.samples or self.audited

    @property
    def manipulated(self) -> ModelSpec | None:
        """Model that a malicious server sent in place of the round's; None: it sent the round's."""
        return manipulated_model(self.order)


@dataclass(frozen=True)
class Public:
    """Public facts on the task."""

    num_classes: int
    input_shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    defense: tuple[Trace, ...]
    """Traces of the clients' defense."""
    training: bool
    local_batch_size: int | None = None
    """The most samples that a client takes for one gradient, in a local step or in a round without any."""
    vocabulary: Vocabulary | WordPiece | None = None
    """Vocabulary, where labels are tokens."""
    features: tuple[str, ...] = ()
    """Names of the entries of a row, where samples are those of a table."""


class PassiveServer:
    """Passive tap: returns every message unchanged, less the audit records that it requested.

    ``candidates`` is the number that a membership audit asks each attacked client for. A ``blind`` tap
    takes them and keeps nothing else.
    """

    def __init__(
        self,
        *,
        rounds: Chosen,
        clients: Chosen,
        model: Callable[[], tuple[Update, Update]],
        read: Callable[[bytes, int, Update, Update | None], Update],
        batch_size: int | None = None,
        contrast: bool = True,
        masked: bool = False,
        candidates: int = 0,
        blind: bool = False,
        public: Public,
    ) -> None:
        self._public = public
        self._rounds = rounds
        self._clients = clients
        self._model = model
        self._read = read
        self._ask = AuditOrder(batch_size=batch_size or 0, truth=True, raw=contrast)
        if candidates:
            # clients train as in every other round; truths are needed only to know whose sum it was
            self._ask = AuditOrder(truth=masked, candidates=candidates)
        self._masked = masked
        self._blind = blind
        self._own_samples: dict[tuple[int, int], tuple[Order, Answer, Truth]] = {}
        self._allowed: dict[int, bool] = {}
        self._broadcasters: set[tuple[int, int]] = set()
        self.sightings: list[Sighting] = []
        self.candidates: dict[int, tuple[Records, Tensor]] = {}
        """Candidates of a membership audit by client, and which of them are members."""
        self.notes: list[str] = []

    def concerns(self, message: Message) -> bool:
        """Say whether an exchange concerns the attack: no other is copied or read."""
        if message.metadata.message_type != TRAIN:
            return message.metadata.message_type in (IDENTIFY, LOCATE)
        number = round_of(message)
        return number is None or self._is_attacked(number)

    def on_send(self, message: Message) -> Message:
        """Ask an attacked client for the truth, if it allows audits."""
        if message.metadata.message_type in (LOCATE, TRAIN):
            order = read_order(message)
            if self._allowed.get(order.client, False):
                if self._ask.candidates and order.client in self.candidates and not self._masked:
                    return message  # all is known, and no round is to be altered
                if self.attacks(order):
                    add_audit_order(message, self._ask)
                elif self._masked and self.in_attacked_round(order):
                    # the sum is attacked then, and all of them belong to it
                    add_audit_order(message, replace(self._ask, raw=False))
        return message

    def on_reply(self, sent: Message, reply: Message) -> Message:
        """Remember an attacked client's reply; take the audit record out of it."""
        if reply.has_error():
            return reply
        if sent.metadata.message_type == IDENTIFY:
            self._learn(reply)
        elif sent.metadata.message_type == LOCATE:
            self._broadcasters.add(_key(read_order(sent)))
        elif sent.metadata.message_type == TRAIN and self.in_attacked_round(order := read_order(sent)):
            self._remember(order, sent, reply)
        return reply

    def remember_sum(self, server_round: int, mean: Callable[[], Update], clients: list[int]) -> None:
        """Remember what secure aggregation reveals in an attacked round: the clients' mean update."""
        weights, buffers = self._model()
        known = [self._own_samples.get((server_round, client)) for client in clients]
        if not any(known):
            return  # not an attacked round, or nobody allows audits
        shown = [one for one in known if one is not None]
        order, answer, _ = shown[0]
        truths = [truth for _, _, truth in shown]
        self.sightings.append(
            Sighting(
                order=replace(order, client=SUM),
                answer=replace(answer, client=SUM, samples=0),
                weights=weights,
                buffers=buffers,
                update=mean(),
                sent_buffers={},
                locations=None,
                broadcaster=False,
                truth=together(truths) if len(shown) == len(clients) else None,
                raw=None,
                asked=self._ask.batch_size,
                summed=len(clients),
                cohort=tuple(clients),
                audited=sum(len(truth.labels) for truth in truths) if len(shown) == len(clients) else None,
            )
        )

    def attacks(self, order: Order) -> bool:
        """Say whether the client of an order is attacked in its round."""
        return self.in_attacked_round(order) and _chosen(order.client, self._clients)

    def in_attacked_round(self, order: Order) -> bool:
        """Say whether any client is attacked in the round of an order."""
        return self._is_attacked(order.round)

    def _is_attacked(self, number: int) -> bool:
        """Say whether a round is attacked; a chosen one without an update is replaced by the next one."""
        if isinstance(self._rounds, str) or (self._masked and not any(self._allowed.values())):
            return _chosen(number, self._rounds)
        planned = sum(chosen <= number for chosen in self._rounds)
        return planned > sum(reached < number for reached in self.reached())

    def reached(self) -> set[int]:
        """Return the rounds in which the attack saw an update; under masks, a sum."""
        return {sighting.order.round for sighting in self.sightings if bool(sighting.summed) == self._masked}

    def moved(self) -> str | None:
        """Return a note on rounds that were attacked in place of chosen ones; None if there are none."""
        chosen = set() if isinstance(self._rounds, str) else set(self._rounds)
        instead = self.reached() - chosen if chosen else set()
        if not instead:
            return None
        missed, attacked = (", ".join(map(str, sorted(r))) for r in (chosen - self.reached(), instead))
        return f"attack.rounds: no update to attack in round {missed}; attacked round {attacked} instead"

    def model_for(self, order: Order) -> tuple[Update, Update]:
        """Return the weights and the buffers of the model that goes with an order."""
        return self._model()

    def _learn(self, reply: Message) -> None:
        try:
            identity = unpack_identity(reply)
        except MessageError:
            return  # the roster names it
        self._allowed[identity.client] = identity.allow_audit
        note = f"client {identity.client} does not allow audits: attacks on it are not scored"
        if not identity.allow_audit and _chosen(identity.client, self._clients) and note not in self.notes:
            self.notes.append(note)

    def _remember(self, order: Order, sent: Message, reply: Message) -> None:
        weights, buffers = self.model_for(order)
        try:
            parcel = unpack_order(sent)
            # coordinates for the whole run, which come with a plan, are public: they tell nothing of a round
            named = parcel.locations if parcel.plan is None else b""
            locations = decode_masks(named, weights) if named else None
            truth, raw = self._revealed(order.client, parcel.audit, reply)
            seen = unpack_reply(reply)
            if seen.answer.need_model:
                return
            if truth is not None or self.attacks(order):
                check_work(seen.answer, truth, self._public)
            if truth is not None and self._masked:
                self._own_samples[_key(order)] = (order, seen.answer, truth)
            if self._blind or not self.attacks(order):
                return
            sighting = Sighting(
                order=order,
                answer=seen.answer,
                weights=weights,
                buffers=buffers,
                update=self._read(seen.update, order.client, weights, locations),
                sent_buffers=decode(seen.buffers, buffers) if seen.buffers else {},
                locations=locations,
                broadcaster=_key(order) in self._broadcasters,
                truth=truth,
                raw=None if raw is None else check_like("the raw update", raw, weights),
                asked=self._ask.batch_size if self._allowed.get(order.client, False) else 0,
                masked=self._masked,
                audited=None if truth is None else len(truth.labels),
            )
        except (MessageError, CodecError) as error:
            reason = foreign(error)
            logger.warning("round %d: client %d cannot be attacked: %s", order.round, order.client, reason)
            return
        self.sightings.append(sighting)

    def _revealed(
        self, client: int, asked: AuditOrder | None, reply: Message
    ) -> tuple[Truth | None, Update | None]:
        """Take the audited truth out of a reply, checked; unrequested parts are dropped unread."""
        if asked is None:
            drop_audit(reply.content)
            return None, None
        shown = read_candidates(reply.content) if asked.candidates else None
        truth, raw = take_audit(reply.content)
        if shown is not None:
            check_candidates(*shown, self._public, asked.candidates)
            self.candidates.setdefault(client, shown)
        if truth is not None:
            check_truth(truth, self._public, asked.batch_size or None)
        return truth if asked.truth else None, raw if asked.raw else None


def manipulated_model(order: Order) -> ModelSpec | None:
    """Return the model that an order describes if a malicious server changed it."""
    spec = ModelSpec.from_json(order.model_spec) if order.model_spec else None
    return spec if spec is not None and spec.is_manipulated else None


def observe(
    sighting: Sighting,
    template: nn.Module,
    public: Public,
    *,
    grant_labels: bool,
    grant_length: bool = False,
    undefended: bool = False,
    history: Sequence[Observation] = (),
) -> Observation:
    """Return the attacker's observation of the update as sent, or as it was before the defense.

    ``history`` are its earlier observations of the same client; an undefended update has none.
    """
    update = sighting.raw if undefended and sighting.raw is not None else sighting.update
    device = next(template.parameters()).device
    update = {name: tensor.to(device) for name, tensor in update.items()}
    truth = sighting.truth if grant_labels or grant_length else None  # else nobody looks at it
    true = None if truth is None else truth.labels.to(device)
    return Observation(
        model=_with(template, sighting.weights | sighting.buffers),
        update=update,
        sent={name: tensor != 0 for name, tensor in update.items()},
        lr=sighting.order.lr,
        local_steps=sighting.answer.steps or None,
        local_batch_size=public.local_batch_size if sighting.answer.steps else None,
        batch_size=sighting.samples,
        num_classes=public.num_classes,
        input_shape=public.input_shape,
        mean=public.mean,
        std=public.std,
        defense=None if undefended else public.defense,
        labels=true if grant_labels else None,
        buffers=sighting.sent_buffers or None,
        training=public.training,
        round=sighting.order.round,
        locations=None if undefended else sighting.locations,
        broadcaster=None if undefended or sighting.locations is None else sighting.broadcaster,
        history=() if undefended else tuple(history),
        same_batch=_same_batch(sighting, public),
        length=int((true >= 0).sum()) if grant_length and true is not None else None,
        rewrites=() if undefended else public_rewrites(public.defense),
        features=public.features or None,
        cohort=sighting.cohort or None,
        manipulated=sighting.manipulated is not None,
    )


def _same_batch(sighting: Sighting, public: Public) -> bool | None:
    """Return whether the client computes on all its samples in every step of every round; None if unknown.

    A client takes as many samples as it is asked for, if it has them: fewer are all
    that it has. One that takes local steps goes through all of them unless it is asked
    for a number. As many as were asked for tell nothing: other rounds may take others.
    """
    samples, regular = sighting.samples, public.local_batch_size
    if sighting.asked is None or regular is None or samples is None or samples > regular or sighting.summed:
        return None
    goes_through_all = bool(sighting.answer.steps) and sighting.asked == 0
    return True if goes_through_all or samples < (sighting.asked or regular) else None


def _key(order: Order) -> tuple[int, int]:
    return order.round, order.client


def _chosen(number: int, chosen: Chosen) -> bool:
    return chosen == "all" or number in chosen


def together(truths: Sequence[Truth]) -> Truth:
    """Return the samples of several clients as those of one."""

    def joined(part: str) -> Tensor | None:
        tensors = [getattr(truth, part) for truth in truths]
        return None if any(tensor is None for tensor in tensors) else torch.cat(tensors)

    inputs, labels = joined("inputs"), joined("labels")
    if inputs is None or labels is None:
        raise ValueError("audit: a truth must have inputs and labels")
    return Truth(inputs, labels, joined("trained"))


def _with(template: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    model = copy.deepcopy(template)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name in tensors:  # not frozen, and no second name of another
                tensor.copy_(tensors[name])
    return model
