"""Every decoder that reads bytes from the network or from disk, with valid examples and its one refusal."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import shutil
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from safetensors.torch import save

from attacks.metrics import lpips_weights
from benchmarks.fuzz_mutations import JSON_VALUES, VALUES, damage_bytes, damage_tree
from fl_app.adversary import sightings as sighting_files
from fl_app.adversary.passive import Public, Sighting
from fl_app.client import state as client_state
from fl_app.client.disk import DurableMemory
from fl_app.client.records import from_tree, to_tree
from fl_app.client.state import ClientState, Work
from fl_app.config.compose import ConfigError
from fl_app.config.trust import NOBODY, compose_sent
from fl_app.data import image_folder, librispeech, word_pieces
from fl_app.data.facts import Facts
from fl_app.data.hospital import CATEGORIES, LEFT_OUT, TARGET, support2
from fl_app.data.idx import read_idx
from fl_app.data.places import DataUnavailable
from fl_app.data.row_encoding import RowEncoding, read_category, read_numbers
from fl_app.data.vocabularies import read_vocabulary
from fl_app.flower import held_tensor
from fl_app.flower.inline import InlineGrid
from fl_app.models import ModelSpec, check_size, mlp
from fl_app.models.stored import load_weights
from fl_app.policy import Account, Journal, Policy, load_policy, read_journal
from fl_app.privacy import Release
from fl_app.results import ResultError, load_run, read_run
from fl_app.results.study import load_study
from fl_app.running import checkpoint, ownership
from fl_app.running.result import Results, find_run
from fl_app.secagg import (
    ProtocolError,
    SecureRound,
    Terms,
    create_identities,
    endorse,
    fit_fixed_point,
    load_identity,
    load_pinned,
    mask,
    offer,
    share,
    unmask,
)
from fl_app.secagg import messages as secure
from fl_app.secagg.envelopes import Passage, open_envelope
from fl_app.secagg.stages import read_stage
from fl_app.storage import locks as cell_lock
from fl_app.storage.fingerprint import hash_json
from fl_app.storage.tensor_files import read_tensors
from fl_app.storage.tree_file import read_tree, write_tree
from fl_app.strategies.begun import Begun
from fl_app.text.folder import read_tokenizer
from fl_app.text.tokenizer import SIGNS
from fl_app.types import Trace, Truth
from fl_app.wire import CodecError, apply_change, decode, decode_masks, encode, encode_change, messages
from fl_app.wire.messages import MessageError

_BLOB = "blob"


@dataclass(frozen=True)
class Decoder:
    """One reader of foreign bytes."""

    name: str
    covers: tuple[Callable[..., Any], ...]
    """The public functions that it stands for."""
    examples: tuple[Any, ...]
    """Valid ones: bytes, or trees of what a message holds."""
    read: Callable[[Any], Any]
    refusal: type[Exception]
    """The one exception that may come."""
    damage: Callable[[Any, random.Random], Any]
    weight: float = 1.0
    """Its share of the inputs; what is slow gets fewer."""


def all_decoders(folder: Path) -> list[Decoder]:
    """Return the registry; ``folder`` is for those that read files."""
    return [
        *_wire(),
        *_secure(folder / "secure"),
        *_messages(),
        *_memories(),
        *_kept_files(folder / "kept"),
        *_facts(),
        *_models(folder / "models"),
        *_run_folders(folder / "runs"),
        *_data_files(folder / "data"),
        *_settings(),
        *_policies(folder / "policy"),
    ]


def of_bytes(
    name: str,
    covers: Iterable[Callable[..., Any]],
    examples: Sequence[bytes],
    read: Callable[[bytes], Any],
    refusal: type[Exception],
    *,
    weight: float = 1.0,
    repair: Callable[[bytes], bytes] = bytes,
) -> Decoder:
    """Make the entry of a decoder of bytes; ``repair`` makes checksums right again, half of the time."""

    def damage(example: bytes, draw: random.Random) -> bytes:
        damaged = damage_bytes(example, examples, draw)
        return repair(damaged) if draw.random() < 0.5 else damaged

    return Decoder(name, tuple(covers), tuple(examples), read, refusal, damage, weight)


def of_trees(
    name: str,
    covers: Iterable[Callable[..., Any]],
    examples: Sequence[Any],
    read: Callable[[Any], Any],
    refusal: type[Exception],
    *,
    values: Sequence[Any] = JSON_VALUES,
    weight: float = 0.3,
) -> Decoder:
    """Make the entry of a decoder of nested values."""

    def damage(example: Any, draw: random.Random) -> Any:
        return damage_tree(example, values, draw)

    return Decoder(name, tuple(covers), tuple(examples), read, refusal, damage, weight)


def of_files(
    name: str,
    covers: Iterable[Callable[..., Any]],
    examples: Sequence[bytes],
    read: Callable[[], Any],
    refusal: type[Exception],
    *,
    file: Path,
    weight: float = 0.2,
    repair: Callable[[bytes], bytes] = bytes,
) -> Decoder:
    """Make the entry of a decoder that reads ``file``; ``repair`` is as in `of_bytes`."""
    file.parent.mkdir(parents=True, exist_ok=True)

    def write_and_read(content: bytes) -> Any:
        file.write_bytes(content)
        return read()

    return of_bytes(name, covers, examples, write_and_read, refusal, weight=weight, repair=repair)


def _tensors() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return {
        "a.weight": torch.randn(12, 7, generator=draw),
        "a.bias": torch.randn(12, generator=draw),
        "b": torch.randn(300, generator=draw).half().float(),
        "c": torch.randint(-3, 4, (40,), generator=draw) * 0.25,
        "n": torch.arange(5),
    }


def _wire() -> list[Decoder]:
    dense = _tensors()
    sparse = {name: torch.where(t.abs() > t.abs().float().quantile(0.8), t, 0) for name, t in dense.items()}
    masks = {name: t != 0 for name, t in sparse.items()}
    moved = {name: t + (sparse[name] if t.is_floating_point() else 0) for name, t in dense.items()}
    plain = [encode(dense), encode(sparse), encode({k: torch.zeros_like(v) for k, v in dense.items()})]
    change = encode_change(moved, dense)
    within = encode(sparse, within=masks)
    return [
        of_bytes("wire update", [decode], plain, lambda b: decode(b, dense), CodecError, repair=_with_crc),
        of_bytes(
            "wire masks",
            [decode_masks],
            [encode(masks)],
            lambda b: decode_masks(b, dense),
            CodecError,
            repair=_with_crc,
        ),
        of_bytes(
            "wire update within",
            [decode],
            [within],
            lambda b: decode(b, dense, within=masks),
            CodecError,
            repair=partial(_with_crc, start=_crc_start(masks=masks)),
        ),
        of_bytes(
            "wire change",
            [apply_change],
            [change],
            lambda b: apply_change(dense, b),
            CodecError,
            repair=partial(_with_crc, start=_crc_start(old=dense)),
        ),
    ]


def _with_crc(blob: bytes, start: int = 0) -> bytes:
    """Give a blob of the wire the checksum that it should have."""
    return blob[:-4] + zlib.crc32(blob[:-4], start).to_bytes(4, "little")


def _crc_start(
    *, masks: Mapping[str, torch.Tensor] | None = None, old: Mapping[str, torch.Tensor] | None = None
) -> int:
    start = 0
    for name in sorted(old or {}):
        start = zlib.crc32((old or {})[name].numpy().tobytes(), start)
    for name in sorted(masks or {}):
        start = zlib.crc32(np.packbits((masks or {})[name].reshape(-1).numpy()).tobytes(), start)
    return start


def _secure(folder: Path) -> list[Decoder]:
    create_identities(folder, range(3))
    rounds = [_secure_round(signed, folder) for signed in (False, True)]
    entries: list[Decoder] = []
    for signed, (terms, seen, states) in zip(("", " signed"), rounds, strict=True):
        readers: dict[str, Callable[[bytes], Any]] = {
            "advert": partial(secure.Advert.from_bytes, terms=terms, client=0),
            "keyring": partial(secure.Keyring.from_bytes, terms=terms),
            "shares": partial(secure.Shares.from_bytes, terms=terms, client=0, holders=3),
            "delivery": partial(secure.Delivery.from_bytes, terms=terms),
            "masked": partial(secure.Masked.from_bytes, terms=terms, client=0),
            "survivors": partial(secure.Survivors.from_bytes, terms=terms),
            "endorsement": partial(secure.Endorsement.from_bytes, terms=terms, client=0),
            "request": partial(secure.Request.from_bytes, terms=terms),
            "unmasking": partial(secure.Unmasking.from_bytes, terms=terms, client=0, owners=3),
        }
        entries += [
            of_bytes(
                f"secagg {kind}{signed}",
                [readers[kind].func.__func__],
                blobs,
                readers[kind],  # type: ignore[attr-defined]
                ProtocolError,
            )
            for kind, blobs in seen.items()
        ]
        entries.append(
            of_bytes(
                f"secagg terms{signed}",
                [Terms.from_bytes.__func__],
                [terms.to_bytes()],  # type: ignore[attr-defined]
                Terms.from_bytes,
                ProtocolError,
            )
        )
        entries.append(of_bytes(f"secagg memory{signed}", [read_stage], states, read_stage, ProtocolError))
    terms, seen, states = rounds[0]
    shared = read_stage(states[1])
    passage, envelope = Passage(terms.digest, owner=1, holder=0), seen["shares"][1][-3 * 126 :][:126]
    opener = shared.peers[1].opener  # type: ignore[union-attr]
    entries.append(
        of_bytes(
            "secagg envelope",
            [open_envelope],
            [envelope],
            lambda blob: open_envelope(opener, passage, blob),
            ProtocolError,
        )
    )
    public, private = folder / "client-0.pub", folder / "client-0.key"
    keys = [public.read_bytes(), private.read_bytes()]
    for what, file, own in (("public", public, keys[0]), ("private", private, keys[1])):

        def read(file: Path = file, own: bytes = own) -> Any:
            try:
                return load_pinned(folder), load_identity(folder, 0)
            finally:
                file.write_bytes(own)

        entries.append(
            of_files(f"{what} key file", [load_pinned, load_identity], [own], read, ValueError, file=file)
        )
    return entries


def _secure_round(signed: bool, folder: Path) -> tuple[Terms, dict[str, list[bytes]], list[bytes]]:
    """Return terms, the messages of one whole round by kind, and a client's memories."""
    terms = Terms(
        bytes(16), 1, 0, bytes(32), (0, 1, 2), 3, 5, fit_fixed_point(bound=2.0, step=0.25, clients=3), signed
    )
    names = {client: load_identity(folder, client) if signed else None for client in range(3)}
    server = SecureRound(terms, pinned=load_pinned(folder) if signed else None)
    steps = {c: offer(m, client=c, identity=names[c]) for c, m in server.invite().items()}
    seen = {"advert": [steps[0].reply]}
    memories = [steps[0].state]

    def go_on(kind: str, answer: str, down: Mapping[int, bytes], call: Callable[[int, bytes], Any]) -> None:
        for client, message in down.items():
            steps[client] = call(client, message)
        seen[kind], seen[answer] = list(down.values()), [step.reply for step in steps.values()]
        memories.append(steps[0].state)

    go_on(
        "keyring",
        "shares",
        server.collect_adverts(_replies(steps)),
        lambda c, m: share(steps[c].state, m, identity=names[c]),
    )
    go_on(
        "delivery",
        "masked",
        server.collect_shares(_replies(steps)),
        lambda c, m: mask(steps[c].state, m, np.arange(5) / 4, job=bytes(32)),
    )
    down = server.collect_masked(_replies(steps))
    if signed:
        go_on("survivors", "endorsement", down, lambda c, m: endorse(steps[c].state, m, identity=names[c]))  # type: ignore[arg-type]
        down = server.collect_endorsements(_replies(steps))
    go_on("request", "unmasking", down, lambda c, m: unmask(steps[c].state, m, identity=names[c]))
    return terms, seen, memories


