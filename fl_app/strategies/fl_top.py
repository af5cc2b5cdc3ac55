"""FL-TOP on Flower: the same few coordinates in every round, in both directions."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from functools import partial

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from torch import Tensor, nn

from fl_app.defenses.few_numbers import CHOSEN_BY
from fl_app.privacy import ClientNoise
from fl_app.results import Round
from fl_app.sketches import (
    Chosen,
    Sketch,
    Votes,
    coordinate_count,
    gather,
    mask_coordinates,
    scatter,
    top_coordinates,
)
from fl_app.storage.fingerprint import hash_tensors
from fl_app.storage.tree_file import Tree
from fl_app.strategies.arguments import ConfiguredRun, check_numbers
from fl_app.strategies.downlink import FixedDownlink
from fl_app.strategies.fl_std import NOISE_REACH, ROUNDING, FLStd
from fl_app.strategies.optimisers import ServerOptimiser
from fl_app.strategies.robust import Rule
from fl_app.strategies.secure import SecureAggregation
from fl_app.training import Batch, PublicRound, parameters
from fl_app.training.public_training import sum_gradients
from fl_app.training.schedules import Schedule
from fl_app.types import Update
from fl_app.wire import CodecError, encode
from fl_app.wire.messages import VALUES, pack_blob

PublicSamples = tuple[Tensor, Tensor]
"""Inputs and labels of public samples, for a model of classes."""
PublicLoss = Callable[[nn.Module], Tensor]
"""Loss of a model on any public data, with its autograd graph."""


class FLTop(FLStd):
    """Federation on T only, the coordinates that move most on public samples (Kerkouche et al.).

    T is ``share`` of all coordinates: those with the largest sum of gradients' magnitudes over
    ``public_steps`` steps of SGD from the initial weights, at a rate of ``public_lr`` (that of the
    clients if it is None). Clients receive T once; every order has its hash. In a configured run they build
    the initial weights themselves, else they receive the whole model once.

    ``chosen_by="vote"`` needs no public samples for T (§3.2.3, which leaves the method open). In the first
    round clients train all weights, and each votes for the coordinates that it moved most. T has the most
    votes, and the model does not change. A vote is a vector like any other: of norm 1, with the same noise,
    under the same masks, and charged as a round.
    """

    passing = frozenset({"_coordinates_record", "_choose", "_start"})

    def __init__(
        self,
        model: nn.Module,
        lr: float | Schedule,
        *,
        share: float,
        public: PublicRound | PublicSamples | PublicLoss | None = None,
        public_steps: int = 20,
        public_lr: float | None = None,
        chosen_by: str = "public",
        server_lr: float = 1.0,
        privacy: ClientNoise | None = None,
        aggregation: SecureAggregation | None = None,
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
        check_numbers("FLTop", share=share, public_steps=public_steps, public_lr=public_lr)
        if public_lr is not None and not public_lr > 0:
            raise ValueError(f"FLTop: public_lr must be above 0, got {public_lr}")
        if chosen_by not in CHOSEN_BY:
            raise ValueError(f"FLTop: chosen_by must be one of {', '.join(CHOSEN_BY)}, got {chosen_by!r}")
        if public is None and chosen_by == "public":
            raise ValueError('FLTop: give public samples (x, y) or a loss of the model, or chosen_by="vote"')
        self._share = share
        self.coordinates: Tensor | None = None
        """T; None until it is chosen."""
        self.voted_in: int | None = None
        """Round of the vote on T; None: the server chose."""
        self.keeps_sketch = chosen_by != "vote"
        ahead = public if isinstance(public, PublicRound) else None
        if chosen_by == "public" and ahead is not None:
            self.coordinates = top_coordinates(ahead.scores(public_steps, public_lr), share).cpu()
        super().__init__(
            model,
            lr,
            server_lr=server_lr,
            public=ahead,
            privacy=privacy,
            aggregation=aggregation,
            clients=clients,
            fraction_train=fraction_train,
            fraction_evaluate=fraction_evaluate,
            min_available_nodes=min_available_nodes,
            momentum=momentum,
            weight_decay=weight_decay,
            optimiser=optimiser,
            downlink=downlink,
            exchange_buffers=exchange_buffers,
            timeout=timeout,
            wait=wait,
            seed=seed,
            aggregate=aggregate,
            run=run,
        )
        self._start = {name: p.detach().clone() for name, p in parameters(model).items()}
        self._choose: Callable[[Update], Tensor] | None = None
        """Function that chooses T from the initial weights of ``start``."""
        if chosen_by == "public" and public is not None and not isinstance(public, PublicRound):
            rate = public_lr or self.lr(1)
            self._choose = partial(_scores, copy.deepcopy(model), public, lr=rate, steps=public_steps)
        self._coordinates_record: ArrayRecord | None = None
        if self.coordinates is not None:
            self._agree_on(self.coordinates)
            self.exchange.downlink = self._downlink(self.coordinates)

    def begin(self, tensors: Update) -> None:
        """Choose the coordinates from the weights of ``initial_arrays``, if clients do not vote on them."""
        if self._run is not None:
            return
        self._start = {name: tensors[name].clone() for name in self._start}
        if self._choose is not None:
            self._agree_on(top_coordinates(self._choose(tensors), self._share).cpu())
            self.sketch = self.sketch_of(1)
            self.clip = 0.0 if self.privacy is None else self.bound(self.privacy)

    def _downlink(self, coordinates: Tensor) -> FixedDownlink:
        # with a config, clients build the initial weights themselves; others receive them once
        return FixedDownlink(coordinates, start_known=self._run is not None)

    def history(self) -> dict[str, Tree]:
        """Return the state after the rounds so far, as plain values."""
        voted = self.voted_in is not None
        return super().history() | {
            "voted_in": self.voted_in,
            "coordinates": self.coordinates if voted else None,
            "clip": self.clip,
            "downlink_is_fixed": isinstance(self.downlink, FixedDownlink),
        }

    def restore(self, history: dict[str, Tree]) -> None:
        """Go on from what `history` returned, with the coordinates of the vote."""
        if history["voted_in"] is not None:
            self.voted_in, self.clip = history["voted_in"], history["clip"]
            coordinates = history["coordinates"].cpu()
            self._agree_on(coordinates)
            if history["downlink_is_fixed"]:
                self.exchange.downlink = self._downlink(coordinates)
        super().restore(history)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Order this round's clients to train; once the coordinates are known, send only their values."""
        if self.coordinates is not None and not isinstance(self.downlink, FixedDownlink):
            self.exchange.downlink = self._downlink(self.coordinates)
        return super().configure_train(server_round, arrays, config, grid)

    @property
    def training_rounds(self) -> list[Round]:
        """The rounds so far whose updates move the model: a vote moves none."""
        return [record for record in self.records if record.round != self.voted_in]

    def sketch_of(self, server_round: int) -> Sketch:
        """Return the fixed coordinates as a sketch; before they are known, a vote on them."""
        if self.coordinates is None:
            return Votes(self.total_entries, coordinate_count(self._share, self.total_entries))
        return Chosen(self.coordinates)

    def bound(self, privacy: ClientNoise) -> float:
        """Return the largest norm of a vector, which is 1 for votes."""
        return 1.0 if self.coordinates is None else super().bound(privacy)

    def sketch_check(self, values: Tensor, noise: float) -> None:
        """Refuse more than one vote for a coordinate, or more votes than a client has."""
        if self.coordinates is not None:
            return
        count = coordinate_count(self._share, self.total_entries)
        one = 1 / math.sqrt(count)
        if not float(values.abs().max()) <= (one + NOISE_REACH * noise) * ROUNDING:
            raise CodecError(f"a vote counts {one:.3g} at a coordinate, got {float(values.abs().max()):.3g}")
        if not noise and int((values != 0).sum()) != count:
            raise CodecError(f"votes are for {count} coordinates, got {int((values != 0).sum())}")

    def locations_for(self, client: int) -> ArrayRecord | None:
        """Return the coordinates for a client that does not know them yet."""
        known = isinstance(self.downlink, FixedDownlink) and self.downlink.knows(client)
        return None if known else self._coordinates_record

    def step(self, mean: Update, server_round: int) -> Update:
        """Return the weights after the mean change; other weights keep their bits, and votes move none."""
        if self.coordinates is None:
            self.voted_in = server_round
            self._agree_on(top_coordinates(mean[VALUES].clamp_min(0), self._share).cpu())
            if self.privacy is not None:
                self.clip = self.bound(self.privacy)
            return self.weights
        moved = super().step(mean, server_round)
        # adding 0 would turn -0.0 into 0.0, and clients start from -0.0
        return scatter(gather(moved, self.coordinates), self.coordinates, self.weights)

    def _agree_on(self, coordinates: Tensor) -> None:
        """Note the coordinates that every later order names."""
        self.coordinates = coordinates
        self.start_hash = hash_tensors(self._start.values())
        self.coordinates_hash = hash_tensors([coordinates])
        self._coordinates_record = pack_blob(encode(mask_coordinates(coordinates, self._start)))


def _scores(
    model: nn.Module, public: PublicSamples | PublicLoss, tensors: Update, *, lr: float, steps: int
) -> Tensor:
    """Return the movement of each coordinate from ``tensors`` on public samples, or by a public loss."""
    model.load_state_dict(tensors)
    if callable(public):
        own = public
        nothing = torch.zeros(1)
        return sum_gradients(
            model,
            Batch(nothing, nothing, nothing, nothing),
            lr=lr,
            steps=steps,
            loss=lambda trained, batch: own(trained),
        )
    inputs, labels = public
    kind = next(iter(parameters(model).values()))
    inputs = inputs.to(kind.device, kind.dtype if inputs.is_floating_point() else None)
    labels = labels.to(kind.device)
    try:
        return sum_gradients(model, Batch(inputs, labels, inputs, inputs), lr=lr, steps=steps)
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            "FLTop: public=(x, y) is for a classifier: the model takes x and gives one row of logits a "
            f"sample, y holds their classes; else give a function loss(model). It failed: {error}"
        ) from error
