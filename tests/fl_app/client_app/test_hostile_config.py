"""Run configs of strangers against a deployed node: variables, its own settings, endless numbers."""

import resource

import pytest
import torch
from flwr.app import Context, RecordDict
from hostile_server import (
    DEPLOYED,
    SMALL,
    code_of,
    first_batch,
    model_of,
    node,
    order,
    parts_of,
    send,
    update_of,
    vector_of,
    worst_match,
)

from fl_app.client_app import app as client_app
from fl_app.config.bounds import MOST, MOST_ELSEWHERE, check_bounds
from fl_app.config.compose import ConfigError
from fl_app.config.trust import NOBODY, Trust, compose_sent, trust_of
from fl_app.flower.internals import identify_process
from fl_app.models import ModelSpec
from fl_app.wire.messages import Order, Plan, pack_blob, pack_order

SECRET = "hunter2-token"
ESCAPED = [
    r"""device=$\{oc.env:SUPER_SECRET\}""",
    r"""'device=$\{oc.env:SUPER_SECRET\}'""",
    r"""'device="$\{oc.env:SUPER_SECRET\}"'""",
    r"""'device=$\{oc.env\:SUPER_SECRET\}'""",
    r"""'dtype=$\{oc.env:SUPER_SECRET\}'""",
    r"""'init=$\{oc.env:SUPER_SECRET\}'""",
    r"""'model._target_=$\{oc.env:SUPER_SECRET\}'""",
    r"""'+x={a:$\{oc.env:SUPER_SECRET\}}'""",
    r"""'+x=[1,[$\{oc.env:SUPER_SECRET\}]]'""",
    r"""'+x={"$\{oc.env:SUPER_SECRET\}":1}'""",
    r"""'device=str($\{oc.env:SUPER_SECRET\})'""",
    r"""'device=$\{hydra:runtime.cwd\}'""",
    r"""'device=$\{oc.decode:1\}'""",
    r"""'device=\\${oc.env:SUPER_SECRET}'""",
    r"""'device=$\\{oc.env:SUPER_SECRET}'""",
    r"""'device=$' '+x=\{oc.env:SUPER_SECRET\}'""",
]
UNUSABLE = pack_order(Order(1, 0, 0.1, "ab" * 32, 0), pack_blob(b"x"))


@pytest.mark.parametrize("override", ESCAPED)
def test_no_variable_of_the_environment_is_looked_up_for_a_stranger(override, monkeypatch):
    monkeypatch.setenv("SUPER_SECRET", SECRET)
    reply = send(node(f"{SMALL} {override}"), UNUSABLE)
    assert code_of(reply) == "config"
    assert SECRET not in reply.error.reason
    for places in (True, False):
        with pytest.raises(ConfigError) as refused:
            compose_sent(override, NOBODY, places=places)
        assert SECRET not in str(refused.value)


def test_the_escaped_reference_is_one_where_runs_are_trusted(monkeypatch):
    """The attack itself works: a node that trusts its runs shows the variable."""
    monkeypatch.setenv("SUPER_SECRET", SECRET)
    reply = send(node(f"{SMALL} {ESCAPED[1]}", trust_config=True), UNUSABLE)
    assert SECRET in reply.error.reason


BYPASSES = [
    ("defense=dgp", "~defense.k2", "defense.k2", 0.75),
    ("defense=dgp", "defense.k1=0 defense.k2=0", "defense.k2", 0.75),
    ("defense=dgp", "++defense.k1=0 ++defense.k2=0", "defense.k2", 0.75),
    ("defense=dgp", "+defense.dgp={} ~defense.k1", "defense.k2", 0.75),
    ("defense=dgp", "~defense", "defense.k2", 0.75),
    ("defense=dgp", "defense=null", "defense.k2", 0.75),
    ("defense=dgp", "defense=none experiment=quick", "defense.k2", 0.75),
    ("defense=dgp", "+defense.more._target_=fl_app.transforms.identity", "defense.more", None),
    (
        "defense=dgp defense.error_feedback=true",
        "defense.error_feedback=false",
        "defense.error_feedback",
        True,
    ),
    ("defense=gaussian", "defense.std=0", "defense.std", 0.01),
    ("defense=gaussian", "++defense.std=0", "defense.std", 0.01),
    ("defense=gaussian defense.std=0.1", "+defense.gaussian={std:0}", "defense.std", 0.1),
    ("defense=dp_sgd defense.epsilon=1", "defense.noise_multiplier=0", "defense.noise_multiplier", None),
    ("defense=dp_sgd defense.epsilon=1", "defense.clip=1e9", "defense.clip", 1.0),
    ("defense=fl_std dp=client dp.epsilon=1", "dp.noise_multiplier=1e-9", "dp.noise_multiplier", None),
    ("defense=fl_std dp=client dp.epsilon=1", "~dp", "dp.epsilon", 1),
    ("defense=fl_std secagg=on secagg.min_clients=10", "secagg.enabled=false", "secagg.enabled", True),
    ("client.pin_model=true", "client={pin_model:false,inspect:off}", "client.pin_model", True),
    ("batch_size=32", "training.batch_size=1", "training.batch_size", 32),
    ("batch_size=32", "training={batch_size:1}", "training.batch_size", 32),
    ("batch_size=32", "strategy=fed_avg ~training.batch_size", "training.batch_size", 32),
    ("batch_size=32", "strategy=fed_avg '~training'", "training.batch_size", 32),
    ("model=lenet", "model._target_=fl_app.models.mlp", "model._target_", "fl_app.models.lenet_zhu"),
]