def _replies(steps: Mapping[int, Any]) -> dict[int, bytes]:
    return {client: step.reply for client, step in steps.items()}


def _messages() -> list[Decoder]:
    blob = messages.pack_blob(encode(_tensors()))
    order = messages.Order(1, 0, 0.1, "ab" * 32, 3, model_spec=_spec().to_json())
    plan = messages.pack_plan(messages.Plan("", "ab" * 32, 7, 4, 1.0))
    facts = messages.pack_blob(b"{}")
    name, told = messages.RunName("ab" * 16), ConfigRecord({"lr": 0.1, "update": "change"})
    ordered = messages.pack_order(order, blob, blob, blob, plan, b"secure", facts, name, told)
    messages.add_query(ordered, messages.LocationQuery(0.05, 10))
    truth = Truth(torch.rand(2, 1, 4, 4), torch.tensor([1, 0]))
    reply = messages.Reply(
        messages.Answer(1, 0, 8, 2), b"update", b"buffers", {"loss": 0.5}, Release(0.1, 1.0, 3, 1e-5)
    )
    identity = messages.pack_identity(messages.Identity(0, 4, True))
    audited = messages.pack_reply(reply, messages.pack_audit(truth, _tensors()))
    refusal, whole = (
        MessageError,
        (messages.unpack_order, messages.read_order, messages.read_locations, messages.read_blob),
    )
    readers: list[tuple[str, tuple[Callable[..., Any], ...], RecordDict, Callable[[Message], Any]]] = [
        ("order", whole, ordered, messages.unpack_order),
        ("query", (messages.read_query,), ordered, messages.read_query),
        ("facts", (messages.read_facts,), ordered, messages.read_facts),
        (
            "reply",
            (messages.unpack_reply, messages.read_reply),
            messages.pack_reply(reply),
            messages.unpack_reply,
        ),
        ("metrics", (messages.read_metrics,), messages.pack_metrics({"loss": 0.5}), messages.read_metrics),
        ("identity", (messages.unpack_identity,), identity, messages.unpack_identity),
        ("secure", (messages.unpack_secure,), messages.pack_secure(b"blob"), messages.unpack_secure),
        ("audit", (messages.take_audit,), audited, lambda message: messages.take_audit(message.content)),
    ]

    def revealed(blob: bytes) -> Any:
        return messages.take_audit(RecordDict({"audit": ConfigRecord({"truth": blob})}))

    def audited(blob: bytes) -> Any:
        return messages.read_candidates(RecordDict({"audit": ConfigRecord({"candidates": blob})}))

    shown = save({"inputs": truth.inputs, "labels": truth.labels})
    dealt = save({"inputs": truth.inputs, "labels": truth.labels, "members": truth.labels > 0})
    return [
        *(
            of_trees(
                f"message {name}",
                covers,
                [_as_tree(content)],
                lambda tree, read=read: read(_message(_as_records(tree))),
                refusal,
                values=VALUES,
            )
            for name, covers, content, read in readers
        ),
        of_bytes("message truth", [messages.take_audit], [shown], revealed, refusal),
        of_bytes("message candidates", [messages.read_candidates], [dealt], audited, refusal),
    ]


