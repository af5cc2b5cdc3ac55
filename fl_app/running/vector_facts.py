"""Facts on vectors in a run's result: their size, their protection, and notes on epsilon."""

from __future__ import annotations

import torch
from safetensors.torch import save_file
from torch import nn

from fl_app.adversary.passive import Sighting
from fl_app.report import save_layers
from fl_app.results import Histogram, Weights
from fl_app.running.result import Results
from fl_app.sketches import count_by_layer, flatten, top_coordinates
from fl_app.strategies import FedSGD
from fl_app.training import parameters
from fl_app.types import Update

_BINS = 40


def describe_vectors(strategy: FedSGD, model: nn.Module, results: Results) -> None:
    """Note the size of the clients' vectors, their coordinates and their protection, if there are vectors."""
    facts = strategy.disclose()
    if facts is None:
        return
    results.run.exchange, coordinates = facts.exchange, facts.coordinates
    if coordinates is not None:
        like = parameters(model)
        by_layer = count_by_layer(coordinates, like)
        save_layers(
            by_layer, {name: p.numel() for name, p in like.items()}, results.folder / "coordinates.png"
        )
        save_file({"coordinates": coordinates}, results.folder / "coordinates.safetensors")
        facts.exchange.by_layer, facts.exchange.picture = by_layer, "coordinates.png"
    results.run.secure_aggregation = facts.secure_sum
    results.run.privacy = facts.privacy


def describe_weights(strategy: FedSGD, start: Update, share: float, results: Results) -> None:
    """Note the movement and the final values of the ``share`` of weights that moved most, for vectors.

    Under FL-TOP these are its coordinates, as no other moves (Kerkouche et al., Fig. 1, against FL-STD).
    """
    if strategy.disclose() is None:
        return
    weights = flatten(strategy.weights).double().cpu()
    moved = (weights - flatten(start).double().cpu()).abs()
    chosen = top_coordinates(moved, share)
    distances, values = moved[chosen], weights[chosen]
    far, large = float(distances.max()) or 1.0, float(values.abs().max()) or 1.0
    results.run.weights = Weights(
        count=len(distances),
        norm=float(distances.norm()),
        mean=float(distances.mean()),
        largest=float(distances.max()),
        counts=_counts(distances, 0.0, far),
        edges=_edges(0.0, far),
        values=Histogram(
            norm=float(values.norm()),
            mean=float(values.abs().mean()),
            counts=_counts(values, -large, large),
            edges=_edges(-large, large),
        ),
    )


def _counts(values: torch.Tensor, low: float, high: float) -> list[int]:
    return [int(count) for count in torch.histc(values, bins=_BINS, min=low, max=high)]


def _edges(low: float, high: float) -> list[float]:
    return [low + (high - low) * i / _BINS for i in range(_BINS + 1)]


def privacy_notes(strategy: FedSGD, sightings: list[Sighting]) -> list[str]:
    """Return notes that a reader of epsilon needs; none without differential privacy."""
    if not strategy.records or strategy.records[-1].epsilon is None:
        return []
    notes = []
    privacy = strategy.privacy
    if privacy is None or privacy.replayable:
        notes.append(
            "differential privacy: the noise can be replayed from the seed, which is fit for simulation only"
        )
    if privacy is not None and privacy.separation is not None:
        notes.append(
            "differential privacy: the server adds the noise and sees each vector without it: epsilon "
            "holds against observers of the models, and nothing protects from the server"
        )
    elif privacy is not None and not privacy.thresholds:
        notes.append(
            "differential privacy: without secure aggregation the server sees each client's vector with that "
            "client's own small share of the noise: epsilon_server, not epsilon, says what it learns"
        )
    if any(sighting.truth is not None for sighting in sightings):
        notes.append(
            "differential privacy: what audited clients revealed for the scores is not part of epsilon"
        )
    return notes
