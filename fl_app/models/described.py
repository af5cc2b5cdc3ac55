"""Description of a module that no list knows: two processes that build it alike agree on its hash."""

from __future__ import annotations

import hashlib
import json

import torch
from torch import Tensor, nn

from fl_app.models.spec import ModelSpec
from fl_app.storage.fingerprint import hash_tensors


def describe_module(model: nn.Module) -> ModelSpec:
    """Return the spec of a module: its tensors' names, shapes and types, and the values that stay frozen."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    structure = {name: [*tensor.shape, str(tensor.dtype)] for name, tensor in tensors.items()}
    frozen = frozen_parameters(model)
    settings: dict[str, object] = {
        "structure": hashlib.sha256(json.dumps([structure, list(frozen)]).encode()).hexdigest()[:16],
        "entries": sum(tensor.numel() for tensor in tensors.values()),
    }
    if frozen:
        settings["frozen"] = hash_tensors(frozen.values())
    return ModelSpec("torch.nn.Module", settings)


_WITHOUT_ARRAY = "a Flower array cannot hold that: take float32, and torch.autocast inside of train"


def check_types(who: str, model: nn.Module) -> None:
    """Refuse tensors of a type that numpy, and so Flower's records, do not have."""
    for name, tensor in (dict(model.named_parameters()) | dict(model.named_buffers())).items():
        kind = tensor.dtype
        floats = kind.is_floating_point and kind not in (torch.float16, torch.float32, torch.float64)
        if floats or kind.is_complex or tensor.is_quantized:
            raise TypeError(
                f"{who}: {name} is of type {str(kind).removeprefix('torch.')}, and {_WITHOUT_ARRAY}"
            )


def frozen_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that are not trained: every process has them from the start, none is sent."""
    return {name: p.detach() for name, p in model.named_parameters() if not p.requires_grad}