def _message(content: RecordDict) -> Message:
    return _MAKE_MESSAGE(content)


def _message_maker() -> Callable[[RecordDict], Message]:
    """Flower's messages belong to a run: an engine says which."""
    from flwr.clientapp import ClientApp

    InlineGrid(ClientApp(), 1)
    return lambda content: Message(content, 1, messages.TRAIN)


def _as_tree(content: RecordDict) -> dict[str, Any]:
    return {name: _values(record) for name, record in content.items()}


def _values(record: Any) -> dict[str, Any]:
    blob = messages.read_blob(record)
    return dict(record.items()) if blob is None else {_BLOB: blob}


def _as_records(tree: Any) -> RecordDict:
    """Make records of what can be one; Flower would not have delivered the rest."""
    content = RecordDict()
    for name, values in tree.items():
        kind = MetricRecord if name.rpartition("/")[2] == "metrics" else ConfigRecord
        if isinstance(values, dict) and isinstance(values.get(_BLOB), bytes):
            content[name] = messages.pack_blob(values[_BLOB])
        elif isinstance(values, dict):
            record = kind()
            for key, value in values.items():
                try:
                    record[key] = value
                except TypeError:
                    continue
            content[name] = record
    return content


def _memories() -> list[Decoder]:
    device = torch.device("cpu")
    tensors = {"w": torch.randn(3, 2), "b": torch.zeros(2)}
    work = Work(1, tensors, {}, 4, 2, 0.5, 0.1, Truth(torch.rand(1, 1, 2, 2), torch.tensor([0])), tensors)
    state = ClientState(
        version=1,
        weights=tensors,
        buffers={"m": torch.ones(2)},
        transform={"e": {"w": torch.ones(3, 2)}, "inner": {}},
        sent_round=1,
        sent_order="cd" * 32,
        sent=messages.Reply(messages.Answer(1, 0, 8, 2), b"update", metrics={"loss": 0.5}),
        locations={"w": torch.ones(3, 2, dtype=torch.bool)},
        coordinates=b"where",
        work=work,
    )
    records = RecordDict()
    client_state.save(records, "ab" * 32, state)
    tensors_of = {n for n, record in records.array_records.items() if messages.read_blob(record) is None}
    tree: dict[str, Any] = {}
    for name, record in records.items():
        arrays = name in tensors_of
        tree[name] = {key: held.data for key, held in record.items()} if arrays else _values(record)

    def read(damaged: dict[str, Any]) -> ClientState:
        return client_state.load(_memory(damaged, tensors_of), "ab" * 32, device)

    plain = [Array(tensor).data for tensor in (torch.randn(3, 4), torch.arange(6), torch.ones(2, 2) > 0)]

    def release(data: bytes) -> Any:
        record = ArrayRecord()
        record["a"] = Array("float32", (3, 4), "numpy.ndarray", data)
        return held_tensor.release(record)

    return [
        of_trees("client memory", [client_state.load], [tree], read, ValueError, values=VALUES),
        of_bytes("array", [held_tensor.release], plain, release, ValueError),
    ]


