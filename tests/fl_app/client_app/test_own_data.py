"""Federations whose clients have folders of their own: the server deals nothing, and says so."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from PIL import Image
from safetensors.torch import load_file

from fl_app.client_app import app as real_client_app
from fl_app.config.build import OwnData, client_parts
from fl_app.config.compose import ConfigError
from fl_app.config.trust import NOBODY, WHOLE
from fl_app.data import facts_of, imagefolder
from fl_app.flower import InlineGrid
from fl_app.running.federation import run_federation

CLIENTS = 3
CLASSES = ("ant", "bee", "cow")


class OwnDataApp(ClientApp):
    """The real client app on nodes of which some name a folder in their configs."""

    def __init__(self, roots: dict[int, Path]) -> None:
        super().__init__()
        self._roots = roots

    def __call__(self, message: Message, context: Context) -> Message:
        root = self._roots.get(int(context.node_config["partition-id"]))
        if root is not None:
            context.node_config["data-root"] = str(root)
        return real_client_app(message, context)


@pytest.fixture
def server(tmp_path) -> Path:
    """Noise in three classes, 9 images each to train on and 3 to test."""
    draw = np.random.default_rng(0)
    for part, count in (("train", 9), ("test", 3)):
        for shade, name in enumerate(CLASSES):
            for i in range(count):
                pixels = draw.integers(60 * shade, 60 * shade + 100, (32, 32, 3), dtype=np.uint8)
                write_image(tmp_path / "server" / part / name / f"{i}.png", pixels)
    return tmp_path / "server"


def write_image(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def settings(server: Path, more: str = "") -> str:
    return (
        f"data=imagefolder data.root={server} clients={CLIENTS} rounds=2 lr=0.1 batch_size=100 dtype=float64 "
        f"threads=1 attack=none {more}"
    )


def run(text: str, roots: dict[int, Path], folder: Path) -> dict:
    wanted = f"{text} run_dir={folder}"
    run_federation(InlineGrid(OwnDataApp(roots), CLIENTS, run_config={"overrides": wanted}), wanted, WHOLE)
    return json.loads((folder / "result.json").read_text())


def bring_what_would_be_dealt(text: str, folder: Path) -> dict[int, Path]:
    """Give each client a folder with the very images that the partition deals to it."""
    data_of = client_parts(text, WHOLE).data_of
    for client in range(CLIENTS):
        samples = data_of(client, CLIENTS).samples
        for i, (pixels, label) in enumerate(zip(samples.inputs, samples.labels.tolist(), strict=True)):
            place = folder / f"client-{client}" / CLASSES[label] / f"{i}.png"
            write_image(place, pixels.permute(1, 2, 0).numpy())
    return {client: folder / f"client-{client}" for client in range(CLIENTS)}


def test_who_brings_what_it_would_be_dealt_trains_the_same_model(server, tmp_path):
    text = settings(server, "defense=none partition=shards partition.per_client=2")
    roots = bring_what_would_be_dealt(text, tmp_path)
    assert any(len(list(root.iterdir())) < len(CLASSES) for root in roots.values()), "a class must be missing"
    dealt, own = (run(text, given, tmp_path / name) for given, name in (({}, "dealt"), (roots, "own")))
    assert [row["clients"] for row in own["rounds"]] == [row["clients"] for row in dealt["rounds"]] == [3, 3]
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("dealt", "own"))
    torch.testing.assert_close(one, other)


def test_the_server_says_that_it_does_not_know_the_samples(server, tmp_path):
    text = settings(server, "defense=none")
    roots = bring_what_would_be_dealt(text, tmp_path)
    all_own, some_own, none_own = (
        run(text, {c: roots[c] for c in clients}, tmp_path / name)
        for clients, name in (((0, 1, 2), "all"), ((1,), "some"), ((), "none"))
    )
    assert any("clients with samples of their own: 0, 1, 2;" in note for note in all_own["notes"])
    assert any("clients with samples of their own: 1;" in note for note in some_own["notes"])
    assert not any("of their own" in note for note in none_own["notes"])
    assert [(tmp_path / name / "partition.png").exists() for name in ("all", "some", "none")] == [
        False,
        True,
        True,
    ]
    assert "samples of their own" in (tmp_path / "all" / "report.html").read_text()


def test_only_who_has_its_own_samples_is_told_of_the_task(server, tmp_path):
    text = settings(server, "defense=none")
    roots = bring_what_would_be_dealt(text, tmp_path)
    one, none = (run(text, given, tmp_path / name) for given, name in (({0: roots[0]}, "one"), ({}, "none")))
    assert one["rounds"][0]["downlink_bytes"] > none["rounds"][0]["downlink_bytes"]
    assert one["rounds"][0]["downlink_bytes"] < none["rounds"][0]["downlink_bytes"] + 1000


def test_a_client_with_a_class_of_its_own_is_refused_by_itself_and_named(server, tmp_path):
    text = settings(server, "defense=none")
    roots = bring_what_would_be_dealt(text, tmp_path)
    (roots[1] / "ant").rename(roots[1] / "dog")
    result = run(text, roots, tmp_path / "run")
    for row in result["rounds"]:
        assert row["clients"] == 2
        (failure,) = row["failures"]
        assert failure["client"] == 1
        assert "client 1: its data-root: imagefolder:" in failure["reason"]
        assert "dog" in failure["reason"]


def test_balance_is_among_the_clients_own_samples(server, tmp_path):
    text = settings(server, "defense=none balance=true")
    lopsided = tmp_path / "lopsided"
    for name, count in (("ant", 5), ("cow", 2)):
        for i in range(count):
            write_image(lopsided / name / f"{i}.png", np.full((32, 32, 3), 10 * i, dtype=np.uint8))
    seen: list[Message] = []

    class Listening(OwnDataApp):
        def __call__(self, message: Message, context: Context) -> Message:
            seen.append(super().__call__(message, context))
            return seen[-1]

    wanted = f"{text} run_dir={tmp_path / 'run'}"
    app = Listening(dict.fromkeys(range(CLIENTS), lopsided))
    run_federation(InlineGrid(app, CLIENTS, run_config={"overrides": wanted}), wanted, WHOLE)
    answers = [message.content["answer"] for message in seen if "answer" in message.content]
    assert {answer["samples"] for answer in answers} == {4}


def test_photographs_are_nobodys_own(tmp_path):
    text = f"clients={CLIENTS} rounds=1 attack=none defense=none data.train_per_class=4 data.test_per_class=2"
    result = run(text, {0: tmp_path}, tmp_path / "run")
    (failure,) = result["rounds"][0]["failures"]
    assert failure["client"] == 0
    assert "photos has no folder" in failure["reason"]


@pytest.mark.parametrize(
    "scheme",
    [
        "defense=adgp",
        "defense=fl_top secagg=on defense.share=0.2 public.samples=3",
        "defense=dgp strategy=fed_avg",
    ],
)
def test_own_samples_go_with_every_kind_of_client(scheme, server, tmp_path):
    text = settings(server, f"{scheme} bn=sync")
    dealing = settings(server, "defense=none")
    result = run(text, bring_what_would_be_dealt(dealing, tmp_path), tmp_path / "run")
    assert [row["clients"] for row in result["rounds"]] == [3, 3]
    assert not any(row["failures"] for row in result["rounds"])


def test_where_the_servers_samples_lie_is_no_matter_of_who_brings_its_own(server, tmp_path):
    text = settings(server, "defense=none")
    (root, *_) = bring_what_would_be_dealt(text, tmp_path).values()
    own = OwnData(str(root), facts_of(imagefolder(server)).to_json())
    assert len(client_parts(text, NOBODY, own).data_of(0, CLIENTS).samples)
    with pytest.raises(ConfigError, match=r"data\.root is this node's own affair"):
        client_parts(text, NOBODY)
