"""What a run's folder tells about vectors: what clients send, what protects it, and how to read epsilon."""

from __future__ import annotations

import torch
from safetensors.torch import save_file
from torch import nn

from fl_app.adversary.passive import Sighting
from fl_app.report import save_layers
from fl_app.running.result import Results
from fl_app.sketches import count_by_layer, flatten, top_coordinates
from fl_app.strategies import FedSGD, FLStd, FLTop
from fl_app.training import parameters
from fl_app.types import Update

_BINS = 40


def describe_vectors(strategy: FedSGD, model: nn.Module, results: Results) -> None:
    """Say what clients send if that is a vector, where its coordinates lie, and what protects it."""
    if not isinstance(strategy, FLStd):
        return
    results.content["exchange"] = {
        "scheme": type(strategy).__name__,
        "values": strategy.sketch.size,
        "of": strategy.total_entries,
    }
    if isinstance(strategy, FLTop) and strategy.coordinates is not None:
        like = parameters(model)
        by_layer = count_by_layer(strategy.coordinates, like)
        save_layers(
            by_layer, {name: p.numel() for name, p in like.items()}, results.folder / "coordinates.png"
        )
        save_file({"coordinates": strategy.coordinates}, results.folder / "coordinates.safetensors")
        results.content["exchange"] |= {
            "hash": strategy.coordinates_hash,
            "voted_in": strategy.voted_in,
            "by_layer": by_layer,
            "picture": "coordinates.png",
        }
    if strategy.aggregation is not None:
        pinned = strategy.aggregation.pinned is not None
        results.content["secure_aggregation"] = {
            "against": "active server" if pinned else "honest-but-curious server",
            "min_clients": strategy.aggregation.min_clients,
        }
    if strategy.privacy is not None:
        results.content["privacy"] = {
            "unit": "client",
            "noise_multiplier": strategy.privacy.sigma,
            "clip": strategy.clip,
            "replayable": strategy.privacy.replayable,
        }


def describe_weights(strategy: FedSGD, start: Update, share: float, results: Results) -> None:
    """Say how far the ``share`` of the weights that moved most went, and where to, if clients send vectors.

    Under FL-TOP these are its coordinates, as no other moves (Kerkouche et al., Fig. 1, against FL-STD).
    """
    if not isinstance(strategy, FLStd):
        return
    weights = flatten(strategy.weights).double().cpu()
    moved = (weights - flatten(start).double().cpu()).abs()
    chosen = top_coordinates(moved, share)
    distances, values = moved[chosen], weights[chosen]
    results.content["weights"] = {
        "count": len(distances),
        "norm": float(distances.norm()),
        "mean": float(distances.mean()),
        "largest": float(distances.max()),
        **_histogram(distances, 0.0, float(distances.max()) or 1.0),
        "values": {"norm": float(values.norm()), "mean": float(values.abs().mean())}
        | _histogram(values, -(float(values.abs().max()) or 1.0), float(values.abs().max()) or 1.0),
    }


def _histogram(values: torch.Tensor, low: float, high: float) -> dict[str, list[int] | list[float]]:
    counts = torch.histc(values, bins=_BINS, min=low, max=high)
    edges = [low + (high - low) * i / _BINS for i in range(_BINS + 1)]
    return {"counts": [int(count) for count in counts], "edges": edges}


def privacy_notes(strategy: FedSGD, sightings: list[Sighting]) -> list[str]:
    """Return what a reader of epsilon must know; nothing if there is none."""
    if not strategy.records or strategy.records[-1].epsilon is None:
        return []
    notes = []
    privacy = strategy.privacy if isinstance(strategy, FLStd) else None
    if privacy is None or privacy.replayable:
        notes.append(
            "differential privacy: the noise can be replayed from the seed, which is fit for simulation only"
        )
    if privacy is not None and privacy.sampling == "fixed":
        notes.append(
            "differential privacy: a set number of clients was drawn each round; epsilon is computed as if "
            "each client had been drawn by a coin of its own"
        )
    if privacy is not None and not privacy.thresholds:
        notes.append(
            "differential privacy: without secure aggregation the server sees each client's vector with that "
            "client's own small share of the noise: epsilon_server, not epsilon, says what it learns"
        )
    if any(sighting.truth is not None for sighting in sightings):
        notes.append(
            "differential privacy: what audited clients revealed for the scores is not part of epsilon"
        )
    return notes