def _memory(tree: dict[str, Any], arrays: set[str]) -> RecordDict:
    content = _as_records({name: values for name, values in tree.items() if name not in arrays})
    for name in arrays & tree.keys():
        record = ArrayRecord()
        for key, data in tree[name].items() if isinstance(tree[name], dict) else ():
            if isinstance(data, bytes):
                record[key] = Array("float32", (1,), "numpy.ndarray", data)
        content[name] = record
    return content


def _kept_files(folder: Path) -> list[Decoder]:
    """Return the readers of what clients and servers keep to outlive their processes."""
    memory = RecordDict()
    tensors = {"w": torch.randn(3, 2), "b": torch.zeros(2)}
    sent = messages.Reply(messages.Answer(1, 0, 8, 2), b"update")
    kept_state = ClientState(version=3, weights=tensors, transform={"e": tensors}, sent=sent)
    client_state.save(memory, "ab" * 32, kept_state)
    tree = to_tree(memory)
    kept, run = folder / "memory", folder / "run"
    (run / ownership.CHECKPOINT).mkdir(parents=True)
    write_tree(kept, tree)
    state = run / ownership.CHECKPOINT / ownership.STATE
    saved = checkpoint.Saved(
        {}, ["rounds=2"], {}, "ab" * 16, {"w": tensors}, None, [], 1.0, [], [], [(1, 0)], {0: tree}
    )
    whole = {"version": checkpoint.VERSION} | vars(saved)
    write_tree(state, whole)
    noted = folder / "noted"
    shutil.copytree(run, noted)
    begun = _with_checksum(json.dumps(asdict(Begun(2, 0, [0, 1]))).encode())
    return [
        of_files(
            "memory file",
            [read_tree, from_tree],
            [kept.read_bytes()],
            lambda: from_tree(read_tree(kept, limit=1 << 20)),
            ValueError,
            file=kept,
            repair=_with_digest,
        ),
        of_trees("memory", [from_tree], [tree], from_tree, ValueError, values=VALUES),
        of_files(
            "checkpoint",
            [checkpoint.read_checkpoint],
            [state.read_bytes()],
            lambda: checkpoint.read_checkpoint(run),
            ConfigError,
            file=state,
            repair=_with_digest,
        ),
        of_files(
            "begun.json",
            [checkpoint.read_checkpoint],
            [begun],
            lambda: checkpoint.read_checkpoint(noted),
            ConfigError,
            file=noted / ownership.CHECKPOINT / "begun.json",
            repair=_with_checksum,
        ),
        of_trees(
            "checkpoint values",
            [checkpoint.read_checkpoint],
            [whole],
            lambda damaged: _write(state, damaged) and checkpoint.read_checkpoint(run),
            ConfigError,
            values=VALUES,
            weight=0.05,
        ),
        *_durable_memory(folder / "durable"),
    ]


