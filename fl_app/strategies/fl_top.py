"""FL-TOP on Flower: the same few coordinates in every round, both ways."""

from __future__ import annotations

from typing import Any

from flwr.app import ConfigRecord
from torch import Tensor

from fl_app.coordinates import Chosen, Sketch, gather, mask_coordinates, scatter, top_coordinates
from fl_app.fingerprint import hash_tensors
from fl_app.messages import pack_blob
from fl_app.strategies.downlink import FixedDownlink
from fl_app.strategies.fl_std import FLStd
from fl_app.training import PublicRound, parameters
from fl_app.types import Update
from fl_app.wire import encode


class FLTop(FLStd):
    """Only T ever changes and travels: the coordinates that move most on public samples (Kerkouche et al.).

    T is ``share`` of all coordinates: those with the largest sum of gradients' magnitudes over
    ``public_steps`` steps of SGD from the initial weights, at a rate of ``public_lr`` (the clients' own
    if it is None). Clients make these weights by themselves, and are told T once; its hash is in
    every order.
    """

    def __init__(
        self,
        *args: Any,
        share: float,
        public_steps: int = 20,
        public_lr: float | None = None,
        public: PublicRound,
        **kwargs: Any,
    ) -> None:
        if public_lr is not None and not public_lr > 0:
            raise ValueError(f"FLTop: public_lr must be above 0, got {public_lr}")
        scores = public.scores(public_steps, public_lr)
        self.coordinates: Tensor = top_coordinates(scores, share).cpu()
        super().__init__(*args, public=public, **kwargs)
        self.downlink = FixedDownlink(self.coordinates)
        start = parameters(public.model)
        self.start_hash, self.coordinates_hash = (
            hash_tensors(start.values()),
            hash_tensors([self.coordinates]),
        )
        self._coordinates_record = pack_blob(encode(mask_coordinates(self.coordinates, start)))

    def sketch_of(self, server_round: int) -> Sketch:
        """Return the coordinates, which are always the same."""
        return Chosen(self.coordinates)

    def locations_for(self, client: int) -> ConfigRecord | None:
        """Return the coordinates for who does not know them yet."""
        known = isinstance(self.downlink, FixedDownlink) and self.downlink.knows(client)
        return None if known else self._coordinates_record

    def step(self, mean: Update, server_round: int) -> Update:
        """Return the weights after the mean change, which all others survive bit for bit."""
        moved = super().step(mean, server_round)
        # to add 0 would turn a -0.0 into 0.0, and clients start from the former
        return scatter(gather(moved, self.coordinates), self.coordinates, self.weights)
