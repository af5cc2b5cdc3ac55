"""FL-STD on Flower, and the base of the FL-TOP family: clients send vectors of equal weight."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import torch
from flwr.app import ConfigRecord
from flwr.serverapp import Grid, PrivacySpent
from torch import Tensor, nn

from fl_app.privacy import ClientAccount, ClientNoise, NoiseGrid, RecordLevel, TakeTurns, TurnAccount
from fl_app.results import Exchange, Privacy, RecordPrivacy, SecureSum
from fl_app.secagg import Job, ProtocolError, RoundFailed, hash_config
from fl_app.seeding import SERVER, generator_for, seed_for
from fl_app.sketches import Scheme, Sketch, everything
from fl_app.storage.fingerprint import hash_tensors
from fl_app.storage.tree_file import Tree
from fl_app.strategies.aggregate import RunningSum
from fl_app.strategies.arguments import ConfiguredRun
from fl_app.strategies.begun import Begun
from fl_app.strategies.canaries import Canaries
from fl_app.strategies.charges import RecordCharges, charges_of
from fl_app.strategies.disclosure import Disclosure
from fl_app.strategies.fed_avg import FedAvg
from fl_app.strategies.optimisers import ServerOptimiser
from fl_app.strategies.robust import Rule
from fl_app.strategies.secure import SecureAggregation
from fl_app.training import PublicRound, parameters
from fl_app.training.schedules import Schedule
from fl_app.types import Update
from fl_app.wire import CodecError, decode
from fl_app.wire.messages import (
    OFFER,
    SHARE,
    VALUES,
    Plan,
    Reply,
    pack_plan,
)

NOISE_REACH = 9.0
"""Deviations by which the norm of a client's noise may exceed its expectation; more never happens."""
ROUNDING = 1.001


class BudgetSpent(Exception):
    """Spent budget: the next round would exceed it and has not begun."""


