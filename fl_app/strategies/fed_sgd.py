"""FedSGD on Flower: the base of every strategy here.

It composes the exchange with the clients, the ledger of their releases and the server's optimiser.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from functools import cache
from typing import ClassVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import nn

from fl_app.flower.deadline import DeadlineGrid
from fl_app.flower.held_tensor import hold, release
from fl_app.models.described import describe_module, frozen_parameters
from fl_app.privacy import ClientAccount, ClientNoise, TurnAccount
from fl_app.results import Round
from fl_app.seeding import SERVER, seed_for, seeded
from fl_app.storage.tree_file import Tree
from fl_app.strategies.aggregate import RunningSum, cast_like, mean_metrics, undo
from fl_app.strategies.arguments import ConfiguredRun, check_module, check_numbers, schedule_of
from fl_app.strategies.begun import Begun
from fl_app.strategies.canaries import Canaries
from fl_app.strategies.charges import Charges
from fl_app.strategies.client_evaluation import ClientEvaluation
from fl_app.strategies.disclosure import Disclosure
from fl_app.strategies.downlink import Downlink, raw_bytes
from fl_app.strategies.exchange import Exchange, Pack
from fl_app.strategies.gate import METRICS, Gate, Unusable, check_model
from fl_app.strategies.gathering import gather_updates
from fl_app.strategies.optimisers import Moment, OptimiserState, ServerOptimiser, sgd
from fl_app.strategies.outcome import check_used
from fl_app.strategies.robust import Rule
from fl_app.strategies.roster import Roster, sample
from fl_app.strategies.round_metrics import note_metrics
from fl_app.training import parameters, state_buffers, tied
from fl_app.training.schedules import Schedule
from fl_app.types import Update
from fl_app.wire import decode, encode
from fl_app.wire.bound import entropy_bound
from fl_app.wire.messages import (
    CHANGE,
    GRADIENT,
    PRIVACY,
    TRAIN,
    UPDATE,
    LocationQuery,
    Order,
    Reply,
    RunName,
    add_query,
    blob_size,
    pack_blob,
    pack_order,
)

logger = logging.getLogger(__name__)


class FedSGD(Strategy):
    """One gradient per client per round; ``x <- x - lr * mean(g)``, by sample count.

    ``model`` gives the names and shapes; the weights come from ``start``'s ``initial_arrays``. Clients run
    `fl_app.client.app`, or with ``run`` the app of a configured run. ``clients=None`` takes the connected
    nodes, at least ``min_available_nodes``.

    ``start`` is Flower's own. A bad client never stops a round: ``record.failures`` and the log name it, and
    the others are averaged. A client without the previous version of the model requests the
    whole model and gets it in the same round.

    ``optimiser`` replaces SGD with ``momentum`` and ``weight_decay``.
    """

    passing: ClassVar[frozenset[str]] = frozenset(
        {"aggregate", "exchange", "on_begin", "on_sum", "run_key", "done", "_locations", "_sample"}
        | {"_config", "_started", "_evaluation", "_fixed"}
    )
    """Attributes that every round or every start sets anew; a subclass lists only its own."""

    sends_changes: ClassVar[bool] = False
    """True if an update is a change of the weights, not a gradient."""
    privacy: ClientNoise | None = None
    """Client-level differential privacy; None without it."""
    canaries: Canaries | None = None
    """Canaries that measure the privacy; None without any."""

    def __init__(
        self,
        model: nn.Module,
        lr: float | Schedule,
        *,
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
        who = type(self).__name__
        check_module(who, model)
        check_numbers(
            who,
            clients=clients,
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_available_nodes=min_available_nodes,
            momentum=momentum,
            weight_decay=weight_decay,
            timeout=timeout,
            wait=wait,
            seed=seed,
        )
        if not 0 < fraction_train <= 1:
            raise ValueError(f"{who}: fraction_train must be in (0, 1], got {fraction_train}")
        if not 0 <= fraction_evaluate <= 1:
            raise ValueError(f"{who}: fraction_evaluate must be in [0, 1], got {fraction_evaluate}")
        if not 0 <= momentum < 1:
            raise ValueError(f"{who}: momentum must be in [0, 1), got {momentum}")
        if weight_decay < 0:
            raise ValueError(f"{who}: weight_decay must be at least 0, got {weight_decay}")
        if optimiser is not None and (momentum or weight_decay):
            raise ValueError(
                f"{who}: an optimiser has its own settings: momentum and weight_decay must be 0, "
                f"got {momentum} and {weight_decay}"
            )
        self.lr = schedule_of(who, lr)
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.fraction = fraction_train
        self.fraction_evaluate = fraction_evaluate
        self.reversible = optimiser is None and not momentum
        """True if `undo_step` is valid: a step depends only on values that a participant knows."""
        self.optimiser = self.default_optimiser() if optimiser is None else optimiser
        self.records: list[Round] = []
        self.weights: Update = {}
        self.buffers: Update = {}
        self.within: Update | None = None
        """The only positions at which this round's updates may be non-zero; None: anywhere."""
        self.run_key = ""
        """Key under which clients store their memory; "": clients do not outlive the server."""
        self.done = 0
        """Rounds before the resume: Flower counts from 1 again."""
        self.on_begin: Callable[[Begun], None] | None = None
        """Called with the coming requests to clients, before the first one."""
        self.on_sum: Callable[[int, Callable[[], Update], list[int]], None] | None = None
        """Called with the sum that secure aggregation reveals: the round, the mean change, the clients."""
        if downlink == "auto":
            downlink = "change" if fraction_train == 1 else "full"
        roster = Roster(clients, least=min_available_nodes, wait=wait)
        gate = Gate(
            None if run is None else run.release,
            own_data=roster.own_data,
            metrics=None if run is None else METRICS,
        )
        self.exchange = Exchange(roster, Downlink(downlink), gate, timeout=timeout)
        self.charges = Charges()
        self.aggregate = aggregate
        """Robust rule in place of the weighted mean; None: the mean."""
        self._run = run
        self._model = describe_module(model) if run is None else run.spec
        self._parameters = tuple(parameters(model))
        self._shapes = {name: tensor.shape for name, tensor in parameters(model).items()}
        self._frozen = tuple(frozen_parameters(model))
        self._buffers = tuple(state_buffers(model))
        self._tied = tied(model)
        self._fixed: Update = {}
        self._exchange_buffers = exchange_buffers
        self._seed = seed
        self._facts = None if run is None else pack_blob(run.facts.encode())
        self._config: ConfigRecord | None = None
        self._started = False
        self._evaluation = ClientEvaluation()
        self._optimiser_state: OptimiserState | None = None
        self._counted: dict[int, int] = {}
        self._locations: ArrayRecord | None = None
        self._sample: tuple[Update, int] | None = None
        self._attempt = 0

    @property
    def roster(self) -> Roster:
        """The connected clients."""
        return self.exchange.roster

    @property
    def downlink(self) -> Downlink:
        """The versions of the model that clients hold and get."""
        return self.exchange.downlink

    @property
    def account(self) -> ClientAccount | TurnAccount | None:
        """Account of client-level privacy; None without it."""
        return None

    @property
    def masked(self) -> bool:
        """True if the server sees uploads under masks only."""
        return False

    @property
    def private(self) -> bool:
        """True if updates leave under differential privacy."""
        return self._run is not None and self._run.release is not None

    @property
    def training_rounds(self) -> list[Round]:
        """The rounds so far whose updates move the model."""
        return self.records

    def disclose(self) -> Disclosure | None:
        """Return facts about the vectors that clients send, for the run's result; None: they send none."""
        return None

    # State that outlives a killed server. Draws need none: they follow from seed and round.

    @property
    def repeats(self) -> bool:
        """True if a repeated round gives the same bits."""
        return True

    def history(self) -> dict[str, Tree]:
        """Return all that the next rounds depend on, as plain values; a subclass adds its own state."""
        return {
            "weights": self.weights,
            "buffers": self.buffers,
            "within": self.within,
            "records": [record.as_json() for record in self.records],
            "optimiser": self._optimiser_state,
            "counted": self._counted,
            "charges": self.charges.history(),
            "attempt": self._attempt,
            "downlink": self.downlink.history(),
        }

    def restore(self, history: dict[str, Tree]) -> None:
        """Go on from what `history` returned."""
        self.weights, self.buffers = history["weights"], history["buffers"]
        self._optimiser_state, self.within = history["optimiser"], history["within"]
        self.records = [Round.model_validate(row) for row in history["records"]]
        self.done = self.records[-1].round if self.records else 0
        self._counted, self._attempt = history["counted"], history["attempt"]
        self.charges.restore(history["charges"])
        self.downlink.restore(history["downlink"])

    def begin_again(self, begun: Begun) -> None:
        """Charge the possible release of an interrupted round; its repetition is a new attempt."""
        self._attempt = begun.attempt + 1
        self.charges.owe(begun.clients)

    # Steps that a strategy of this family may override: the draw of clients, the preparation, the orders,
    # the reading and combination of uploads, the step of the model.

    def default_optimiser(self) -> ServerOptimiser:
        """Return the optimiser to use if none is given."""
        return sgd(momentum=self.momentum, weight_decay=self.weight_decay)

    def begin(self, tensors: Update) -> None:
        """Prepare the run before its first round, which starts from ``tensors``."""

    def draw(self, clients: list[int], server_round: int) -> list[int]:
        """Return the clients of ``clients`` that take part, in their order."""
        return sample(clients, self.fraction, seed=self._seed, round=server_round)

    def prepare(self, server_round: int, grid: Grid) -> None:
        """Prepare the round before the orders go out; this may remove clients from the round."""

    def order(self, server_round: int, client: int, base: int) -> Order:
        """Return the order for ``client``."""
        return Order(
            round=server_round,
            client=client,
            lr=self.lr(server_round),
            model_hash=self._model.hash,
            version=self.downlink.version,
            base=base,
            counted=self._counted.get(client, 0),
            keep=self.downlink.mode == "change",
            model_spec=self._model.to_json() if base < 0 else "",
        )

    def locations_for(self, client: int) -> ArrayRecord | None:
        """Return the positions that a training order to ``client`` carries."""
        return self._locations

    def plan(self) -> ConfigRecord | None:
        """Return the plan that all training orders of this round carry."""
        return None

    def deliver(self, client: int) -> bytes:
        """Return the message of secure aggregation for ``client``."""
        return b""

    def read(self, blob: bytes) -> Update:
        """Decode a client's upload."""
        return decode(blob, self.weights, within=self.within)

    def see(self, blob: bytes, client: int, weights: Update, within: Update | None) -> Update:
        """Decode an upload into an update of ``weights``, as an attacker sees it.

        The weights are the round's, or those of a manipulated model; ``within`` are the positions
        from the order.
        """
        return decode(blob, weights, within=within)

    @property
    def weighs_by_samples(self) -> bool:
        """True if updates are weighted by samples; otherwise all count the same."""
        return True

    def weigh(self, good: Mapping[int, Reply]) -> dict[int, float]:
        """Return the weight of each update."""
        if not self.weighs_by_samples:
            return dict.fromkeys(good, 1.0)
        return self.exchange.gate.weights({client: float(r.answer.samples) for client, r in good.items()})

    def gather(self, good: dict[int, Reply]) -> tuple[RunningSum, RunningSum, list[int]]:
        """Return the sums of the readable updates and buffers, and their clients."""
        gathered = gather_updates(
            good,
            self.weigh(good),
            read=self.read,
            wanted=self.buffers if self._exchange_buffers else {},
            rule=self.aggregate,
            refuse=self.exchange.fail,
        )
        self._sample = gathered.sample
        return gathered.total, gathered.buffers, gathered.clients

    def settle(self, clients: list[int]) -> bool:
        """Account for the sum over ``clients``; return whether it may be used, which an empty sum may not."""
        return bool(clients)

    def average(self, total: RunningSum) -> Update:
        """Return the mean."""
        return total.over(total.weight)

    def accelerate(self, mean: Update) -> Update:
        """Return the mean as the optimiser's input."""
        return mean

    def step(self, mean: Update, server_round: int) -> Update:
        """Return the weights after a step against the mean gradient."""
        return self._move(self.accelerate(mean), server_round)

    def undo_step(self, before: Update, after: Update, server_round: int) -> tuple[Update, Update]:
        """Return the mean update behind a `step` between two known models, and its rounding error by entry.

        Valid only if the strategy is `reversible`.
        """
        direction, rounding = undo(before, after, self.lr(server_round))
        decay = self.weight_decay
        return {name: g - decay * before[name].double() for name, g in direction.items()}, rounding

    # Flower's side.

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run the rounds as Flower does; all exchanges of a round share one deadline.

        If no round used a client's update, `NoUpdateUsed` is raised at the end with the most frequent
        reason.
        """
        self.begin(release(initial_arrays))
        self._started = True
        try:
            result = super().start(
                DeadlineGrid(grid, self.exchange.deadline),
                initial_arrays,
                num_rounds,
                timeout,
                train_config,
                evaluate_config,
                evaluate_fn,
            )
        finally:
            self._started = False
        check_used(type(self).__name__, self.training_rounds)
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Order this round's clients to train on the current model."""
        self._check_started()
        server_round += self.done
        self._config = self._config_for(server_round, config)
        self.exchange.deadline.begin()
        self._adopt(arrays)
        self.downlink.publish(self.weights, server_round - 1, self.within)
        present = self.roster.present(grid)
        with self._seeded("draw", server_round):
            cohort = self.draw(list(present), server_round)
        self.records.append(Round.begin(server_round))
        sampled = {client: present[client] for client in cohort}
        self.exchange.begin(self.records[-1], grid, sampled, self.weights | self.buffers)
        if not present:
            self.exchange.note("no client is there")
        if self._attempt:
            self.exchange.note(
                f"this round was begun before and cut short: this is attempt {self._attempt + 1}"
            )
        self._announce()
        with self._seeded("prepare", server_round):
            self.prepare(server_round, grid)
        bases = {client: self.downlink.base_for(client) for client in self.exchange.sampled}
        return self.exchange.messages(TRAIN, bases, self._pack(TRAIN))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the good updates and move the model; record the clients without a usable update."""
        server_round += self.done
        record = self.records[-1]
        self._sample = None
        good = self._collect(TRAIN, replies, self._pack(TRAIN))
        named = {failure.client for failure in record.failures} | set(record.attacked)
        for client in self.exchange.sampled.keys() - good.keys() - named:
            self.exchange.fail_silent(client, "no answer in time")
        self._charge(good)

        total, buffers, clients = self.gather(good)
        self._attempt = 0
        record.failures.sort(key=lambda failure: failure.client or 0)
        record.clients = len(clients)
        record.dense_bytes = 2 * len(clients) * (raw_bytes(self.weights) + raw_bytes(self.buffers))
        if not self.settle(clients):
            self.exchange.note("no usable update: the model is unchanged")
            return self.whole_model(), None

        with self._seeded("step", server_round):
            advanced = self._advance(total, buffers, server_round)
        if not advanced:
            return self.whole_model(), None
        for client in clients:
            self._counted[client] = server_round
        counted = {client: good[client] for client in clients}
        note_metrics(record, counted, self.weigh(counted))
        metrics = {} if record.train_loss is None else {"train_loss": record.train_loss}
        if self._run is None:
            metrics |= mean_metrics({client: good[client].metrics for client in clients}, self.weigh(good))
        return self.whole_model(), MetricRecord(dict(metrics))

    def _advance(self, total: RunningSum, buffers: RunningSum, server_round: int) -> bool:
        """Move the model by the sum of a round; if the result is unusable, return False and move nothing."""
        before = self._optimiser_state
        try:
            weights = self.step(self.average(total), server_round)
            beside = self.buffers
            if self._exchange_buffers and beside:
                beside = cast_like(buffers.over(buffers.weight), beside)
            check_model(weights, beside)
        except (Unusable, ArithmeticError) as error:
            self._optimiser_state = before
            self.records[-1].clients = 0
            self.exchange.note(f"the sum is refused and the model is unchanged: {error}")
            return False
        self.weights, self.buffers = weights, beside
        return True

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the whole model to ``fraction_evaluate`` of the clients; else the server alone evaluates."""
        who = type(self).__name__
        if not self.fraction_evaluate:
            if len(config):
                raise ValueError(
                    f"{who}: evaluate_config needs fraction_evaluate above 0, got {sorted(config)}"
                )
            return []
        if self.masked or self.private:
            raise ValueError(
                f"{who}: clients that evaluate tell numbers of their data: fraction_evaluate must be 0 under "
                "differential privacy or secure aggregation"
            )
        server_round += self.done
        present = self.roster.present(grid)
        cohort = sample(list(present), self.fraction_evaluate, seed=self._seed, round=server_round)
        orders = {client: self.order(server_round, client, -1) for client in cohort}
        told = ConfigRecord({**config, "server-round": server_round})
        model = pack_blob(encode(self.weights))
        return self._evaluation.ask(orders, present, model, self._packed_buffers(), told, self.records[-1])

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the clients' metrics, averaged by their number of samples; None: no client was asked."""
        if not self.fraction_evaluate:
            return None
        record = self.records[-1]
        metrics = self._evaluation.mean(replies, record)
        record.client_accuracy, record.client_loss = (metrics.get(name) for name in ("accuracy", "loss"))
        return MetricRecord(dict(metrics)) if metrics else None

    def summary(self) -> None:
        """Log the settings."""
        logger.info(
            "%s: %s clients, fraction %g, momentum %g, weight decay %g, downlink %s",
            type(self).__name__,
            "all" if self.roster.expected is None else self.roster.expected,
            self.fraction,
            self.momentum,
            self.weight_decay,
            self.downlink.mode,
        )

    def measure_bounds(self) -> None:
        """Record the size of this round's messages relative to their entropy bound; this is slow."""
        record, extra = self.records[-1], blob_size(self._locations) if self._locations else 0
        if self._sample is not None:
            update, size = self._sample
            record.uplink_to_bound = size / (entropy_bound(update, within=self.within) or math.nan)
            record.downlink_to_bound = self.downlink.to_bound(self.within, extra)

    # Steps between the two.

    def _adopt(self, arrays: ArrayRecord) -> None:
        tensors = release(arrays)
        missing = sorted({*self._parameters, *self._frozen, *self._buffers} - tensors.keys())
        if missing:
            raise ValueError(
                f"{type(self).__name__}: initial_arrays must be the state dict of its model, "
                f"got none of {missing[:5]}"
            )
        other = [name for name, shape in self._shapes.items() if tensors[name].shape != shape]
        if other:
            raise ValueError(
                f"{type(self).__name__}: initial_arrays must have the shapes of its model, {other[0]} must "
                f"be {tuple(self._shapes[other[0]])}, got {tuple(tensors[other[0]].shape)}"
            )
        self.weights = {name: tensors[name] for name in self._parameters}
        self.buffers = {name: tensors[name] for name in self._buffers}
        self._fixed = {name: tensors[name] for name in self._frozen}

    def whole_model(self) -> ArrayRecord:
        """Return the whole model in Flower's format, under all names of its state dict."""
        whole = self.weights | self.buffers | self._fixed
        return hold(whole | {name: whole[same] for name, same in self._tied.items()})

    def _check_started(self) -> None:
        """Refuse a wrapper of Flower around this strategy, which would neither clip nor add noise."""
        if not self._started:
            raise RuntimeError(
                f"{type(self).__name__}: is driven by another strategy's start, such as a wrapper's for "
                "differential privacy, which would change nothing, as updates travel packed. Use its own "
                "start and privacy=ClientLevel(...) in FLStd, FLTop, FLBasic or FLCS, or wrap Flower's FedAvg"
            )

    def _config_for(self, server_round: int, config: ConfigRecord) -> ConfigRecord | None:
        """Return the config for users' training functions; clients of a configured run need none."""
        who, lr = type(self).__name__, self.lr(server_round)
        if self._run is not None:
            if len(config):
                raise ValueError(
                    f"{who}: clients go by the run's config, expected no train_config, got {sorted(config)}"
                )
            return None
        if {UPDATE, PRIVACY} & config.keys() or config.get("lr", lr) != lr:
            raise ValueError(
                f"{who}: train_config must leave {UPDATE!r} and {PRIVACY!r} to the strategy and have its lr "
                f"({lr:g}), got {dict(config.items())}"
            )
        update = CHANGE if self.sends_changes else GRADIENT
        charged = {} if self.privacy is None else {PRIVACY: self.privacy.digest}
        return ConfigRecord({**config, "server-round": server_round, "lr": lr, UPDATE: update, **charged})

    def _packed_buffers(self) -> ArrayRecord | None:
        return pack_blob(encode(self.buffers)) if self.buffers and self._exchange_buffers else None

    def _seeded(self, purpose: str, server_round: int) -> AbstractContextManager[None]:
        """Seed torch's global generator by seed and round, so that its draws need no history."""
        device = next(iter(self.weights.values())).device
        return seeded(seed_for(self._seed, server_round, SERVER, purpose), device)

    def _announce(self, *, unmasking: bool = False) -> None:
        if self.on_begin is not None:
            asked = list(self.exchange.sampled)
            self.on_begin(Begun(self.records[-1].round, self._attempt, asked, unmasking))

    def _pack(self, kind: str, query: LocationQuery | None = None) -> Pack:
        """Return the function that packs this round's order for a client and the version it builds on."""
        server_round = self.records[-1].round
        run = RunName(self.run_key, self._attempt) if self.run_key else None

        @cache
        def shared() -> tuple[ArrayRecord | None, ConfigRecord | None]:
            return self._packed_buffers(), self.plan() if kind == TRAIN else None

        def pack(client: int, base: int) -> tuple[RecordDict, int]:
            buffers, plan = shared()
            model = self.downlink.blob(base)
            locations = self.locations_for(client) if kind == TRAIN else None
            secure = self.deliver(client) if kind == TRAIN else b""
            facts = self._facts if client in self.roster.own_data else None
            order = self.order(server_round, client, base)
            content = pack_order(order, model, buffers, locations, plan, secure, facts, run, self._config)
            if query is not None:
                add_query(content, query)
            return content, blob_size(model) + (blob_size(locations) if locations else 0)

        return pack

    def _collect(self, kind: str, replies: Iterable[Message], pack: Pack) -> dict[int, Reply]:
        """Return the usable answers; charge the releases of the others, too."""
        good, left_out = self.exchange.collect(kind, replies, pack, counts=self.weighs_by_samples)
        for client, reply in left_out.items():
            self.charges.remember(client, reply.release)
        return good

    def _charge(self, good: dict[int, Reply]) -> None:
        """Charge the round to its clients; leave out those without a valid release."""
        told = {client: reply.release for client, reply in good.items()}
        for client, reason in self.charges.charge(self.exchange.sampled, told).items():
            self.exchange.fail(client, reason)
            good.pop(client, None)
        record = self.records[-1]
        record.epsilon = record.epsilon_server = self.charges.epsilon

    def _move(self, gradient: Update, server_round: int) -> Update:
        """Return the weights after the optimiser's step, and keep its state."""
        if self._optimiser_state is None:
            self._optimiser_state = self.optimiser.init(self.weights)
        moved, self._optimiser_state = self.optimiser.update(
            gradient, self._optimiser_state, self.weights, Moment(server_round, self.lr(server_round))
        )
        return moved
