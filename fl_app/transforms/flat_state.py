"""A transform's state as named tensors without nesting, and back: the form of Flower's records."""

from __future__ import annotations

import torch
from torch import Tensor

from fl_app.transforms.transform import State
from fl_app.types import Update

_SEPARATOR = "/"
_DEEPEST = 32
"""Most branches above a leaf."""


def flatten_state(state: State, prefix: str = "") -> Update:
    """Return every leaf under its path; names are escaped as in a JSON pointer."""
    flat: Update = {}
    for name, node in state.items():
        path = prefix + name.replace("~", "~0").replace(_SEPARATOR, "~1")
        if isinstance(node, Tensor):
            flat[path] = node
        elif node:
            flat.update(flatten_state(node, path + _SEPARATOR))
        else:  # an empty branch has no leaf that shows it
            flat[path + _SEPARATOR] = torch.empty(0, device="cpu")
    return flat


def unflatten_state(flat: Update) -> State:
    """Return the tree that `flatten_state` flattened; raise a ValueError for impossible paths."""
    state: State = {}
    for path, tensor in flat.items():
        *branches, leaf = (
            part.replace("~1", _SEPARATOR).replace("~0", "~") for part in path.split(_SEPARATOR)
        )
        node: State | Tensor = state
        for branch in branches[:_DEEPEST]:
            node = {} if isinstance(node, Tensor) else node.setdefault(branch, {})
        if isinstance(node, Tensor) or len(branches) > _DEEPEST or leaf in node:
            raise ValueError(f"client_state: {path[:80]!r} is no place in a state")
        if leaf:
            node[leaf] = tensor
    return state
