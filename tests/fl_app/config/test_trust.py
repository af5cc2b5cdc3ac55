"""Overrides from the network: what a process makes of them that has not been told to trust them."""

import inspect
import logging
from contextlib import suppress

import pytest
from flwr.app import Message, RecordDict
from hydra.utils import get_method
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.client_app import app as client_app
from fl_app.config.build import client_parts, server_parts
from fl_app.config.compose import CONF_DIR, ConfigError, compose
from fl_app.config.conf_files import targets, values
from fl_app.config.trust import NOBODY, PLACES, WHOLE, Trust, compose_sent, trust_of
from fl_app.flower import InlineGrid, run_app
from fl_app.server_app import app as server_app
from fl_app.wire.messages import IDENTIFY, TRAIN, Order, pack_blob, pack_order

CALLED: list[str] = []
DEPLOYED = {"trust-config": False, "allow-audit": False}
"""What a SuperNode's node-config says if nobody wrote anything into it."""
TINY = "data.train_per_class=4 data.test_per_class=2 clients=2 attack=none threads=1"


def call_me(*args: object, **settings: object) -> None:
    """Stand for code of an attacker's choosing."""
    CALLED.append(str((args, settings)))


CODE = [
    "model._target_=test_trust.call_me",
    "defense._target_=test_trust.call_me",
    "++defense.dgp._target_=test_trust.call_me",
    "+defense.deep.deeper._target_=test_trust.call_me",
    "+defense.more=[{_target_:test_trust.call_me}]",
    "+data.size._target_=test_trust.call_me",
    "data=custom data._target_=os.system +data.command=true",
    "training._target_=test_trust.call_me",
    "public._target_=test_trust.call_me",
    "schedule._target_=test_trust.call_me",
    "model._target_=fl_app.data.photos",
    "defense._target_=fl_app.models.mlp",
    "+_target_=test_trust.call_me",
    "~model +model._target_=test_trust.call_me",
    "+defense._args_=[1]",
    "+defense._partial_=true",
    "+data._recursive_=false",
    "data._target_=null",
]
BEYOND = [
    "seed='${oc.env:HOME}'",
    "model.activation=${oc.env:HOME}",
    "defense=${oc.env:HOME}",
    "+x='${hydra:runtime.cwd}'",
    "hydra.searchpath=[file:///tmp]",
    "hydra/launcher=basic",
    "defense@model=dgp",
    "defense=../../tmp/evil",
    "experiment=[../evil]",
]
FILES = [
    "data=imagefolder data.root=/etc",
    "data=cifar10 data.root=/etc",
    "data=federated data.dataset=/home/clinic/scans",  # a hub's name may be a local folder, too
    "data=federated data.dataset=scans",
    "data=federated data.subset=/home",
    "+data.root=/etc",
    "data=speech data.root=data data.pieces=/etc/passwd",
    "+data.more._target_=fl_app.data.imagefolder +data.more.root=/etc",
    "data=cifar10 data.root={deep:/etc}",
    "data=cifar10 data.download=true",
    "public=mnist public.root=/etc",
    "init=/etc/passwd",
    "defense=fl_top secagg=on secagg.identities=/etc",
]


@pytest.mark.parametrize("overrides", [*CODE, *BEYOND])
@pytest.mark.parametrize("build", [client_parts, server_parts])
def test_overrides_from_the_network_call_nothing_that_conf_does_not_name(build, overrides, monkeypatch):
    monkeypatch.setenv("HOME", "a secret")
    with pytest.raises(ConfigError) as refused:
        build(overrides)
    assert not CALLED
    assert "a secret" not in str(refused.value)


@pytest.mark.parametrize("overrides", FILES)
def test_overrides_from_the_network_make_a_client_read_no_file(overrides):
    with pytest.raises(
        ConfigError, match=r"this node's own affair, got .* overrides='.*=…' in its node-config"
    ):
        client_parts(overrides)


def test_a_deployed_client_answers_with_the_refusal_and_a_simulated_one_does_as_told():
    text = f"{TINY} model=custom model._target_=own_parts.tiny_model +model.width=3"
    order = pack_order(Order(1, 0, 0.1, "ab" * 32, 0), pack_blob(b"no model"))
    for node, words in (
        (DEPLOYED, "[config]"),
        ({}, "ModelSpec: not JSON"),
    ):
        grid = InlineGrid(client_app, 2, run_config={"overrides": text}, node_config=node)
        (reply,) = grid.send_and_receive([Message(order, 1000, TRAIN)])
        assert words in reply.error.reason


