"""Every decoder of foreign bytes accepts, or refuses with its one exception; the command tries many more."""

import copy
import importlib
import inspect
import random
import re
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.fuzz import Tally, fuzz, main, table, try_one
from benchmarks.fuzz_decoders import Decoder, all_decoders
from benchmarks.fuzz_mutations import damage_tree

MODULES = (
    *(
        "fl_app.wire.update",
        "fl_app.wire.change",
        "fl_app.wire.messages",
        "fl_app.client.state",
        "fl_app.flower.held_tensor",
    ),
    *(
        "fl_app.adversary.sightings",
        "fl_app.secagg.messages",
        "fl_app.secagg.envelopes",
        "fl_app.secagg.terms",
    ),
    *("fl_app.secagg.stages", "fl_app.secagg.identities", "fl_app.models.stored", "fl_app.models.spec"),
    *("fl_app.data.idx", "fl_app.data.word_pieces", "fl_app.text.folder", "fl_app.running.result"),
    *(
        "fl_app.results.reading",
        "fl_app.results.study",
        "fl_app.config.trust",
        "attacks.metrics.lpips_weights",
    ),
    *(
        "attacks.metrics.lpips_sdist",
        "fl_app.storage.tree_file",
        "fl_app.storage.tensor_files",
        "fl_app.client.records",
        "fl_app.running.checkpoint",
    ),
    *("fl_app.client.disk", "fl_app.data.facts", "fl_app.data.row_encoding", "fl_app.data.vocabularies"),
    *("fl_app.policy.account", "fl_app.policy.files", "fl_app.policy.journal"),
)
READS = re.compile(
    r"(decode|unpack|read|recall|load|open|apply|take|release|parse|compose|from|of|reopen)(_\w+)?"
)
"""How a function is called that turns bytes, or what a message holds, into values."""
NOT_DECODERS = {
    "read_checkpoint": "the archive that it is taken from is pinned by its SHA-256; see test_no_pickle",
    "from_sdist": "fetches that archive",
    "of_row": "slices of a length that the message's own reader has checked",
    "of_body": "the part of read_stage that differs by stage",
    "of": "picks one of two fields",
    "decode": "of a vocabulary: from numbers to text",
    "of_models": "picks names",
    "load": "of an account's file: reads a text for Account.from_json",
    "open": "of an account: picks a run",
    "read_content": "the part of load_run and load_study that checks what was read",
    "read_object": "the part of load_run and load_study that reads the file",
}


@pytest.fixture(scope="module")
def decoders(tmp_path_factory: pytest.TempPathFactory) -> list[Decoder]:
    return all_decoders(tmp_path_factory.mktemp("fuzz"))


def test_every_decoder_reads_its_own_examples(decoders):
    for decoder in decoders:
        tally = Tally(decoder.name)
        for example in decoder.examples:
            try_one(decoder, example, tally)
        expected = 0 if decoder.name == "overrides" else 1  # its examples are attempts, too
        assert tally.accepted >= expected, decoder.name
        assert not tally.wrong, (decoder.name, tally.wrong)


def test_a_damaged_input_is_refused_with_the_one_exception_of_its_decoder(decoders):
    tallies = [fuzz(decoder, max(3, round(80 * decoder.weight)), seed=1) for decoder in decoders]
    assert {tally.name: tally.wrong for tally in tallies if tally.wrong} == {}
    assert sum(tally.inputs for tally in tallies) > 2000
    assert sum(tally.refused for tally in tallies) > 1000


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_at_all_are_refused_with_the_one_exception(decoders, data):
    of_bytes = [d for d in decoders if isinstance(d.examples[0], bytes) and d.weight >= 0.1]
    decoder = data.draw(st.sampled_from(of_bytes))
    start = decoder.examples[0][: data.draw(st.integers(0, 60))]
    tally = Tally(decoder.name)
    try_one(decoder, start + data.draw(st.binary(max_size=200)), tally)
    assert not tally.wrong


def test_every_public_reader_of_these_modules_is_in_the_registry(decoders):
    covered = {function.__qualname__ for decoder in decoders for function in decoder.covers}
    missing = {
        f"{name}.{reader.__qualname__}"
        for name in MODULES
        for reader in readers_of(importlib.import_module(name))
        if reader.__qualname__ not in covered and reader.__name__ not in NOT_DECODERS
    }
    assert not missing


def test_what_is_no_decoder_still_exists():
    names = {reader.__name__ for name in MODULES for reader in readers_of(importlib.import_module(name))}
    assert NOT_DECODERS.keys() <= names


def test_a_wrong_exception_is_counted_and_shown():
    decoder = Decoder("bad", (), (b"x",), lambda blob: blob[99], ValueError, lambda example, draw: example)
    tally = fuzz(decoder, 5, seed=0)
    assert (tally.inputs, tally.accepted, tally.refused) == (5, 0, 0)
    assert tally.wrong == {"IndexError: index out of range": b"x"}
    assert "| bad | 5 | 0 | 0 | 1 |" in table([tally])


def test_the_command_prints_the_counts_of_the_decoders_that_were_asked_for(capsys, monkeypatch):
    monkeypatch.setattr("benchmarks.fuzz.limit_memory", lambda: None)
    main(["--inputs", "40", "--only", "idx"])
    assert "| idx.gz | 20 |" in capsys.readouterr().out


def readers_of(module: object) -> list[Callable]:
    """Return the functions and class methods of a module, or of its classes, that read."""
    found = []
    for name, thing in vars(module).items():
        if getattr(thing, "__module__", None) != module.__name__ or name.startswith("_"):
            continue
        if inspect.isclass(thing):
            found += [
                getattr(member, "__func__", member)
                for key, member in vars(thing).items()
                if READS.fullmatch(key) and (inspect.isfunction(member) or isinstance(member, classmethod))
            ]
        elif inspect.isfunction(thing) and READS.fullmatch(name):
            found.append(thing)
    return found


def test_damage_never_touches_what_it_is_made_from():
    tree, values, draw = {"a": [1, {"b": "text"}], "c": {}}, [[], {}, [[]], {"x": 1}], random.Random(0)
    before = copy.deepcopy((tree, values))
    for _ in range(2000):
        damage_tree(tree, values, draw)
    assert (tree, values) == before