class FLStd(FedAvg):
    """FedAvg in which every client counts the same (Kerkouche et al., UAI 2021, FL-STD).

    An upload is one vector, the `Sketch` of an update. With ``privacy`` each client
    clips it to an L2 norm and adds its share of the noise; the server draws
    clients independently, divides by their expected number, and stops before it would
    exceed the budget. Clients keep nothing between rounds.
    """

    passing = frozenset({"aggregation", "public", "sketch", "_drawn", "_cohort", "_deliveries", "_grid"})

    coordinates: Tensor | None = None
    """Coordinates agreed once for all rounds, if any."""
    voted_in: int | None = None
    """Round of the vote on them; None: the server chose."""
    keeps_sketch = True
    """True if clients send the same coordinates in every round."""
    bound_sketches = 1
    """Number of rounds whose sketches determine the clipping bound."""

    def __init__(
        self,
        model: nn.Module,
        lr: float | Schedule,
        *,
        server_lr: float = 1.0,
        public: PublicRound | None = None,
        privacy: ClientNoise | None = None,
        aggregation: SecureAggregation | None = None,
        scheme: Scheme | None = None,
        clients: int | None = None,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 0.0,
        min_available_nodes: int = 2,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        optimiser: ServerOptimiser | None = None,
        downlink: str = "auto",
        exchange_buffers: bool = True,
        timeout: float | None = None,
        wait: float = 60.0,
        seed: int = 0,
        aggregate: Rule | None = None,
        run: ConfiguredRun | None = None,
    ) -> None:
        if downlink not in ("auto", "full"):
            raise ValueError(
                f"{type(self).__name__}: clients keep no model: downlink must be full, got {downlink!r}"
            )
        super().__init__(
            model,
            lr,
            server_lr=server_lr,
            downlink="full",
            clients=clients,
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_available_nodes=min_available_nodes,
            momentum=momentum,
            weight_decay=weight_decay,
            optimiser=optimiser,
            exchange_buffers=exchange_buffers,
            timeout=timeout,
            wait=wait,
            seed=seed,
            aggregate=aggregate,
            run=run,
        )
        who = type(self).__name__
        if privacy is not None and not isinstance(privacy, ClientNoise):
            raise TypeError(f"{who}: privacy must be a ClientLevel, got {type(privacy).__name__}")
        if aggregation is not None and not isinstance(aggregation, SecureAggregation):
            raise TypeError(
                f"{who}: aggregation must be a SecureAggregation, got {type(aggregation).__name__}"
            )
        self.privacy = privacy
        self.aggregation = aggregation
        self.public = public
        if isinstance(privacy, TakeTurns) and not self.keeps_sketch:
            raise ValueError(
                f"{type(self).__name__}: noise that is correlated over rounds (dp=ftrl) needs the same "
                "coordinates in every round: take defense=fl_std, or fl_top with defense.chosen_by=public"
            )
        self.noise_stream = privacy.stream() if isinstance(privacy, TakeTurns) else None
        """Noise of all rounds, if it is correlated."""
        self._settings, self._task_facts = ("", "") if run is None else (run.settings, run.facts)
        self._scheme = everything() if scheme is None else scheme
        self.total_entries = sum(p.numel() for p in parameters(model).values())
        self.cohort_charges = None if privacy is None else charges_of(privacy)
        records = None if privacy is None else privacy.records
        if records is not None and run is None:
            raise ValueError(
                f"{type(self).__name__}: noise of records is added by clients that fl_app trains; expected a "
                "privacy without records"
            )
        self.record_charges = None if records is None else RecordCharges(records)
        self.canaries = None if privacy is None or not privacy.canaries else Canaries(privacy, self._seed)
        self.sketch = self.sketch_of(1)
        self.clip = 0.0 if privacy is None else self.bound(privacy)
        self.start_hash = ""
        """Hash of version 0, which clients build themselves; "" if they need not."""
        self.coordinates_hash = ""
        """Hash of the agreed coordinates; "" without any."""
        self._drawn: list[int] = []
        self._cohort = 0
        """Number of participants that share the noise, canaries included."""
        self._deliveries: dict[int, bytes] = {}
        self._grid: NoiseGrid | None = None
        """Grid of the noise of a secure round."""

    @property
    def account(self) -> ClientAccount | TurnAccount | None:
        """Account of client-level privacy."""
        return None if self.cohort_charges is None else self.cohort_charges.account

    def privacy_spent(self) -> PrivacySpent | None:
        """Return ε so far in Flower's form, against an observer of the models; None before any charge."""
        account = self.account
        if account is None or account.epsilon is None:
            return None
        method = account.accountant if isinstance(account, ClientAccount) else "gaussian"
        released = sum(record.epsilon is not None for record in self.records)
        return PrivacySpent(account.epsilon, account.delta, released, method)

    @property
    def masked(self) -> bool:
        """True if the server sees uploads under masks only."""
        return self.aggregation is not None

    @property
    def private(self) -> bool:
        """True if updates leave under differential privacy."""
        return self.privacy is not None

    def disclose(self) -> Disclosure | None:
        """Return facts about the vectors, secure aggregation and client-level privacy."""
        exchange = Exchange(scheme=type(self).__name__, values=self.sketch.size, of=self.total_entries)
        if self.coordinates is not None:
            exchange.hash, exchange.voted_in = self.coordinates_hash, self.voted_in
        secure, privacy = self.aggregation, self.privacy
        return Disclosure(
            exchange,
            self.coordinates,
            None
            if secure is None
            else SecureSum(
                against="honest-but-curious server" if secure.pinned is None else "active server",
                min_clients=secure.min_clients,
            ),
            None
            if privacy is None
            else Privacy(
                noise_multiplier=privacy.sigma,
                clip=self.clip,
                records=None if privacy.records is None else _describe_records(privacy.records),
                replayable=privacy.replayable,
                mechanism=privacy.mechanism,
                adjacency=privacy.adjacency,
                accountant=privacy.accounted_by,
                separation=privacy.separation,
                honest=privacy.assumed_honest,
            ),
        )

    # State that outlives a killed server.

    @property
    def repeats(self) -> bool:
        """True if a repeated round gives the same bits; new keys or new noise prevent that."""
        return self.aggregation is None and (self.privacy is None or self.privacy.replayable)

    def history(self) -> dict[str, Tree]:
        """Return the state after the rounds so far, as plain values."""
        return super().history() | {
            "cohort_charges": None if self.cohort_charges is None else self.cohort_charges.history(),
            "record_charges": None if self.record_charges is None else self.record_charges.history(),
            "secure_run": None if self.aggregation is None else self.aggregation.run,
            "noise": None if self.noise_stream is None else self.noise_stream.past,
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
        if self.cohort_charges is not None:
            self.cohort_charges.restore(history["cohort_charges"])
        if self.record_charges is not None:
            self.record_charges.restore(history["record_charges"])
        if self.noise_stream is not None:
            self.noise_stream.past = [noise.cpu() for noise in history["noise"]]
        if self.aggregation is not None:
            self.aggregation.run = history["secure_run"]

    def begin_again(self, begun: Begun) -> None:
        """Charge an interrupted round, unless all its uploads are still under masks."""
        self._attempt = begun.attempt + 1
        if self.cohort_charges is not None and begun.clients and (begun.unmasking or not self.masked):
            self.cohort_charges.charge_lost(begun.clients)
            if self.record_charges is not None:
                self.record_charges.charge(begun.clients)

    # Steps that a scheme of the family may override.

    def sketch_of(self, server_round: int) -> Sketch:
        """Return the sketch that clients send in a round."""
        return self._scheme(self.total_entries, round_seed(self._seed, server_round), None)

    def bound(self, privacy: ClientNoise) -> float:
        """Return the largest L2 norm of a vector: as configured, or measured on public samples."""
        if privacy.clip:
            return float(privacy.clip)  # a config may have an integer, which a plan cannot hold
        if self.public is None:
            raise ValueError(
                f"{type(self).__name__}: ClientLevel needs a clip: no public round is there to learn it from"
            )
        return self.public.bound(self.sketch_of(r) for r in range(1, self.bound_sketches + 1))

    # The round.

    def draw(self, clients: list[int], server_round: int) -> list[int]:
        """Return the participants, by the mechanism's own rule; raise `BudgetSpent` if no round is left."""
        if self.privacy is None:
            drawn = super().draw(clients, server_round)
        else:
            coins = generator_for(self._seed, server_round, SERVER, "cohort")
            drawn = self.privacy.draw(clients, coins, server_round)
        charges = self.cohort_charges
        if charges is not None and not charges.allows():
            raise BudgetSpent(
                f"stopped before round {server_round}: it would bring epsilon to "
                f"{charges.after():.4g}, the budget is {charges.account.limit:g}"
            )
        return drawn

    def prepare(self, server_round: int, grid: Grid) -> None:
        """Skip a secure round if too few clients were drawn; charge it, since it is visible."""
        self.sketch = self.sketch_of(server_round)
        self._drawn = list(self.exchange.sampled)
        if self._leaves_out(len(self._drawn)):
            self.exchange.note(
                f"{len(self._drawn)} clients were drawn, too few for secure aggregation: left out"
            )
            self.exchange.sampled, self._drawn = {}, []
        self._cohort = len(self._drawn) + len(self._drawn_canaries())
        if self.aggregation is not None and self.exchange.sampled:
            self._agree(self.aggregation, server_round)

    def _leaves_out(self, drawn: int) -> bool:
        privacy = self.privacy
        return privacy is not None and privacy.thresholds and drawn < privacy.min_clients

    def deliver(self, client: int) -> bytes:
        """Return the message of secure aggregation for ``client``."""
        return self._deliveries.get(client, b"")

    def plan(self) -> ConfigRecord | None:
        """Return the plan of the vector for all orders."""
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
        """Return the vector that a client uploaded; raise a CodecError if its norm exceeds the bound."""
        vector = self._vector(blob, self.sketch)
        values = vector[VALUES].double()
        noise = 0.0
        if self.cohort_charges is not None:
            noise = self.clip * self.cohort_charges.shares(self._cohort).local
            most = self.clip + noise * (math.sqrt(len(values)) + NOISE_REACH)
            if not float(values.norm()) <= most * ROUNDING:
                raise CodecError(f"{VALUES} must have a norm of at most {most:.4g}, got {values.norm():.4g}")
        self.sketch_check(values, noise)
        return vector

    def sketch_check(self, values: Tensor, noise: float) -> None:
        """Refuse, as a CodecError, values that this sketch cannot have; ``noise`` is their deviation."""

    def _vector(self, blob: bytes, sketch: Sketch) -> Update:
        like = torch.empty(sketch.size, dtype=next(iter(self.weights.values())).dtype, device="cpu")
        return decode(blob, {VALUES: like})

    def see(self, blob: bytes, client: int, weights: Update, within: Update | None) -> Update:
        """Return the update of a vector; under masks, its apparent update."""
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
        """Return the sum of the vectors, and their clients."""
        if self.aggregation is None:
            total, buffers, clients = super().gather(good)
            self._complete_noise(total, len(clients) + self._add_canaries(total))
            return total, buffers, clients
        total = RunningSum()
        if not self.exchange.sampled:
            return total, RunningSum(), []
        self._announce(unmasking=True)
        try:
            summed = self.aggregation.finish(
                self._ask, {client: good[client].update for client in sorted(good)}
            )
        except RoundFailed as error:
            self.exchange.note(str(error))
            self._name_refused(self.aggregation)
            return total, RunningSum(), []
        clients = list(summed.survivors)
        self._name_refused(self.aggregation, counted=clients)
        summed_values = torch.from_numpy(summed.values()) + self._missing_noise(len(clients))
        values = summed_values.to(next(iter(self.weights.values())))
        if self.on_sum is not None:
            mean = values / len(clients)
            self.on_sum(self.records[-1].round, lambda: self.sketch.restore(mean, self.weights), clients)
        total.value, total.weight = {VALUES: values}, float(len(clients))
        return total, RunningSum(), clients

    @property
    def weighs_by_samples(self) -> bool:
        """False: updates have equal weight, since a client's number of samples is private."""
        return False

    def settle(self, clients: list[int]) -> bool:
        """Charge the round; a released sum has the whole noise, so it may be empty."""
        if self.cohort_charges is None:
            return super().settle(clients)
        self.cohort_charges.charge(self._cohort, self._drawn, len(clients))
        record, account = self.records[-1], self.cohort_charges.account
        record.epsilon, record.epsilon_server = account.epsilon, account.epsilon_server
        if self.record_charges is not None:
            self.record_charges.charge(self._drawn)
            record.epsilon_record = self.record_charges.epsilon
        return self.aggregation is None or super().settle(clients)

    def _drawn_canaries(self) -> list[int]:
        return [] if self.canaries is None else self.canaries.draw(self.records[-1].round)

    def _add_canaries(self, total: RunningSum) -> int:
        """Add the vectors of this round's canaries to a sum, and return their number."""
        drawn = self._drawn_canaries()
        if self.canaries is None or self.cohort_charges is None:
            return 0
        shares = self.cohort_charges.shares(self._cohort)
        for canary in drawn:
            vector = self.canaries.upload(
                canary,
                self.records[-1].round,
                sketch=self.sketch,
                like=self.weights,
                clip=self.clip,
                shares=shares,
            )
            total.add({VALUES: vector})
        return len(drawn)

    def _complete_noise(self, total: RunningSum, counted: int) -> None:
        """Add the noise that no client added to a sum, which may be empty."""
        noise = self._server_noise(counted)
        if noise is None:
            return
        like = next(iter(self.weights.values()))
        if counted:
            total.value[VALUES] += noise.to(total.value[VALUES])
        else:
            total.value = {VALUES: noise.to("cpu", like.dtype)}

    def _server_noise(self, counted: int) -> Tensor | None:
        """Return the noise of clients whose vector is not in a sum, or all of it if clients add none."""
        privacy, charges, stream = self.privacy, self.cohort_charges, self.noise_stream
        if privacy is None or charges is None or (stream is None and counted == self._cohort > 0):
            return None
        multiplier = charges.shares(self._cohort).missing(counted) if stream is None else privacy.sigma
        noise = privacy.missing(
            self.sketch.size, deviation=self.clip * multiplier, generator=self._noise_generator()
        )
        return noise if stream is None else stream.advance(noise)

    def _missing_noise(self, counted: int) -> Tensor | float:
        """Return the noise of the participants of a secure round whose vector is not in the sum."""
        if self.privacy is None or self._grid is None or counted == self._cohort:
            return 0.0
        missing = self.privacy.missing_whole(self._cohort - counted, self._grid, self._noise_generator())
        return torch.from_numpy(missing) * self._grid.step

    def _noise_generator(self) -> torch.Generator:
        return generator_for(self._seed, self.records[-1].round, SERVER, f"noise/{self._attempt}")

    def average(self, total: RunningSum) -> Update:
        """Return the sum over the number of clients, or under noise over a number that shows nobody."""
        return total.over(round(total.weight) if self.privacy is None else self.privacy.divisor)

    def step(self, mean: Update, server_round: int) -> Update:
        """Return the weights after the mean change."""
        change = self.sketch.restore(mean[VALUES], self.weights)
        return super().step(change, server_round)

    def _agree(self, aggregation: SecureAggregation, server_round: int) -> None:
        """Run the exchanges before training; with too few clients, order none to train."""

        charges = self.cohort_charges

        def fit(cohort: int) -> tuple[float, float]:
            if charges is None:
                raise RuntimeError(f"{type(self).__name__}: there is no noise to share")
            local = charges.shares(cohort).local
            self._grid = NoiseGrid.fit(clip=self.clip, multiplier=local, size=self.sketch.size)
            return self._grid.bound(cohort), self._grid.step

        try:
            self._deliveries = aggregation.begin(
                self._ask,
                list(self.exchange.sampled),
                round=server_round,
                restarts=self._attempt,
                job=self._job(server_round).digest,
                size=self.sketch.size,
                grid=None if charges is None else fit,
            )
        except RoundFailed as error:
            self.exchange.note(str(error))
            self.exchange.sampled, self._drawn, self._deliveries = {}, [], {}
        else:
            self._cohort = len(aggregation.terms.participants)
        self._name_refused(aggregation)
        self.exchange.sampled = {
            c: node for c, node in self.exchange.sampled.items() if c in self._deliveries
        }

    def _job(self, server_round: int) -> Job:
        """Return the job on which all clients of a round must agree."""
        return Job(
            model=self._model.hash,
            weights=hash_tensors(self.weights.values()),
            lr=self.lr(server_round),
            start=self.start_hash,
            coordinates=self.coordinates_hash,
            seed=round_seed(self._seed, server_round),
            clip=self.clip,
            settings=self._settings,
            facts=self._task_facts,
            config=hash_config({} if self._config is None else self._config),
        )

    def _name_refused(self, aggregation: SecureAggregation, counted: Collection[int] = ()) -> None:
        """Record the clients whose messages were refused; their earlier vectors stay in the sum."""
        for client, reason in aggregation.refused.items():
            if client in counted:
                self.exchange.note(reason)
            else:
                self.exchange.fail(client, reason)

    def _ask(self, kind: str, blobs: Mapping[int, bytes]) -> dict[int, bytes]:
        """Send messages of secure aggregation and return the answers; record the silent clients."""
        answers, silent = self.exchange.ask(kind, blobs)
        for client, reason in silent.items():
            if kind in (OFFER, SHARE):
                self.exchange.fail_silent(client, f"{kind}: {reason}")
            else:  # its vector stays in the sum
                self.exchange.note(f"client {client}: {kind}: {reason}")
        return answers


def _describe_records(records: RecordLevel) -> RecordPrivacy:
    return RecordPrivacy(
        noise_multiplier=records.sigma,
        clip=records.clip,
        rate=records.rate,
        steps=records.steps,
        delta=records.delta,
        adjacency=records.adjacency,
    )


def round_seed(seed: int, server_round: int) -> int:
    """Return the public seed of a round's random coordinates."""
    return seed_for(seed, server_round, SERVER, "coordinates")
