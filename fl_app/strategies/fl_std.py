"""FL-STD on Flower, and the base of the FL-TOP family: clients send vectors, and count alike."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from typing import Any

import torch
from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid

from fl_app.privacy import ClientLevel, Ledger, NoiseShares
from fl_app.secagg import ProtocolError, RoundFailed, smallest_threshold
from fl_app.seeding import SERVER, generator_for, seed_for
from fl_app.sketches import Scheme, Sketch, everything
from fl_app.storage.fingerprint import hash_tensors
from fl_app.storage.tree_file import Tree
from fl_app.strategies.aggregate import RunningSum
from fl_app.strategies.begun import Begun
from fl_app.strategies.fed_avg import FedAvg
from fl_app.strategies.secure import SecureAggregation
from fl_app.training import PublicRound, parameters
from fl_app.types import Update
from fl_app.wire import CodecError, decode
from fl_app.wire.messages import (
    OFFER,
    SHARE,
    VALUES,
    Answer,
    MessageError,
    Plan,
    Reply,
    content_bytes,
    pack_plan,
    pack_secure,
    unpack_secure,
)


class BudgetSpent(Exception):
    """One more round would cost more privacy than there is; nothing of it has begun."""


class FLStd(FedAvg):
    """FedAvg in which every client counts the same (Kerkouche et al., UAI 2021, FL-STD).

    An upload is one vector, the `Sketch` of an update. With ``privacy`` each client
    clips it to an L2 norm and adds its share of the noise; the server draws
    clients by coins, divides by the number that it expects, and stops before the budget
    would be passed. Clients keep nothing between rounds.
    """

    bound_sketches = 1
    """Over how many rounds' sketches the clipping bound is taken."""

    def __init__(
        self,
        *args: Any,
        public: PublicRound,
        privacy: ClientLevel | None = None,
        aggregation: SecureAggregation | None = None,
        scheme: Scheme | None = None,
        downlink: str = "auto",
        **kwargs: Any,
    ) -> None:
        if downlink not in ("auto", "full"):
            raise ValueError(
                f"{type(self).__name__}: clients keep no model: downlink must be full, got {downlink!r}"
            )
        super().__init__(*args, downlink="full", **kwargs)
        self.privacy = privacy
        self.aggregation = aggregation
        self.public = public
        self._scheme = everything() if scheme is None else scheme
        self.total_entries = sum(p.numel() for p in parameters(public.model).values())
        self.account = None if privacy is None else privacy.account()
        self.sketch = self.sketch_of(1)
        self.clip = 0.0 if privacy is None else self.bound(privacy)
        self.start_hash = ""
        """Of the version 0 that clients make by themselves; "" if they need not."""
        self.coordinates_hash = ""
        """Of the coordinates that were agreed on; "" if there are none."""
        self.on_sum: Callable[[int, Callable[[], Update], list[int]], None] | None = None
        """Is shown what secure aggregation reveals in a round: the mean change, and whose."""
        self._drawn: list[int] = []
        self._cohort = 0
        """How many share the noise."""
        self._deliveries: dict[int, bytes] = {}

    # What outlives a server that is killed.

    @property
    def repeats(self) -> bool:
        """Whether a round that is trained once more gives the same bits: not with new keys or new noise."""
        return self.aggregation is None and (self.privacy is None or self.privacy.replayable)

    def history(self) -> dict[str, Tree]:
        """Return what the rounds so far have left, as plain values."""
        account = self.account
        return super().history() | {
            "models": None if account is None else asdict(account.models),
            "server": None if account is None else account.server,
            "secure_run": None if self.aggregation is None else self.aggregation.run,
            "hashes": [self.start_hash, self.coordinates_hash],
        }

    def restore(self, history: dict[str, Tree]) -> None:
        """Go on from what `history` returned."""
        if history["hashes"] != [self.start_hash, self.coordinates_hash]:
            raise ValueError(
                "the initial weights or the coordinates made now are not those that the run began with; "
                "that takes the same data and versions"
            )
        super().restore(history)
        if self.account is not None:
            self.account.models = Ledger(**history["models"])
            self.account.server = history["server"]
        if self.aggregation is not None:
            self.aggregation.run = history["secure_run"]

    def begin_again(self, begun: Begun) -> None:
        """Charge a round that was cut short, unless all that was there then is still under masks."""
        self._attempt = begun.attempt + 1
        if self.privacy is None or self.account is None or not begun.clients:
            return
        if self.aggregation is None or begun.unmasking:
            shares = self._shares(len(begun.clients))
            self.account.charge(
                rate=self.privacy.rate,
                multiplier=shares.least(),
                cohort=begun.clients,
                server_multiplier=shares.for_server(),
            )

    # What a scheme of the family may change.

    def sketch_of(self, server_round: int) -> Sketch:
        """Return what clients send in a round."""
        return self._scheme(self.total_entries, round_seed(self._seed, server_round), None)

    def bound(self, privacy: ClientLevel) -> float:
        """Return the largest L2 norm of a vector: as configured, or as public samples have it."""
        sketches = (self.sketch_of(r) for r in range(1, self.bound_sketches + 1))
        # a whole number, as a config may have it, is none that a plan could hold
        return float(privacy.clip or self.public.bound(sketches))

    # The round.

    def draw(self, clients: list[int], server_round: int) -> list[int]:
        """Return who takes part: by coins of their own, or a set number. Nobody if the budget is spent."""
        if self.privacy is None or self.privacy.sampling == "fixed":
            drawn = super().draw(clients, server_round)
        else:
            drawn = self.privacy.draw(clients, generator_for(self._seed, server_round, SERVER, "cohort"))
        if self.privacy is not None and self.account is not None:
            least = self._shares(len(drawn)).least()
            if not self.account.allows(rate=self.privacy.rate, multiplier=least):
                raise BudgetSpent(
                    f"stopped before round {server_round}: it would bring epsilon to "
                    f"{self.account.after(rate=self.privacy.rate, multiplier=least):.4g}, the budget is "
                    f"{self.account.limit:g}"
                )
        return drawn

    def prepare(self, server_round: int, grid: Grid) -> None:
        """Leave the round out if too few were drawn; that is charged, since it can be seen."""
        self.sketch = self.sketch_of(server_round)
        self._drawn = list(self._sampled)
        if self.privacy is not None and len(self._sampled) < self.privacy.min_clients:
            self._note(
                f"{len(self._sampled)} clients were drawn, fewer than {self.privacy.min_clients}: left out"
            )
            self._sampled, self._drawn = {}, []
        self._cohort = len(self._drawn)
        if self.aggregation is not None and self._sampled:
            self._agree(self.aggregation, server_round)

    def deliver(self, client: int) -> bytes:
        """Return what secure aggregation has for ``client``."""
        return self._deliveries.get(client, b"")

    def plan(self) -> ConfigRecord | None:
        """Return what all orders say of the vector."""
        return pack_plan(
            Plan(
                start=self.start_hash,
                coordinates=self.coordinates_hash,
                seed=round_seed(self._seed, self.records[-1].round),
                cohort=self._cohort,
                clip=self.clip,
            )
        )

    def read(self, blob: bytes) -> Update:
        """Return the vector that a client uploaded."""
        return self._vector(blob, self.sketch)

    def _vector(self, blob: bytes, sketch: Sketch) -> Update:
        like = torch.empty(sketch.size, dtype=next(iter(self.weights.values())).dtype, device="cpu")
        return decode(blob, {VALUES: like})

    def see(self, blob: bytes, client: int, weights: Update, within: Update | None) -> Update:
        """Return the update that a vector stands for, or seems to stand for under its masks."""
        total = sum(tensor.numel() for tensor in weights.values())
        sketch = self.sketch
        if total != self.total_entries:
            sketch = self._scheme(total, round_seed(self._seed, self.records[-1].round), None)
        if self.aggregation is None:
            values = self._vector(blob, sketch)[VALUES]
        else:
            try:
                values = torch.from_numpy(self.aggregation.see(blob, client))
            except ProtocolError as error:
                raise CodecError(str(error)) from error
        if not values.isfinite().all():
            raise CodecError(f"{VALUES} holds NaN or infinity")
        return sketch.restore(values, weights)

    def gather(self, good: dict[int, Reply]) -> tuple[RunningSum, RunningSum, list[int]]:
        """Return the sum of the vectors, and whose they are."""
        if self.aggregation is None:
            return super().gather(good)
        total = RunningSum()
        if not self._sampled:
            return total, RunningSum(), []
        self._announce(unmasking=True)
        try:
            summed = self.aggregation.finish(
                self._ask, {client: good[client].update for client in sorted(good)}
            )
        except RoundFailed as error:
            self._note(str(error))
            self._name_refused(self.aggregation)
            return total, RunningSum(), []
        clients = list(summed.survivors)
        self._name_refused(self.aggregation, counted=clients)
        values = torch.from_numpy(summed.values()).to(next(iter(self.weights.values())))
        if self.on_sum is not None:
            mean = values / len(clients)
            self.on_sum(self.records[-1].round, lambda: self.sketch.restore(mean, self.weights), clients)
        total.value, total.weight = {VALUES: values}, float(len(clients))
        return total, RunningSum(), clients

    def weigh(self, answer: Answer) -> float:
        """Return 1: how many samples a client has is its own affair."""
        return 1.0

    def settle(self, clients: list[int]) -> bool:
        """Charge the round, and refuse a sum with the noise of too few clients to stay within the budget."""
        if self.privacy is None or self.account is None:
            return True
        shares, rate = self._shares(self._cohort), self.privacy.rate
        multiplier = shares.of_sum(len(clients)) if clients else shares.least()
        usable = self.account.allows(rate=rate, multiplier=multiplier)
        if not usable:
            self._note(
                f"the noise of {len(clients)} clients is too little for the budget: their sum is not used"
            )
            multiplier = shares.least()
        self.account.charge(
            rate=rate,
            multiplier=multiplier,
            cohort=self._drawn,
            server_multiplier=shares.for_server(len(clients) or None),
        )
        record = self.records[-1]
        record.epsilon, record.epsilon_server = self.account.epsilon, self.account.epsilon_server
        return usable

    def average(self, total: RunningSum) -> Update:
        """Return the sum over the number of clients; over the expected number if they were drawn by coins."""
        counted = round(total.weight)
        return total.over(counted if self.privacy is None else self.privacy.divisor(counted))

    def step(self, mean: Update, server_round: int) -> Update:
        """Return the weights after the mean change."""
        change = self.sketch.restore(mean[VALUES], self.weights)
        return super().step(change, server_round)

    def _agree(self, aggregation: SecureAggregation, server_round: int) -> None:
        """Go through the exchanges before training; without enough clients nobody is ordered to train."""

        def noise(cohort: int) -> tuple[float, float]:
            self._check_budget(cohort)
            return self.clip, self.clip * self._shares(cohort).local

        try:
            self._deliveries = aggregation.begin(
                self._ask,
                list(self._sampled),
                round=server_round,
                restarts=self._attempt,
                model=bytes.fromhex(hash_tensors(self.weights.values())),
                size=self.sketch.size,
                noise=None if self.privacy is None else noise,
            )
        except RoundFailed as error:
            self._note(str(error))
            self._sampled, self._drawn, self._deliveries = {}, [], {}
        else:
            self._cohort = len(aggregation.terms.participants)
        self._name_refused(aggregation)
        self._sampled = {c: node for c, node in self._sampled.items() if c in self._deliveries}

    def _check_budget(self, cohort: int) -> None:
        """Refuse to begin with so few clients, of those who were drawn, that their noise would not do."""
        if self.privacy is None or self.account is None:
            return
        if not self.account.allows(rate=self.privacy.rate, multiplier=self._shares(cohort).least()):
            raise RoundFailed(
                f"secure aggregation: the noise of {cohort} clients is too little for the budget"
            )

    def _name_refused(self, aggregation: SecureAggregation, counted: Collection[int] = ()) -> None:
        """Say whose messages were refused; whose vector came before that is counted all the same."""
        for client, reason in aggregation.refused.items():
            if client in counted:
                self._note(reason)
            else:
                self._fail(client, reason)

    def _ask(self, kind: str, blobs: Mapping[int, bytes]) -> dict[int, bytes]:
        """Send messages of secure aggregation and return the answers; who gives none is named."""
        if self._grid is None:
            raise RuntimeError(f"{type(self).__name__}: has no grid before its first round")
        record, nodes = self.records[-1], {self._sampled[client]: client for client in blobs}
        messages = [Message(pack_secure(blobs[client]), node, kind) for node, client in nodes.items()]
        record.count_down(sum(content_bytes(message.content) for message in messages))
        answers: dict[int, bytes] = {}
        silent = dict.fromkeys(blobs, "no answer in time")
        for message in self._grid.send_and_receive(messages, timeout=self._timeout):
            client = nodes.get(message.metadata.src_node_id)
            if client is None or client in answers:
                continue
            try:
                if message.has_error():
                    raise MessageError(message.error.reason)
                record.count_up(content_bytes(message.content))
                answers[client] = unpack_secure(message)
                del silent[client]
            except MessageError as error:
                silent[client] = str(error)
        for client, reason in silent.items():
            if kind in (OFFER, SHARE):
                self._fail(client, f"{kind}: {reason}")
            else:  # its vector is in the sum all the same
                self._note(f"client {client}: {kind}: {reason}")
        return answers

    def _shares(self, cohort: int) -> NoiseShares:
        if self.privacy is None:
            raise ValueError(f"{type(self).__name__}: there is no noise to share")
        # smaller ones are left out, and charged as if they were not
        cohort = max(cohort, self.privacy.min_clients)
        return self.privacy.shares(cohort, smallest_threshold(cohort) if self.privacy.thresholds else None)


def round_seed(seed: int, server_round: int) -> int:
    """Return the public seed of a round's random coordinates."""
    return seed_for(seed, server_round, SERVER, "coordinates")