def test_a_deployed_client_says_who_it_is_whatever_the_overrides_are():
    grid = InlineGrid(client_app, 1, run_config={"overrides": CODE[0]}, node_config=DEPLOYED)
    (reply,) = grid.send_and_receive([Message(RecordDict(), 1000, IDENTIFY)])
    assert not reply.has_error()


def test_the_engines_trust_what_their_user_has_typed(tmp_path):
    logging.getLogger("flwr").setLevel(logging.ERROR)
    text = (
        f"{TINY} model=custom model._target_=own_parts.tiny_model +model.width=3 rounds=1 defense=none "
        f"run_dir={tmp_path}"
    )
    run_app(server_app, client_app, 2, run_config={"overrides": text}, engine={"name": "inline"})
    assert (tmp_path / "result.json").is_file()


def test_whoever_runs_a_process_allows_callables_by_name(monkeypatch):
    text = "model=custom model._target_=own_parts.tiny_model +model.width=3"
    assert trust_of({}) == NOBODY
    assert trust_of({"allow-targets": "own_parts.tiny_model, b.c"}).targets == {"own_parts.tiny_model", "b.c"}
    monkeypatch.setenv("FL_APP_ALLOW_TARGETS", "own_parts.tiny_model")
    assert client_parts(f"{TINY} {text}", trust_of({})).model.target == "own_parts.tiny_model"
    assert trust_of({"allow-targets": ""}) == NOBODY  # a node's own word is the last one
    monkeypatch.setenv("FL_APP_TRUST_CONFIG", "1")
    assert trust_of({}).whole
    assert not trust_of(DEPLOYED).whole


def test_a_nodes_own_overrides_take_the_place_of_those_from_the_network():
    trust = trust_of({"overrides": "data.root=/mine client.inspect=refuse defense=topk"})
    cfg = compose_sent("data=cifar10 data.root=/etc client.inspect=off defense=none", trust, places=False)
    assert (cfg.data.root, cfg.client.inspect, cfg.choices.defense) == ("/mine", "refuse", "topk")
    with pytest.raises(ConfigError, match=r"data\.pieces is this node's own affair"):
        compose_sent("data=speech data.root=/etc data.pieces=/etc/passwd", trust, places=False)


def test_a_server_reads_and_writes_where_whoever_starts_the_run_says():
    cfg = compose_sent("data=cifar10 data.root=/somewhere run_dir=/else", NOBODY, places=True)
    assert (cfg.data.root, cfg.run_dir) == ("/somewhere", "/else")


def test_the_environment_says_where_data_is_whoever_sent_the_overrides(monkeypatch):
    compose.cache_clear()
    monkeypatch.setenv("FL_APP_DATA", "/mine")
    assert compose_sent("data=cifar10", NOBODY, places=False).data.root == "/mine"
    compose.cache_clear()


def test_every_choice_of_conf_may_come_from_the_network():
    needs = dict.fromkeys(("imagefolder", "speech", "dicom"), "data.root=x")
    needs |= {"fixed": "partition.samples=5", "shards": "partition.per_client=2"}
    needs |= {"client": "defense=fl_top", "on": "defense=fl_top"}
    for file in sorted(CONF_DIR.glob("*/*.yaml")):
        group, name = file.parent.name, file.stem
        if name != "custom" and group != "engine":
            compose_sent(f"{group}={name}", Trust(own=needs.get(name, "")), places=False)


def test_a_config_of_ones_own_is_composed_as_ever():
    assert (
        compose_sent("model._target_=anything.at_all", WHOLE, places=False).model._target_
        == "anything.at_all"
    )


def test_every_setting_that_is_a_path_is_known_as_a_place():
    """A callable of conf/ with a path among its settings must not go unnoticed."""
    for names in targets().values():
        for name in names:
            for setting in inspect.signature(get_method(name)).parameters.values():
                if "Path" in str(setting.annotation) or setting.name == "download":
                    assert setting.name in PLACES, name


def test_the_allow_list_is_what_conf_names_by_place():
    assert "fl_app.models.lenet_zhu" in targets()["model"]
    assert "fl_app.strategies.FLTop" in targets()["strategy"]  # from a file of another group
    assert not any("???" in names for names in targets().values())
    assert values("init") == [None]
    assert values("data.download") == [False] * len(values("data.download"))


@settings(max_examples=60, deadline=None)
@given(st.text("abdefginorstu_.=+~[]{}:/@$'\" 0", max_size=40))
def test_whatever_stands_there_is_composed_or_refused(text):
    with suppress(ConfigError):
        compose_sent(f"model.{text}", NOBODY, places=False)