def _write(file: Path, tree: Any) -> bool:
    """Put a tree into its file, if it is one that can be stored."""
    try:
        write_tree(file, tree)
    except TypeError:
        return False
    return True


def _durable_memory(folder: Path) -> list[Decoder]:
    """Return the reader of a client's folder, with all that a client looks up in what it finds there."""
    durable, key, model = DurableMemory(folder, 0), "ab" * 16, "ab" * 32
    order = messages.Order(1, 0, 0.1, model, 0)
    parcel = messages.Parcel(order, b"", run=messages.RunName(key))
    memory, tensors = RecordDict(), {"w": torch.randn(3, 2)}
    sent = messages.Reply(messages.Answer(1, 0, 8, 2), b"update", metrics={"loss": 0.5})
    state = ClientState(
        1, tensors, {}, {"e": tensors}, sent_round=1, sent_order=parcel.digest, sent=sent, coordinates=b"x"
    )
    client_state.save(memory, model, state)
    durable.keep(memory, parcel, {})
    file = folder / "client-0" / key / "round-1"

    def read() -> None:
        for number in (1, 2):  # once more the round that was answered, and the one after it
            if file.exists():
                records = RecordDict()
                durable.recall(records, replace(parcel, order=replace(order, round=number)))
                client_state.last_round(records)
                client_state.load(records, model, torch.device("cpu"))

    name, covers = "durable memory", [DurableMemory.recall]
    return [
        of_files(name, covers, [file.read_bytes()], read, ValueError, file=file, repair=_with_digest),
        of_trees(
            f"{name} values",
            covers,
            [to_tree(memory)],
            lambda damaged: _write(file, damaged) and read(),
            ValueError,
            values=VALUES,
            weight=0.05,
        ),
    ]