@pytest.mark.parametrize(("own", "sent", "key", "expected"), BYPASSES)
def test_no_key_of_a_run_changes_what_a_node_has_fixed(own, sent, key, expected):
    found = compose_sent(sent, Trust(own=own), places=False)
    for part in key.split("."):
        found = None if found is None else found.get(part)
    assert found == expected


@pytest.mark.parametrize("sent", ["", "defense=dgp", "defense=fl_top", "experiment=quick", "rounds=7 lr=0.1"])
def test_settings_for_choices_that_a_run_does_not_make_keep_no_run_away(sent):
    own = (
        "defense=dgp client.pin_model=true client.inspect=refuse dp.secure=true secagg.min_clients=10 "
        "secagg.identities=/keys"
    )
    cfg = compose_sent(sent, Trust(own=own), places=False)
    assert (cfg.choices.defense, cfg.client.inspect) == ("dgp", "refuse")
    assert dict(cfg.secagg) == {"enabled": False}


def test_a_nodes_own_setting_that_no_file_knows_is_an_error():
    with pytest.raises(ConfigError, match=r"dp\.secur"):
        compose_sent("", Trust(own="dp.secur=true"), places=False)


def test_a_run_that_takes_a_nodes_defense_and_batch_away_recovers_no_sample():
    own = "defense=dgp batch_size=32 client.pin_model=true client.inspect=refuse"
    sent = f"model=mlp {SMALL} defense=none batch_size=1"
    exposed = parts_of(sent)
    model = model_of(exposed.model)
    trusted = send(node(sent, trust_config=True), order(exposed.model, model))
    assert worst_match(update_of(trusted, model), first_batch(exposed, 1)) < 1e-8

    kept = parts_of(sent, own)
    assert [part.name for part in kept.plan.parts] == ["dgp"]
    assert kept.plan.batch_size == 32
    reply = send(node(sent, overrides=own), order(kept.model, model))
    assert worst_match(update_of(reply, model), first_batch(kept, 32)) > 1e-4
    # and without settings of its own, a batch of one is no batch
    assert code_of(send(node(sent), order(exposed.model, model))) == "batch"


def test_a_run_that_switches_secure_aggregation_off_gets_no_vector():
    own = "defense=fl_std secagg=on secagg.min_clients=10"
    sent = f"model=mlp model.hidden=[16] {SMALL} training.steps=1 defense=fl_std clients=12 "
    sent += "secagg.enabled=false"
    parts = parts_of(sent, own)
    assert parts.secure is not None
    model, plan = model_of(parts.model), Plan("", "", 0, 2, 1.0)
    clear = send(node(sent, trust_config=True), order(parts.model, model, plan=plan))
    assert vector_of(clear, model).abs().sum() > 0
    assert code_of(send(node(sent, overrides=own), order(parts.model, model, plan=plan))) is not None


@pytest.mark.parametrize("key", ["allow-audit", "trust-config"])
@pytest.mark.parametrize("value", ["false", "no", "0", "true", 0, 1])
def test_a_switch_that_is_no_truth_value_switches_nothing_on(key, value):
    reply = send(node(SMALL, **{key: value}), RecordDict(), "query.identify")
    if key == "allow-audit":
        assert code_of(reply) == "config"
    with pytest.raises(ConfigError, match=key):
        trust_of({**DEPLOYED, key: value}) if key == "trust-config" else _identify({key: value})


