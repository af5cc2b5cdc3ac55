"""All named tensors as one vector, and a vector's entries at chosen coordinates.

The vector is the tensors in their order, each row by row. Coordinates are
positions in it: int64, ascending, no position twice. So the same set is always
the same tensor, and the values at it need no positions beside them.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fl_app.types import Update


def flatten(tensors: Mapping[str, Tensor]) -> Tensor:
    """Return a copy of all entries as one vector."""
    kinds = {(tensor.dtype, tensor.device) for tensor in tensors.values()}
    if len(kinds) != 1:
        raise ValueError(
            f"flatten: expected tensors of one type on one device, got {sorted(map(str, kinds))}"
        )
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors.values()])


def unflatten(flat: Tensor, like: Mapping[str, Tensor]) -> Update:
    """Return views of ``flat`` with the names and shapes of ``like``."""
    n = sum(tensor.numel() for tensor in like.values())
    if flat.shape != (n,):
        raise ValueError(f"unflatten: expected a vector of {n} entries, got shape {tuple(flat.shape)}")
    parts = flat.split([tensor.numel() for tensor in like.values()])
    return {name: part.view(like[name].shape) for name, part in zip(like, parts, strict=True)}


def gather(tensors: Mapping[str, Tensor], coordinates: Tensor) -> Tensor:
    """Return the entries at ``coordinates``."""
    flat = flatten(tensors)
    check_coordinates("gather", coordinates, len(flat))
    return flat[coordinates.to(flat.device)]


def scatter(values: Tensor, coordinates: Tensor, base: Mapping[str, Tensor]) -> Update:
    """Return a copy of ``base`` with ``values`` at ``coordinates``, in the type of ``base``."""
    flat = flatten(base)
    check_coordinates("scatter", coordinates, len(flat))
    if values.shape != coordinates.shape:
        raise ValueError(
            f"scatter: expected {len(coordinates)} values, one a coordinate, got shape {tuple(values.shape)}"
        )
    flat[coordinates.to(flat.device)] = values.to(flat.device, flat.dtype)
    return unflatten(flat, base)


def mask_coordinates(coordinates: Tensor, like: Mapping[str, Tensor]) -> Update:
    """Return boolean masks by name that mark ``coordinates``."""
    n = sum(tensor.numel() for tensor in like.values())
    check_coordinates("mask_coordinates", coordinates, n)
    device = next(iter(like.values())).device
    marked = torch.zeros(n, dtype=torch.bool, device=device)
    marked[coordinates.to(device)] = True
    return unflatten(marked, like)


def split_coordinates(coordinates: Tensor, like: Mapping[str, Tensor]) -> Update:
    """Return the positions within each tensor, for those tensors that have any."""
    places, start = {}, 0
    for name, tensor in like.items():
        end = start + tensor.numel()
        first, last = torch.searchsorted(
            coordinates, torch.tensor([start, end], device=coordinates.device)
        ).tolist()
        if first < last:
            places[name] = (coordinates[first:last] - start).to(tensor.device)
        start = end
    return places


def count_by_layer(coordinates: Tensor, like: Mapping[str, Tensor]) -> dict[str, int]:
    """Return how many of the coordinates fall into each tensor."""
    return {name: int(mask.sum()) for name, mask in mask_coordinates(coordinates, like).items()}


def check_coordinates(who: str, coordinates: Tensor, n: int) -> None:
    """Refuse coordinates that are not a set of positions in a vector of ``n`` entries."""
    if coordinates.dtype != torch.int64 or coordinates.ndim != 1 or len(coordinates) == 0:
        raise ValueError(
            f"{who}: coordinates must be int64 (K,) with K at least 1, "
            f"got {coordinates.dtype} {tuple(coordinates.shape)}"
        )
    if coordinates[0] < 0 or coordinates[-1] >= n or not bool((coordinates.diff() > 0).all()):
        raise ValueError(f"{who}: coordinates must be ascending, each once, in 0..{n - 1}")
