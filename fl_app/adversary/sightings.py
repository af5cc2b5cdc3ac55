"""Stored sightings: enough on disk to attack a finished run again without training.

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
from types import NoneType
from typing import Any, TypeVar

import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fl_app.adversary.evidence_checks import check_like, check_task, check_truth, check_work
from fl_app.adversary.passive import SUM, Public, Sighting, manipulated_model
from fl_app.data.vocabularies import read_vocabulary
from fl_app.models import ModelSpec
from fl_app.types import Trace, Truth, Update
from fl_app.wire.messages import Answer, Order

FOLDER = "observations"
_PUBLIC = "public.json"
_VERSION = 2
_FACTS = ("broadcaster", "asked", "masked", "summed", "audited", "participant")
_PARTS = ("update", "sent_buffers", "locations", "raw", "truth")

_TRACES = TypeAdapter(tuple[Trace, ...])

Header = TypeVar("Header", Order, Answer)


def save_sightings(folder: Path, sightings: list[Sighting], spec: ModelSpec, public: Public) -> list[Path]:
    """Write sightings below ``folder``, a model that several clients saw once, and return the files."""
    if not sightings:
        return []
    where = folder / FOLDER
    where.mkdir(parents=True, exist_ok=True)
    facts = {"version": _VERSION, "model": spec.to_json(), "public": asdict(public)}
    draft = where / f"{_PUBLIC}.part"
    draft.write_text(json.dumps(facts, indent=1, default=dict) + "\n")
    written = [draft.replace(where / _PUBLIC)]
    for sighting in sightings:
        number = sighting.order.round
        model = where / _model_name(sighting.order)
        if not model.exists():
            written.append(_write(model, {"weights": sighting.weights, "buffers": sighting.buffers}, {}))
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
        written.append(_write(where / f"r{number}-{name}.safetensors", parts, told))
    return written


def load_sightings(folder: Path) -> tuple[list[Sighting], ModelSpec, Public]:
    """Read what `save_sightings` wrote, by round and client; anything else is a ValueError."""
    where = folder / FOLDER
    path = where / _PUBLIC
    if not path.is_file():
        raise ValueError(f"{folder}: has no {FOLDER}/{_PUBLIC}: no client was attacked, or audit.store=false")
    try:
        facts = json.loads(path.read_text())
        if facts["version"] != _VERSION:
            raise ValueError(f"version must be {_VERSION}, got {facts['version']!r}")
        spec, public = ModelSpec.from_json(facts["model"]), _public(facts["public"])
        check_task(public)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    models: dict[str, dict[str, Update]] = {}

    def model_of(order: Order) -> dict[str, Update]:
        name = _model_name(order)
        if name not in models:
            models[name], _ = _read(where / name)
        return models[name]

    sightings = [_sighting(file, model_of, public) for _, file in sorted(_client_files(where).items())]
    return sightings, spec, public


def _model_name(order: Order) -> str:
    """Return the file of the model that an order went with: the round's, or a manipulated one."""
    return f"r{order.round}-{'model' if manipulated_model(order) is None else 'manipulated'}.safetensors"


def _present(truth: Truth | None) -> Update:
    return {} if truth is None else {name: t for name, t in vars(truth).items() if t is not None}


def _write(path: Path, parts: Mapping[str, Mapping[str, Tensor]], told: dict[str, str]) -> Path:
    # safetensors sorts names; the order of parameters matters
    told = told | {name: json.dumps(list(part)) for name, part in parts.items()}
    tensors = {
        f"{name}/{key}": tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, part in parts.items()
        for key, tensor in part.items()
    }
    draft = path.with_suffix(".part")  # a run that is killed leaves no half file to be taken for a whole one
    save_file(tensors, draft, metadata=told)
    return draft.replace(path)


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
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    return parts, told


def _sighting(path: Path, model_of: Callable[[Order], dict[str, Update]], public: Public) -> Sighting:
    parts, told = _read(path)
    try:
        order, answer = _header(told["order"], Order), _header(told["answer"], Answer)
        model = model_of(order)
        update, sent_buffers, locations, raw, shown = (parts[name] for name in _PARTS)
        weights, truth = model["weights"], Truth(**shown) if shown else None
        if truth is not None:
            check_truth(truth, public)
        check_work(answer, truth, public)
        return Sighting(
            order=order,
            answer=answer,
            weights=weights,
            buffers=model["buffers"],
            update=check_like("the update", update, weights),
            sent_buffers=sent_buffers and check_like("the buffers", sent_buffers, model["buffers"]),
            locations=check_like("the locations", locations, weights) if locations else None,
            broadcaster=bool(told["broadcaster"]),
            truth=truth,
            raw=check_like("the raw update", raw, weights) if raw else None,
            # older runs lack some of these
            asked=_of_kind("asked", told.get("asked"), int, NoneType),
            masked=bool(told.get("masked", False)),
            summed=_of_kind("summed", told.get("summed", 0), int),
            audited=_of_kind("audited", told.get("audited"), int, NoneType),
            participant=_of_kind("participant", told.get("participant"), int, NoneType),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: is not what a run wrote: {error}") from error


def _header(content: Any, kind: type[Header]) -> Header:
    # checked: a round is part of a file's name, and attacks compute with these numbers
    plain = {"int": (int,), "float": (float, int), "str": (str,), "bool": (bool,)}
    return kind(**{f.name: _of_kind(f.name, content[f.name], *plain[str(f.type)]) for f in fields(kind)})


def _public(content: Any) -> Public:
    lists = {
        name: tuple(_of_kind(name, entry, int, float) for entry in _of_kind(name, content[name], list))
        for name in ("input_shape", "mean", "std")
    }
    return Public(
        num_classes=_of_kind("num_classes", content["num_classes"], int),
        defense=_TRACES.validate_python(content["defense"]),
        training=_of_kind("training", content["training"], bool),
        local_batch_size=_of_kind("local_batch_size", content["local_batch_size"], int, NoneType),
        # older runs have no vocabulary
        vocabulary=read_vocabulary(content.get("vocabulary")),
        **lists,
    )


def _of_kind(name: str, value: Any, *kinds: type) -> Any:
    if type(value) not in kinds:
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{name} must be {expected}, got {value!r:.80}")
    return value


def _client_files(where: Path) -> dict[tuple[int, int], Path]:
    """Return the clients' files by round and client."""
    found = (
        (re.fullmatch(r"r(\d+)-(?:c(\d+)|sum)\.safetensors", path.name), path) for path in where.iterdir()
    )
    return {(int(match[1]), int(match[2] or SUM)): path for match, path in found if match}
