"""What the server saw, on disk: enough to attack a finished run again without training.

One file per round for the model, one per attacked client for the rest; safetensors
and JSON, nothing that could run code. An audited client's truth is in there, too:
it was revealed for scores, and a new attack is scored with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fl_app.audit import SUM, Public, Sighting, manipulated_model
from fl_app.messages import Answer, Order
from fl_app.models import ModelSpec
from fl_app.types import Truth, Update

FOLDER = "observations"
_PUBLIC = "public.json"
_VERSION = 1
_FACTS = ("broadcaster", "asked", "masked", "summed", "audited", "participant")
_PARTS = ("update", "sent_buffers", "locations", "raw", "truth")

Header = TypeVar("Header", Order, Answer)


def save_sightings(folder: Path, sightings: list[Sighting], spec: ModelSpec, public: Public) -> None:
    """Write sightings below ``folder``; a model that several clients saw is written once."""
    if not sightings:
        return
    where = folder / FOLDER
    where.mkdir(parents=True, exist_ok=True)
    facts = {"version": _VERSION, "model": spec.to_json(), "public": asdict(public)}
    (where / _PUBLIC).write_text(json.dumps(facts, indent=1, default=dict) + "\n")
    for sighting in sightings:
        number = sighting.order.round
        model = where / _model_name(sighting.order)
        if not model.exists():
            _write(model, {"weights": sighting.weights, "buffers": sighting.buffers}, {})
        parts = {
            "update": sighting.update,
            "sent_buffers": sighting.sent_buffers,
            "locations": sighting.locations or {},
            "raw": sighting.raw or {},
            "truth": _present(sighting.truth),
        }
        heads = {"order": asdict(sighting.order), "answer": asdict(sighting.answer)}
        told = {name: json.dumps(head) for name, head in heads.items()}
        told |= {name: json.dumps(getattr(sighting, name)) for name in _FACTS}
        name = "sum" if sighting.summed else f"c{sighting.order.client}"
        _write(where / f"r{number}-{name}.safetensors", parts, told)


def load_sightings(folder: Path) -> tuple[list[Sighting], ModelSpec, Public]:
    """Read what `save_sightings` wrote, by round and client; anything else is a ValueError."""
    where = folder / FOLDER
    path = where / _PUBLIC
    if not path.is_file():
        raise ValueError(
            f"{folder}: has no {FOLDER}/{_PUBLIC}: the run watched nobody, or was made with audit.store=false"
        )
    try:
        facts = json.loads(path.read_text())
        if facts["version"] != _VERSION:
            raise ValueError(f"version must be {_VERSION}, got {facts['version']!r}")
        spec, public = ModelSpec.from_json(facts["model"]), _public(facts["public"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    models: dict[str, dict[str, Update]] = {}

    def model_of(order: Order) -> dict[str, Update]:
        name = _model_name(order)
        if name not in models:
            models[name], _ = _read(where / name)
        return models[name]

    sightings = [_sighting(file, model_of) for _, file in sorted(_client_files(where).items())]
    return sightings, spec, public


def _model_name(order: Order) -> str:
    """Return the file of the model that an order went with: the round's, or a manipulated one."""
    return f"r{order.round}-{'model' if manipulated_model(order) is None else 'manipulated'}.safetensors"


def _present(truth: Truth | None) -> Update:
    return {} if truth is None else {name: t for name, t in vars(truth).items() if t is not None}


def _write(path: Path, parts: Mapping[str, Mapping[str, Tensor]], told: dict[str, str]) -> None:
    # safetensors sorts names; the order of parameters matters
    told = told | {name: json.dumps(list(part)) for name, part in parts.items()}
    tensors = {
        f"{name}/{key}": tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, part in parts.items()
        for key, tensor in part.items()
    }
    save_file(tensors, path, metadata=told)


def _read(path: Path) -> tuple[dict[str, Update], dict[str, Any]]:
    try:
        with safe_open(path, framework="pt") as file:
            told = {name: json.loads(text) for name, text in (file.metadata() or {}).items()}
            stored = set(file.keys())
            parts = {
                name: {key: file.get_tensor(f"{name}/{key}") for key in keys}
                for name, keys in told.items()
                if isinstance(keys, list) and all(f"{name}/{key}" in stored for key in keys)
            }
    except (OSError, SafetensorError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    return parts, told


def _sighting(path: Path, model_of: Callable[[Order], dict[str, Update]]) -> Sighting:
    parts, told = _read(path)
    try:
        order = _header(told["order"], Order)
        model = model_of(order)
        update, sent_buffers, locations, raw, truth = (parts[name] for name in _PARTS)
        return Sighting(
            order=order,
            answer=_header(told["answer"], Answer),
            weights=model["weights"],
            buffers=model["buffers"],
            update=update,
            sent_buffers=sent_buffers,
            locations=locations or None,
            broadcaster=bool(told["broadcaster"]),
            truth=Truth(**truth) if truth else None,
            raw=raw or None,
            # runs of before they were kept do not have all of these
            asked=told.get("asked"),
            masked=bool(told.get("masked", False)),
            summed=int(told.get("summed", 0)),
            audited=told.get("audited"),
            participant=told.get("participant"),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: is not what a run wrote: {error}") from error


def _header(content: dict[str, Any], kind: type[Header]) -> Header:
    return kind(**{field.name: content[field.name] for field in fields(kind)})


def _public(content: dict[str, Any]) -> Public:
    values: dict[str, Any] = {field.name: content[field.name] for field in fields(Public)}
    values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return Public(**values)


def _client_files(where: Path) -> dict[tuple[int, int], Path]:
    """Return the clients' files by round and client."""
    found = (
        (re.fullmatch(r"r(\d+)-(?:c(\d+)|sum)\.safetensors", path.name), path) for path in where.iterdir()
    )
    return {(int(match[1]), int(match[2] or SUM)): path for match, path in found if match}