def _with_checksum(damaged: bytes) -> bytes:
    """Give a note of a round the checksum that it should have, if it is one."""
    try:
        content = json.loads(damaged)
        content.pop("checksum", None)
        return json.dumps(content | {"checksum": hash_json(content)}).encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        return damaged


def _with_digest(content: bytes) -> bytes:
    """Give a kept file the hash that it should have."""
    return content[:-32] + hashlib.blake2b(content[:-32], digest_size=32).digest()


def _facts() -> list[Decoder]:
    encoding = RowEncoding(("age",), np.array([1.0]), np.array([2.0]), np.array([3.0]), (("sex", "f"),))
    facts = Facts(("a", "b"), (2,), (), (), encoding, None)
    tree, from_json = json.loads(facts.to_json()), Facts.from_json.__func__  # type: ignore[attr-defined]
    covers = (from_json, RowEncoding.from_plain.__func__, read_vocabulary)  # type: ignore[attr-defined]
    return [
        of_bytes(
            "facts",
            covers,
            [facts.to_json().encode()],
            lambda b: Facts.from_json(b.decode(errors="replace")),
            ValueError,
        ),
        of_trees(
            "facts values", covers, [tree], lambda damaged: Facts.from_json(json.dumps(damaged)), ValueError
        ),
    ]


def _spec() -> ModelSpec:
    return ModelSpec(
        "fl_app.models.mlp",
        {"num_classes": 3, "in_shape": [1, 4, 4], "hidden": [5], "activation": "relu"},
        {"bottleneck": {"size": 4}},
    )


def _models(folder: Path) -> list[Decoder]:
    model = mlp(num_classes=3, in_shape=(1, 4, 4), hidden=[5])
    stored = save({name: tensor.contiguous() for name, tensor in model.state_dict().items()})
    tree, from_json = json.loads(_spec().to_json()), ModelSpec.from_json.__func__  # type: ignore[attr-defined]
    file = folder / "model.safetensors"
    return [
        of_bytes("model spec", [from_json], [_spec().to_json().encode()], ModelSpec.from_json, ValueError),
        of_trees(
            "model settings",
            [from_json, check_size],
            [tree],
            lambda damaged: check_size(ModelSpec.from_json(json.dumps(damaged))),
            ValueError,
            weight=0.1,
        ),
        of_files(
            "weights file", [load_weights], [stored], lambda: load_weights(model, file), ValueError, file=file
        ),
        *(
            of_files(
                f"tensors in {file.suffix}",
                [read_tensors],
                [file.read_bytes()],
                partial(read_tensors, file),
                ValueError,
                file=file,
                weight=0.1,
            )
            for file in _tensor_files(folder)
        ),
    ]


