"""Stored sightings: enough on disk to attack a finished run again without training.

One file per round for the model, one per attacked client for the rest; safetensors
and JSON, nothing that could run code. Each has a checksum, and a client's file names that of its model: a
flipped bit, or the model of another run, is an error and not another result. An audited client's truth is in
there, too: it was revealed for scores, and a new attack is scored with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, TypeVar

import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fl_app.adversary.evidence_checks import check_like, check_task, check_truth, check_work
from fl_app.adversary.passive import SUM, Public, Sighting, manipulated_model
from fl_app.data.vocabularies import read_vocabulary
from fl_app.models import ModelSpec
from fl_app.storage.fingerprint import hash_json, hash_named
from fl_app.types import Trace, Truth, Update
from fl_app.wire.messages import Answer, Order

FOLDER = "observations"
_PUBLIC = "public.json"
_VERSION = 3
_UNCHECKED = 2
"""The version of runs whose files have no checksums."""
_CHECKSUM = "checksum"
_FACTS = ("broadcaster", "asked", "masked", "summed", "cohort", "audited", "participant")
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
    facts = json.loads(json.dumps(facts, default=dict))
    draft = where / f"{_PUBLIC}.part"
    draft.write_text(json.dumps(facts | {_CHECKSUM: hash_json(facts)}, indent=1) + "\n", encoding="utf-8")
    written = [draft.replace(where / _PUBLIC)]
    models: dict[str, str] = {}
    for sighting in sightings:
        number = sighting.order.round
        name = _model_name(sighting.order)
        if name not in models:
            held = {"weights": sighting.weights, "buffers": sighting.buffers}
            models[name] = _write(where / name, held, {})
            written.append(where / name)
        parts = {
            "update": sighting.update,
            "sent_buffers": sighting.sent_buffers,
            "locations": sighting.locations or {},
            "raw": sighting.raw or {},
            "truth": _present(sighting.truth),
        }
        heads = {"order": asdict(sighting.order), "answer": asdict(sighting.answer), "model": models[name]}
        told = {key: json.dumps(head) for key, head in heads.items()}
        told |= {key: json.dumps(getattr(sighting, key)) for key in _FACTS}
        whose = "sum" if sighting.summed else f"c{sighting.order.client}"
        written.append(where / f"r{number}-{whose}.safetensors")
        _write(written[-1], parts, told)
    return written


def load_sightings(
    folder: Path, *, only: Collection[tuple[int, int]] | None = None
) -> tuple[list[Sighting], ModelSpec, Public]:
    """Read what `save_sightings` wrote, by round and client; anything else is a ValueError.

    ``only``: the rounds and clients to read; None: all.
    """
    where = folder / FOLDER
    path = where / _PUBLIC
    if not path.is_file():
        raise ValueError(f"{folder}: has no {FOLDER}/{_PUBLIC}: no client was attacked, or audit.store=false")
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        checked = facts["version"] != _UNCHECKED
        if checked and facts["version"] != _VERSION:
            raise ValueError(f"version must be {_VERSION}, got {facts['version']!r}")
        found = facts.pop(_CHECKSUM, None)
        if (checked or found is not None) and found != hash_json(facts):
            raise ValueError("is damaged: its checksum is not that of its content")
        spec, public = ModelSpec.from_json(facts["model"]), _public(facts["public"])
        check_task(public)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError, OSError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    models: dict[str, _Stored] = {}

    def model_of(order: Order, checksum: str | None) -> dict[str, Update]:
        name = _model_name(order)
        if name not in models:
            models[name] = _read(where / name, checked=checked)
        if checksum != models[name].checksum:
            raise ValueError(f"{where / name} is not the model that it belongs to")
        return models[name].parts

    files = {key: file for key, file in _client_files(where).items() if only is None or key in only}
    sightings = [
        _sighting(file, _read(file, checked=checked), model_of, public) for _, file in sorted(files.items())
    ]
    return sightings, spec, public


def _model_name(order: Order) -> str:
    """Return the file of the model that an order went with: the round's, or a manipulated one."""
    return f"r{order.round}-{'model' if manipulated_model(order) is None else 'manipulated'}.safetensors"


def _present(truth: Truth | None) -> Update:
    return {} if truth is None else {name: t for name, t in vars(truth).items() if t is not None}


def _write(path: Path, parts: Mapping[str, Mapping[str, Tensor]], told: dict[str, str]) -> str:
    """Write a file and return its checksum."""
    # safetensors sorts names; the order of parameters matters
    told = told | {name: json.dumps(list(part)) for name, part in parts.items()}
    tensors = {
        f"{name}/{key}": tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, part in parts.items()
        for key, tensor in part.items()
    }
    checksum = hash_named(told, tensors)
    draft = path.with_suffix(".part")  # a run that is killed leaves no half file to be taken for a whole one
    save_file(tensors, draft, metadata=told | {_CHECKSUM: json.dumps(checksum)})
    draft.replace(path)
    return checksum


class _Stored(NamedTuple):
    """Content of one file."""

    parts: dict[str, Update]
    told: dict[str, Any]
    checksum: str | None


def _read(path: Path, *, checked: bool) -> _Stored:
    try:
        with safe_open(path, framework="pt") as file:
            texts: dict[str, str] = dict(file.metadata() or {})
            tensors: Update = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        stated = texts.pop(_CHECKSUM, None)
        checksum = None if stated is None else str(json.loads(stated))
        if checked and checksum is None:
            raise ValueError("has no checksum")
        if checksum is not None and checksum != hash_named(texts, tensors):
            raise ValueError("is damaged: its checksum is not that of its content")
        told = {name: json.loads(text) for name, text in texts.items()}
    except (OSError, SafetensorError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    parts = {
        name: {key: tensors[f"{name}/{key}"] for key in keys}
        for name, keys in told.items()
        if isinstance(keys, list) and all(f"{name}/{key}" in tensors for key in keys)
    }
    return _Stored(parts, told, checksum)


def _sighting(
    path: Path,
    stored: _Stored,
    model_of: Callable[[Order, str | None], dict[str, Update]],
    public: Public,
) -> Sighting:
    parts, told = stored.parts, stored.told
    try:
        order, answer = _header(told["order"], Order), _header(told["answer"], Answer)
        model = model_of(order, _of_kind("model", told.get("model"), str, NoneType))
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
            cohort=tuple(
                _of_kind("cohort", c, int) for c in _of_kind("cohort", told.get("cohort", []), list)
            ),
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
        features=tuple(
            _of_kind("features", name, str)
            for name in _of_kind("features", content.get("features", []), list)
        ),
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