def _identify(config: dict) -> None:
    from fl_app.client_app import _policy

    _policy(Context(1, 1, {**DEPLOYED, **config}, RecordDict(), {}))


def test_the_node_config_stays_on_the_node():
    own = {"data-root": "/srv/clinic/ward7", "overrides": "secagg.identities=/keys", **DEPLOYED}
    grid = node(SMALL)
    identify_process(1)
    from flwr.app import Message

    from fl_app.policy import Refusal

    message = Message(RecordDict(), 1000, "query.identify")
    with pytest.raises(Refusal) as refused:
        client_app(message, Context(1, 5, own, RecordDict(), {"overrides": ""}))
    assert "ward7" not in str(refused.value)
    assert "keys" not in str(refused.value)
    assert grid is not None


ENDLESS = [
    "data=random data.train=1000000000 data.shape=[3,64,64] model=mlp",
    "data=random data.train=200000 data.shape=[3,64,64] model=mlp",
    "data=random data.classes=100000000 data.train=10",
    "data=random 'data.shape=[3,100000,100000]' data.train=1",
    "data.size=20000 data.train_per_class=10",
    "data.train_per_class=10000000",
    "data=text data.max_tokens=2000000 model=bert_mlm",
    "threads=20000",
    "clients=1000000000000",
    "strategy=fed_avg training.epochs=1000000000",
    "strategy=fed_avg training.steps=1000000000",
    "partition=dirichlet partition.alpha=1e-300",
    "rounds=1000000000000",
    "lr=inf",
    "seed=" + "[" * 3000 + "]" * 3000,
    "+x=" + "a" * 2_000_000,
    "seed=" + "1" * 400,
    "+x=" + "9" * 6000,
    "data=federated data.partitions=1000000000000",
    "data=federated 'data.arguments={num_partitions:1000000000}'",
    "defense=fl_std dp=client dp.canaries=1000000000",
    "lr=nan",
    " ".join(["seed=1"] * 7000),
    " ".join(f"+a{number}=1" for number in range(7000)),
    "'+x=[" + "1," * 30_000 + "1]'",
    "'+x={" + ",".join(f"a{number}:1" for number in range(7000)) + "}'",
    "+" + "a." * 900 + "a=1",
    "~" + "a" * 65_000,
]


@pytest.mark.parametrize("override", ENDLESS, ids=lambda text: text[:40])
def test_a_number_that_asks_for_endless_memory_or_time_is_refused_before_it_is_used(override):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert code_of(send(node(f"{SMALL} {override}"), UNUSABLE)) == "config"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


def test_the_policy_bounds_local_steps_before_they_are_taken():
    text = f"model=mlp model.hidden=[8] {SMALL} defense=none strategy=fed_avg training.steps=60000"
    parts = parts_of(text)
    assert code_of(send(node(text), order(parts.model, model_of(parts.model)))) == "steps"


def test_a_stranger_gets_no_more_threads_than_the_machine_has():
    before = torch.get_num_threads()
    try:
        import os

        parts_of(f"{SMALL} threads=300 seed=77")
        assert torch.get_num_threads() <= (os.cpu_count() or 1)
    finally:
        torch.set_num_threads(before)


def test_a_server_cannot_make_a_node_resize_its_pictures_to_gigabytes(tmp_path):
    (tmp_path / "train" / "a").mkdir(parents=True)
    shape = [3, 30000, 30000]
    facts = (
        '{"class_names":["a","b"],"in_shape":[3,30000,30000],"mean":[0.5,0.5,0.5],"std":[0.5,0.5,0.5],'
        '"encoding":null,"vocabulary":null,"masked":null}'
    )
    spec = ModelSpec("fl_app.models.resnet20", {"in_shape": shape, "num_classes": 2, "norm": "batch"})
    text = "data=imagefolder data.root=x model=resnet20 attack=none threads=1"
    content = order(spec, model_of(spec), facts=facts)
    assert code_of(send(node(text, data_root=str(tmp_path)), content)) == "config"


def test_bounds_are_asked_for_numbers_wherever_they_stand():
    config = {"data": {"deep": [{"train": 10**9}]}}
    with pytest.raises(ConfigError, match="train"):
        check_bounds(config)
    with pytest.raises(ConfigError, match="anything"):
        check_bounds({"anything": MOST_ELSEWHERE * 10})
    assert all(bound > 0 for bound in MOST.values())
