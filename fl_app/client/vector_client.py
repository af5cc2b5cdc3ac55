"""Client of the FL-TOP family: it sends a vector, and holds no model between rounds.

It stores the agreed coordinates, packed, by their hash, and builds the initial weights
from the run's seed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from flwr.app import ConfigRecord, RecordDict
from torch import Tensor, nn

from fl_app.client.client import Client, Start, measured, remembers
from fl_app.client.secure import SecureMember
from fl_app.client.state import ClientState, Work
from fl_app.policy import Refusal
from fl_app.privacy import ClientNoise, NoiseGrid, Release
from fl_app.privacy.draws import OwnDraws
from fl_app.secagg import Job, Terms, hash_config
from fl_app.seeding import generator_for
from fl_app.sketches import Picked, Sketch, flatten, mask_coordinates, scatter
from fl_app.storage.fingerprint import hash_tensors
from fl_app.training import parameters, state_buffers
from fl_app.training.constrained import confine
from fl_app.transforms import State
from fl_app.types import Update
from fl_app.wire import decode, decode_masks, encode
from fl_app.wire.messages import VALUES, Answer, MessageError, Order, Parcel, Plan, Reply


@dataclass(frozen=True)
class VectorClient(Client):
    """One client whose defense has a scheme."""

    def answer(self, parcel: Parcel, records: RecordDict) -> tuple[Reply, ConfigRecord | None]:
        """Train as ordered and send the vector of the update."""
        order, plan = self._accept(parcel, "train"), self._plan(parcel)
        state = self._state(order, records)
        again = self._again(parcel, state) if self.guard is None else None
        if again is not None:
            return again, None
        known = parcel.locations or state.coordinates
        lacks_start = order.base >= 0 and self.parts.start is None and not state.weights
        if plan.coordinates and (not known or lacks_start):
            return Reply(Answer(order.round, self.client, need_model=True)), None
        start, sketch = self._begin(parcel, plan, state, known)
        keeps = self._keeps_weights(plan)
        digest = self._digest(parcel, {} if keeps else start.weights)
        again = self._again_guarded(order, state, digest, start.weights)
        if again is not None:
            return again, None
        rules = confine(self.parts.defense.rules, sketch.trained, start.weights)
        work = self._work(start, parcel, rules)
        rewritten, memory = self._rewrite(work, sketch, start, order)
        update = self._pack(sketch.take(rewritten), parcel, plan, start, records)
        reply = Reply(
            answer=self._answer(work),
            update=update,
            buffers=encode(work.buffers) if work.buffers and self.parts.bn == "sync" else b"",
            # metrics of the data itself would leave without noise
            metrics={} if self._secretive else self._told(measured(work)),
        )
        self._leave(parcel, digest, reply, work, self._releases(plan, records))
        own_buffers = work.buffers if self.parts.bn == "local" else {}
        guarded = self.guard is not None
        kept = ClientState(
            # a guarded client compares the next model with them; one that cannot make them builds on them
            weights=start.weights if keeps else {},
            buffers=own_buffers,
            transform=memory,
            sent_round=order.round,
            sent_order=digest,
            # a second answer with new noise would be a second release
            sent=reply
            if own_buffers or memory or not self._repeats or (guarded and self.parts.secure is None)
            else None,
            coordinates=known if plan.coordinates else b"",
            plan=self._plan_digest,
        )
        self._remember(records, order, kept)
        return reply, self._evidence(parcel.audit, work)

    def _rewrite(self, work: Work, sketch: Sketch, start: Start, order: Order) -> tuple[Update, State]:
        """Return the update after the defense's transform, and the memory of a transform that has one."""
        transform, known = self.parts.defense.transform, work.update
        locations = mask_coordinates(sketch.coordinates, known) if isinstance(sketch, Picked) else None
        ctx = replace(self._context(order, start), locations=locations, samples=work.samples or None)
        sent, memory = transform.apply(known, start.memory(work, self.parts.defense), ctx)
        return sent, memory if remembers(memory) else {}

    def _keeps_weights(self, plan: Plan) -> bool:
        needs_start = self.parts.start is None and bool(plan.coordinates)
        return needs_start or (self.guard is not None and self.parts.privacy is None)

    def _plan(self, parcel: Parcel) -> Plan:
        if parcel.plan is None:
            raise MessageError(f"client {self.client}: the order has no plan, and its vector needs one")
        return parcel.plan

    def _begin(self, parcel: Parcel, plan: Plan, state: ClientState, known: bytes) -> tuple[Start, Sketch]:
        """Return the starting point of the round, and the sketch to send."""
        parts, order = self.parts, parcel.order
        model = self._model(order)
        like = {name: p.detach() for name, p in parameters(model).items()}
        fixed = self._coordinates(plan, known, like) if plan.coordinates else None
        if parts.defense.scheme is None:
            raise ValueError(f"client {self.client}: its defense has no scheme")
        sketch = parts.defense.scheme(sum(p.numel() for p in like.values()), plan.seed, fixed)
        if order.base < 0:
            weights = self._weights(order, parcel.model, state, model)
        elif fixed is None:
            raise MessageError(f"client {self.client}: keeps no version {order.base} of the model")
        else:
            weights = parts.restored.get(
                parcel.model,
                state.weights if parts.start is None else {},
                lambda: self._from_start(plan, _decode_values(parcel.model, fixed, like), fixed, state),
            )
        state = self._follow(order, state, weights)
        return Start(model, state, weights, self._buffers(parcel.buffers, state, model), None), sketch

    def _coordinates(self, plan: Plan, blob: bytes, like: Update) -> Tensor:
        """Return the agreed coordinates, if they match those of the server's plan."""

        def unpack() -> Update:
            return {VALUES: torch.nonzero(flatten(decode_masks(blob, like))).flatten().cpu()}

        coordinates = self.parts.located.get(blob, {}, unpack)[VALUES]
        if hash_tensors([coordinates]) != plan.coordinates:
            raise MessageError(f"client {self.client}: its coordinates are not those of the order")
        return coordinates

    def _from_start(self, plan: Plan, values: Tensor, coordinates: Tensor, state: ClientState) -> Update:
        if self.parts.start is None:
            # all other weights are those of the whole model received earlier
            return scatter(values, coordinates, state.weights)
        start = self.parts.start()
        if hash_tensors(start.values()) != plan.start:
            raise MessageError(
                f"client {self.client}: the initial weights that it makes are not the server's; "
                "both need the same seed, init, model and versions"
            )
        return scatter(values, coordinates, start)

    def _model(self, order: Order) -> nn.Module:
        """Return the model of the order; refuse one whose buffers would leave beside the vector."""
        model = super()._model(order)
        if self._secretive and state_buffers(model):
            raise Refusal(
                "buffers", f"client {self.client}: its model has buffers, and only a vector may leave"
            )
        return model

    @property
    def _secretive(self) -> bool:
        """True if nothing but the vector may leave."""
        return self.parts.privacy is not None or self.parts.secure is not None

    @property
    def _repeats(self) -> bool:
        """True if the same order gives the same vector; under masks a client answers once, then refuses."""
        privacy, masked = self.parts.privacy, self.parts.secure is not None
        return masked or privacy is None or privacy.replayable

    def _answer(self, work: Work) -> Answer:
        return Answer(work.round, self.client, 0 if self._secretive else work.samples, work.steps)

    def _pack(self, values: Tensor, parcel: Parcel, plan: Plan, start: Start, records: RecordDict) -> bytes:
        """Return the vector to send: clipped, noised and masked, as configured."""
        parts, order = self.parts, parcel.order
        if parts.secure is None:
            values = self._protect(values, parcel, plan)
            return encode({VALUES: values.to("cpu", parts.dtype)})
        if not parcel.secure:
            raise MessageError(
                f"client {self.client}: sends its vector under masks only, and the order has none"
            )
        member = SecureMember(parts.secure, self.client, records)
        job = Job(
            model=order.model_hash,
            weights=hash_tensors(start.weights.values()),
            lr=order.lr,
            start=plan.start,
            coordinates=plan.coordinates,
            seed=plan.seed,
            clip=plan.clip,
            settings=parts.settings,
            facts=parts.facts,
            config=hash_config(parcel.config),
        ).digest
        member.check_job(job)
        terms = member.terms
        if order.round != terms.round:  # the round seeds the draw of a batch, and every sum must have its own
            raise MessageError(
                f"client {self.client}: expected an order of round {terms.round}, which was agreed on, "
                f"got one of round {order.round}"
            )
        privacy = self._privacy
        if privacy is None:
            return member.mask(parcel.secure, values.cpu().numpy(), job)
        shares = privacy.shares(self._cohort(privacy, len(terms.participants)), terms.threshold)
        grid = self._grid(terms, plan.clip, shares.local)
        whole = privacy.protect_whole(values, grid, self._generator(terms.round, terms.attempt))
        return member.mask(parcel.secure, whole, job)

    def _releases(self, plan: Plan, records: RecordDict) -> list[Release]:
        """Return the privacy cost of an answer against the server, which knows the participants.

        It is the cost to this client as a whole; to its records, if its policy counts in these.
        """
        privacy, cohort, threshold = self.parts.privacy, plan.cohort, None
        if privacy is None:
            return []
        if privacy.records is not None and self.guard is not None and self.guard.policy.dp.unit == "record":
            return [privacy.records.release]
        if self.parts.secure is not None:
            terms = SecureMember(self.parts.secure, self.client, records).terms
            cohort, threshold = len(terms.participants), terms.threshold
        return [Release(1.0, privacy.shares(cohort, threshold).for_server(), 1, privacy.delta)]

    def _protect(self, values: Tensor, parcel: Parcel, plan: Plan) -> Tensor:
        privacy = self._privacy
        if privacy is None:
            return values
        shares = privacy.shares(self._cohort(privacy, plan.cohort), None)
        generator = self._generator(parcel.order.round, parcel.attempt)
        return privacy.protect(values, clip=plan.clip, shares=shares, generator=generator)

    def _cohort(self, privacy: ClientNoise, cohort: int) -> int:
        if cohort > privacy.largest_cohort:
            raise MessageError(
                f"client {self.client}: shares its noise with {privacy.largest_cohort} clients at most, "
                f"got {cohort}"
            )
        if self.guard is not None:
            self.guard.share_noise(cohort)
        return cohort

    @property
    def _privacy(self) -> ClientNoise | None:
        """The mechanism; a client that does not trust the run uses the operating system's noise."""
        privacy = self.parts.privacy
        return privacy if privacy is None or self.guard is None else replace(privacy, secure=True)

    def _draws(self, order: Order, purpose: str) -> torch.Generator:
        """Return the generator of local steps; noise of records has the same source as that of vectors."""
        privacy = self.parts.privacy
        if privacy is not None and privacy.records is not None and not privacy.replayable:
            return OwnDraws()
        return super()._draws(order, purpose)

    def _generator(self, round: int, attempt: int) -> torch.Generator:
        return generator_for(self.parts.seed, round, self.client, f"noise/{attempt}")

    def _grid(self, terms: Terms, clip: float, multiplier: float) -> NoiseGrid:
        """Return the grid of the noise; it adapts to the terms' step, so no step weakens the protection."""
        try:
            return NoiseGrid.of_step(
                terms.fixed_point.step, clip=clip, multiplier=multiplier, size=terms.size
            )
        except ValueError as error:
            raise MessageError(f"client {self.client}: {error}") from error


def _decode_values(blob: bytes, coordinates: Tensor, like: Update) -> Tensor:
    """Return the values at the coordinates that a blob holds."""
    first = next(iter(like.values()))
    return decode(blob, {VALUES: first.new_empty(len(coordinates))})[VALUES]