def _tensor_files(folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = _tensors()
    files = [folder / f"update{suffix}" for suffix in (".pt", ".npz", ".safetensors")]
    torch.save(tensors, files[0])
    np.savez(files[1], **{name: tensor.numpy() for name, tensor in tensors.items()})
    files[2].write_bytes(save(tensors))
    return files


def _run_folders(folder: Path) -> list[Decoder]:
    weights = {"w": torch.randn(3, 2), "b": torch.zeros(2)}
    order = messages.Order(1, 0, 0.1, "ab" * 32, 3, model_spec=_spec().to_json())
    public = Public(10, (1, 4, 4), (0.5,), (0.2,), (Trace(withheld="small", kept=0.1),), True, 4)
    sighting = Sighting(
        order=order,
        answer=messages.Answer(1, 0, 1, 2),
        weights=weights,
        buffers={},
        update=weights,
        sent_buffers={},
        locations=None,
        broadcaster=False,
        truth=Truth(torch.rand(1, 1, 4, 4), torch.tensor([1])),
        raw=weights,
        asked=1,
    )
    sighting_files.save_sightings(folder, [sighting], _spec(), public)
    seen = folder / sighting_files.FOLDER
    entries = []
    for file in sorted(seen.iterdir()):
        own = file.read_bytes()

        def read(file: Path = file, own: bytes = own) -> Any:
            try:
                return sighting_files.load_sightings(folder)
            finally:
                file.write_bytes(own)

        entries.append(
            of_files(
                f"observations {file.name}",
                [sighting_files.load_sightings],
                [own],
                read,
                ValueError,
                file=file,
            )
        )
    result = {
        "status": "finished",
        "config": {"rounds": 2},
        "versions": {},
        "model": {"parameters": 9},
        "rounds": [{"round": 1, "accuracy": 0.5, "uplink_bytes": 7, "failures": [{"client": 1}]}],
        "summary": {"seconds": 1.0},
        "attacks": [{"attack": "ig", "psnr": [9.0], "images": "a.png"}],
        "notes": ["x"],
        "exchange": {"by_layer": {"w": 3}},
        "privacy": {"unit": "client"},
    }
    (folder / "result.json").write_text(json.dumps(result))
    study = {
        "name": "a",
        "seeds": [0],
        "cells": [{"folder": "../b", "status": "finished"}],
        "table": {"columns": ["x"], "rows": [{"name": ["y"], "ours": [{"mean": 1.5}], "paper": ["z"]}]},
        "claims": [{"verdict": "holds", "p": 0.01}],
    }
    (folder / "study.json").write_text(json.dumps(study))
    lock, text = folder / "lock", json.dumps({"pid": 1, "host": "here", "born": "7"}).encode()
    return [
        *entries,
        of_files(
            "result.json",
            [load_run],
            [json.dumps(result).encode()],
            lambda: load_run(folder),
            ResultError,
            file=folder / "result.json",
        ),
        of_files(
            "result.json looked at",
            [find_run],
            [json.dumps(result).encode()],
            lambda: find_run(folder),
            ResultError,
            file=folder / "result.json",
        ),
        of_files(
            "result.json reopened",
            [Results.reopen.__func__],
            [json.dumps(result).encode()],  # type: ignore[attr-defined]
            lambda: Results.reopen(folder),
            ResultError,
            file=folder / "result.json",
        ),
        of_trees("result", [read_run], [result], lambda tree: read_run(folder, tree), ResultError),
        of_files(
            "study.json",
            [load_study],
            [json.dumps(study).encode()],
            lambda: load_study(folder / "study.json"),
            ResultError,
            file=folder / "study.json",
        ),
        of_files(
            "lock file", [cell_lock.claim], [text], lambda: cell_lock._read(lock), ValueError, file=lock
        ),
    ]


def _data_files(folder: Path) -> list[Decoder]:
    images = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (2, 3, 4)) + bytes(range(24))
    pieces = "\n".join(("<unk>", "<s>", "</s>", "▁", "a", "b", "ab")).encode()
    vocabulary = [*SIGNS, "a", "##b"]
    bert = {
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "vocab": {p: i for i, p in enumerate(vocabulary)},
        },
        "normalizer": {"type": "BertNormalizer", "lowercase": True},
    }
    columns = sorted({TARGET, *CATEGORIES, *LEFT_OUT, "age"})
    rows = "\n".join(
        [
            ",".join(columns),
            *(",".join("1" if (i + j) % 3 else "0" for j in range(len(columns))) for i in range(12)),
        ]
    )
    picture, speech = folder / "picture.png", folder / "speech" / "1" / "2"
    speech.mkdir(parents=True, exist_ok=True)
    (speech / "1-2-0001.flac").write_bytes(b"")
    settings = json.dumps({"do_lower_case": False, "strip_accents": None}).encode()
    (folder / "listed").mkdir()
    (folder / "listed" / "vocab.txt").write_text("\n".join(vocabulary))
    hospital = folder / "hospital"

    def utterances() -> list[librispeech.Utterance]:
        try:
            return librispeech.find_utterances(folder / "speech", 50)
        except DataUnavailable:  # a valid file without a single short transcript
            return []

    return [
        of_files(
            "idx",
            [read_idx],
            [images],
            lambda: read_idx(folder / "images"),
            ValueError,
            file=folder / "images",
        ),
        of_files(
            "idx.gz",
            [read_idx],
            [gzip.compress(images), gzip.compress(bytes(1 << 20))],
            lambda: read_idx(folder / "i.gz"),
            ValueError,
            file=folder / "i.gz",
        ),
        of_files(
            "word pieces",
            [word_pieces.read_pieces],
            [pieces],
            lambda: word_pieces.read_pieces(folder / "pieces"),
            ValueError,
            file=folder / "pieces",
        ),
        of_files(
            "tokenizer.json",
            [read_tokenizer],
            [json.dumps(bert).encode()],
            lambda: read_tokenizer(folder / "bert"),
            ValueError,
            file=folder / "bert" / "tokenizer.json",
        ),
        of_files(
            "vocab.txt",
            [read_tokenizer],
            ["\n".join(vocabulary).encode()],
            lambda: read_tokenizer(folder / "plain"),
            ValueError,
            file=folder / "plain" / "vocab.txt",
        ),
        of_files(
            "tokenizer_config.json",
            [read_tokenizer],
            [settings],
            lambda: read_tokenizer(folder / "listed"),
            ValueError,
            file=folder / "listed" / "tokenizer_config.json",
        ),
        of_files(
            "support2.csv",
            [support2, read_numbers, read_category],
            [rows.encode()],
            lambda: support2(hospital),
            ValueError,
            file=hospital / "support2.csv",
            weight=0.02,
        ),
        of_files(
            "transcripts",
            [librispeech.find_utterances],
            [b"1-2-0001 some words\n\n1-2-0002 more\n"],
            utterances,
            ValueError,
            file=speech / "1-2.trans.txt",
        ),
        of_files(
            "image",
            [image_folder.imagefolder],
            _pictures(),
            lambda: image_folder._read(picture, 8),
            ValueError,
            file=picture,
            weight=0.1,
        ),
        of_files(
            "perception weights",
            [lpips_weights.load],
            [save(_tensors())],
            lambda: lpips_weights._read(folder / "lpips" / "alex.safetensors", "alex"),
            ValueError,
            file=folder / "lpips" / "alex.safetensors",
        ),
    ]


def _pictures() -> list[bytes]:
    import io

    from PIL import Image

    found = []
    for kind in ("PNG", "JPEG", "GIF", "BMP"):
        file = io.BytesIO()
        Image.fromarray(np.arange(12 * 10 * 3, dtype=np.uint8).reshape(12, 10, 3)).save(file, kind)
        found.append(file.getvalue())
    return found


def _settings() -> list[Decoder]:
    words = (
        b"defense=dgp attack=none rounds=2 +model.width=3",
        b"data=cifar10 data.root=/x defense=topk defense.share=0.01",
        b"model._target_=os.system ~defense.k1 'seed=${oc.env:HOME}'",
    )

    def read(text: bytes) -> Any:
        return compose_sent(text.decode(errors="replace"), NOBODY, places=False)

    return [of_bytes("overrides", [compose_sent], words, read, ConfigError, weight=0.001)]


def _policies(folder: Path) -> list[Decoder]:
    rule = {"name": "prune_dual", "at_least": {"k2": 0.75}, "at_most": {"k1": 0.05}, "equals": {"a": "b"}}
    wanted = Policy.model_validate(
        {"models": ["mlp"], "defenses": [rule], "orders": {"total": 9}, "audit": {"bundles": ["ab" * 32]}}
    )
    toml = b"min_batch = 16\n[[defenses]]\nname = 'prune_dual'\nat_most = {k1 = 0.05}\n[audit]\nruns = []\n"
    account = Account()
    run = account.open(7, "key", "plan")
    account.locate(run, 1, "ab/0.5/10")
    account.answer(wanted, run, 1, "ab", [Release(0.1, 1.0, 3, 1e-5)])
    journal = Journal(folder / "written.jsonl")
    for allowed in (True, False):
        journal.write(run=7, round=1, kind="train", size=9, allowed=allowed, decision="model")
    from_json = Account.from_json.__func__  # type: ignore[attr-defined]
    return [
        *(
            of_files(
                f"policy{suffix}",
                [load_policy],
                [example],
                partial(load_policy, folder / f"policy{suffix}"),
                ValueError,
                file=folder / f"policy{suffix}",
                weight=0.05,
            )
            for suffix, example in ((".toml", toml), (".yaml", wanted.model_dump_json().encode()))
        ),
        of_bytes(
            "account",
            [from_json],
            [account.to_json().encode()],
            lambda blob: Account.from_json(blob.decode(errors="replace")),
            ValueError,
        ),
        of_trees(
            "account values",
            [from_json],
            [json.loads(account.to_json())],
            lambda tree: Account.from_json(json.dumps(tree)),
            ValueError,
        ),
        of_files(
            "log of what left",
            [read_journal],
            [journal.path.read_bytes()],
            lambda: list(read_journal(folder / "read.jsonl")),
            ValueError,
            file=folder / "read.jsonl",
        ),
    ]


_MAKE_MESSAGE = _message_maker()
