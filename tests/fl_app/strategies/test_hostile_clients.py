"""Clients that lie: a lie costs its own client the round, and changes nothing for the others."""

import json
import logging
import os
import resource

import numpy as np
import pytest
import torch
from federations import SMALL, SabotagedApp, train, with_update
from flwr.app import ConfigRecord, MetricRecord
from hostile_clients import (
    adds,
    fails,
    flips,
    is_called,
    names_records,
    says,
    sends,
    sends_buffers,
    sends_vector,
    shows,
)

from fl_app.client_app import app as real_client_app
from fl_app.config.build import server_parts
from fl_app.config.trust import WHOLE
from fl_app.flower import InlineGrid
from fl_app.privacy import Release
from fl_app.running.federation import run_federation
from fl_app.secagg.envelopes import COMMITMENT_BYTES, ENVELOPE_BYTES, UNOPENED
from fl_app.secagg.messages import HEADER_BYTES
from fl_app.secagg.shamir import SHARE_BYTES
from fl_app.strategies.aggregate import mean_metrics
from fl_app.strategies.roster import Roster
from fl_app.wire.messages import (
    EVALUATE,
    IDENTIFY,
    SHARE,
    TRAIN,
    UNMASK,
    pack_secure,
    unpack_order,
    unpack_reply,
    unpack_secure,
)

LIAR = 2
NORM = "model=resnet20 clients=3 data.train_per_class=4 data.test_per_class=2"
SPARSE = "defense.share=0.005"
MOST_GROWTH = 256 << 20
"""Bytes: a few copies of the largest lie, 50 MB, which the liar makes in this very process."""
FORGED = Release(1.0, 1e-200, 1, 1e-5)


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


def peak_memory() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def wide(value):
    return lambda values: torch.full_like(values, value)


LIES = {
    "huge values": ("defense=none", sends(lambda n, p: torch.full_like(p, 3e38))),
    "huge changes": ("defense=none strategy=fed_avg", sends(lambda n, p: torch.full_like(p, 3e38))),
    "more samples than it was dealt": ("defense=none", says(samples=2**63 - 1)),
    "a number beyond 64 bits": ("defense=none", says(samples=2**64)),
    "a number without end": ("defense=none", says(samples=10**400)),
    "fewer than no samples": ("defense=none", says(samples=-1)),
    "steps without end": ("defense=none strategy=fed_avg", says(steps=2**40)),
    "a release without privacy": ("defense=none", says(release=FORGED)),
    "a release under dgp": ("defense=dgp", says(release=FORGED)),
    "a release under fl_top": ("defense=fl_top", says(release=FORGED)),
    "a release of another delta": ("defense=dp_sgd", says(release=Release(0.25, 1.0, 1, 0.4))),
    "no release": ("defense=dp_sgd", says(release=None)),
    "a release of endless steps": ("defense=dp_sgd", says(release=Release(0.5, 1e4, 2**62, 1e-5))),
    "left out by itself": ("defense=none", says(left_out=True)),
    "a foreign round": ("defense=none", says(round=7)),
    "a foreign client": ("defense=none", says(client=0)),
    "the model again and again": ("defense=none", says(need_model=True)),
    "300,000 metrics": (
        "defense=none",
        adds(metrics=MetricRecord({f"m{i}": float(i) for i in range(300_000)})),
    ),
    "a list of a million numbers": ("defense=none", adds(answer=ConfigRecord({"samples": [1] * 1_000_000}))),
    "a text for a number": ("defense=none", adds(answer=ConfigRecord({"samples": "S" * (20 << 20)}))),
    "no answer, strange names": (
        "defense=none",
        names_records(["\x1b[31m" + "N" * 1000 + str(i) for i in range(2000)]),
    ),
    "an endless update": ("defense=none", lambda o, r, c: with_update(r, bytes(8 << 20))),
    "a vector that is not clipped": (
        "defense=fl_std dp=client dp.secure=false",
        sends_vector(wide(1e4), 15826),
    ),
    "a huge vector": ("defense=fl_std", sends_vector(wide(3e38), 15826)),
    "huge measurements": (f"defense=fl_cs {SPARSE}", sends_vector(wide(3e38), 79)),
    "large measurements": (f"defense=fl_cs {SPARSE}", sends_vector(wide(1e30), 79)),
    "a vote for what it likes": (
        f"defense=fl_top defense.chosen_by=vote rounds=1 {SPARSE}",
        sends_vector(lambda v: torch.cat([torch.full((79,), 1e30), v[79:]]), 15826),
    ),
    "a vote that counts double": (
        f"defense=fl_top defense.chosen_by=vote rounds=1 {SPARSE}",
        sends_vector(lambda v: torch.cat([torch.full((79,), 2 / 79**0.5), v[79:]]), 15826),
    ),
    "a negative variance": (
        NORM,
        sends_buffers(NORM, lambda n, t: torch.full_like(t, -1e6) if "running_var" in n else t),
    ),
    "a huge mean": (
        NORM,
        sends_buffers(NORM, lambda n, t: torch.full_like(t, 3e38) if "running_mean" in n else t),
    ),
    "endless batches": (
        NORM,
        sends_buffers(NORM, lambda n, t: torch.full_like(t, 2**63 - 1) if "num_batches" in n else t),
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused_and_the_others_go_on_as_if_its_client_had_failed(lie):
    overrides, sabotage = LIES[lie]
    overrides = f"rounds=2 {overrides}" if "rounds=" not in overrides else overrides
    failed, _ = train(overrides, {LIAR: fails("gone")})
    before = peak_memory()
    lied, _ = train(overrides, {LIAR: sabotage})
    assert peak_memory() - before < MOST_GROWTH
    for record in lied.strategy.records:
        assert [failure.client for failure in record.failures] == [LIAR]
        assert len(record.failures[0].reason) <= 500
        assert record.failures[0].reason.isprintable()
    for name, tensor in failed.strategy.weights.items():
        assert torch.equal(lied.strategy.weights[name], tensor), name
    assert [r.epsilon for r in lied.strategy.records] == [r.epsilon for r in failed.strategy.records]
    assert not any(record.attacked for record in lied.strategy.records)


HARMLESS = {
    "junk of 50 MB": adds(junk=ConfigRecord({"x": bytes(50 << 20)})),
    "a truth that nobody asked for": shows(inputs=torch.rand(1, 7), labels=torch.tensor(0)),
    "metrics beyond all bounds": says(
        metrics={"gradient_norm": 1e200, "pruned_share": 5.0, "residual_norm": 1e9}
    ),
    "metrics that are none": says(metrics={"loss": float("nan"), "residual_norm": float("inf")}),
}


@pytest.mark.parametrize("extra", HARMLESS)
def test_records_and_metrics_that_nobody_needs_are_dropped_and_the_update_counts(extra):
    plain, _ = train("rounds=2 defense=none")
    before = peak_memory()
    told, _ = train("rounds=2 defense=none", {LIAR: HARMLESS[extra]})
    assert peak_memory() - before < MOST_GROWTH
    for name, tensor in plain.strategy.weights.items():
        assert torch.equal(told.strategy.weights[name], tensor), name
    for one, other in zip(told.strategy.records, plain.strategy.records, strict=True):
        assert one.clients == 5
        # a number may be replaced by a longer one, and 50 MB are not among them
        assert abs(one.uplink_bytes - other.uplink_bytes) < 200


@pytest.mark.parametrize("client", [-1, -(2**63), 5, 99, 2**32, 2**63 - 1])
@pytest.mark.parametrize("overrides", ["defense=none", "defense=adgp", "defense=fl_std secagg=on"])
def test_an_identity_beyond_the_roster_is_nobody(client, overrides):
    federated, _ = train(f"rounds=2 {overrides}", {4: is_called(client=client)}, kind=IDENTIFY)
    assert [record.clients for record in federated.strategy.records] == [4, 4]


def test_the_first_node_of_a_client_keeps_its_place():
    federated, _ = train("rounds=2 defense=none", {4: is_called(client=0)}, kind=IDENTIFY)
    assert [record.clients for record in federated.strategy.records] == [4, 4]
    assert federated.strategy.roster.present(Late(SabotagedApp({}), 5))[0] == 1000


def test_a_node_that_comes_later_takes_nobodys_place():
    grid = Late(SabotagedApp({0: is_called(client=3)}, IDENTIFY), 5, node_config={"num-partitions": 5})
    roster = Roster(4)
    grid.absent = {1000}
    assert roster.present(grid)[3] == 1003
    grid.absent = set()  # now a node of a smaller id says the same
    assert roster.present(grid)[3] == 1003
    grid.absent = {1003}  # and does not get it when the first one is away
    assert 3 not in roster.present(grid)


class Late(InlineGrid):
    """A grid some of whose nodes are not there."""

    absent: set[int] | frozenset[int] = frozenset()

    def get_node_ids(self):
        return [node for node in super().get_node_ids() if node not in self.absent]


SECURE = "defense=fl_std secagg=on"


def garbage(order, reply, context):
    blob = unpack_reply(reply).update
    return with_update(reply, blob[:HEADER_BYTES] + os.urandom(len(blob) - HEADER_BYTES))


def boosted(order, reply, context):
    blob = unpack_reply(reply).update
    words = np.frombuffer(blob[HEADER_BYTES:], "<u4") + np.uint32(2000 * 2**20)
    return with_update(reply, blob[:HEADER_BYTES] + words.astype("<u4").tobytes())


@pytest.mark.parametrize("lie", [garbage, boosted], ids=lambda lie: lie.__name__)
def test_a_secure_sum_beyond_what_all_may_send_is_refused(lie):
    federated, _ = train(f"{SECURE} rounds=1", {LIAR: lie})
    before = {name: p.detach() for name, p in federated.model.named_parameters()}
    for name, tensor in federated.strategy.weights.items():
        assert torch.equal(tensor, before[name]), name
    assert [record.clients for record in federated.strategy.records] == [0]


def test_one_client_that_sends_noise_in_every_secure_round_does_not_stop_training():
    federated, _ = train("defense=fl_std secagg=on rounds=40", {LIAR: garbage})
    counted = [record.clients for record in federated.strategy.records]
    assert federated.strategy.aggregation.excluded == {LIAR}
    assert counted[-8:] == [4] * 8
    assert sum(clients == 0 for clients in counted) <= 24
    for record in federated.strategy.records[-8:]:
        assert not record.failures


def envelope(holder):
    return HEADER_BYTES + COMMITMENT_BYTES + holder * ENVELOPE_BYTES + 60


@pytest.mark.parametrize(
    "places", [(HEADER_BYTES,), (envelope(0), envelope(1))], ids=["commitment", "envelopes"]
)
def test_who_spoils_a_secure_round_beyond_doubt_is_excluded_from_the_next(places):
    federated, _ = train(f"{SECURE} rounds=2", {LIAR: flips(*places)}, kind=SHARE)
    assert [record.clients for record in federated.strategy.records] == [0, 4]
    assert federated.strategy.aggregation.excluded == {LIAR}


def test_one_complaint_excludes_nobody_and_keeps_nobody_out():
    federated, _ = train(f"{SECURE} rounds=2", {LIAR: flips(envelope(0))}, kind=SHARE)
    assert [record.clients for record in federated.strategy.records] == [5, 5]
    assert not federated.strategy.aggregation.excluded


def denies(*owners):
    """Say that the envelopes of some owners did not open."""

    def lie(order, reply, context):
        blob = bytearray(unpack_secure(reply))
        for owner in owners:
            start = HEADER_BYTES + owner * SHARE_BYTES
            blob[start : start + SHARE_BYTES] = UNOPENED.seed
        reply.content = pack_secure(bytes(blob))
        return reply

    return lie


def test_a_client_that_blames_one_other_keeps_it_in_and_one_that_blames_more_is_out():
    federated, _ = train(f"{SECURE} rounds=2", {LIAR: denies(0)}, kind=UNMASK)
    assert [record.clients for record in federated.strategy.records] == [5, 5]
    assert not federated.strategy.aggregation.excluded
    federated, _ = train(f"{SECURE} rounds=2", {LIAR: denies(0, 1)}, kind=UNMASK)
    assert [record.clients for record in federated.strategy.records] == [5, 4]
    assert federated.strategy.aggregation.excluded == {LIAR}


def run(overrides, sabotage, folder, kind=TRAIN):
    text = f"{SMALL} {overrides} run_dir={folder}"
    app = SabotagedApp({LIAR: sabotage}, kind)
    run_federation(InlineGrid(app, 5, run_config={"overrides": text}), text, WHOLE)
    return json.loads((folder / "result.json").read_text())


IG = "rounds=1 defense=none attack=ig attack.rounds=[1] attack.clients=[2] attack.steps=2"
ONE = torch.rand(1, 3, 32, 32)
TRUTHS = {
    "labels of no dimension": shows(inputs=ONE, labels=torch.tensor(0)),
    "inputs of another shape": shows(inputs=torch.rand(7), labels=torch.tensor([0])),
    "a label beyond all classes": shows(inputs=ONE, labels=torch.tensor([10**9])),
    "broken labels": shows(inputs=ONE, labels=torch.tensor([0.5])),
    "inputs that are none": shows(inputs=ONE * float("nan"), labels=torch.tensor([0])),
    "nothing": shows(inputs=torch.rand(0, 3, 32, 32), labels=torch.zeros(0, dtype=torch.long)),
    "more inputs than labels": shows(inputs=torch.rand(2, 3, 32, 32), labels=torch.tensor([0])),
    "more than was asked for": shows(
        inputs=torch.rand(9, 3, 32, 32), labels=torch.zeros(9, dtype=torch.long)
    ),
    "steps without end": says(steps=2**40),
    "many steps": says(steps=2**16),
    "negative steps": says(steps=-5),
}


@pytest.mark.parametrize("truth", TRUTHS)
def test_a_truth_that_cannot_be_is_not_attacked_and_the_run_finishes(truth, tmp_path):
    result = run(f"{IG} attack.clients=[0,{LIAR}]", TRUTHS[truth], tmp_path)
    assert result["status"] == "finished"
    assert {attack["client"] for attack in result["attacks"]} == {0}


@pytest.mark.parametrize("secure", ["", "defense=fl_std secagg=on"])
def test_a_truth_that_was_not_asked_for_changes_nothing(secure, tmp_path):
    overrides = f"{IG} {secure} attack.clients=[0]"
    result = run(overrides, shows(inputs=torch.rand(1, 7), labels=torch.tensor(0)), tmp_path)
    assert result["status"] == "finished"
    assert result["attacks"]


def test_words_of_a_client_are_short_and_obeyed_by_no_terminal(tmp_path):
    words = "<script>\x1b]0;owned\x07\x1b[2J\r\nINFO fl_app: forged\u202e" + "A" * (5 << 20)
    result = run("rounds=2 defense=none", fails(words), tmp_path)
    for row in result["rounds"]:
        (failure,) = row["failures"]
        assert len(failure["reason"]) <= 500
    for name in ("run.log", "result.json", "report.html"):
        text = (tmp_path / name).read_text()
        assert not {"\x1b", "\u202e"} & set(text)
        assert len(text) < 2_000_000
    assert "\nINFO fl_app: forged" not in (tmp_path / "run.log").read_text()


def test_metrics_of_one_client_do_not_end_a_run(tmp_path):
    lie = says(metrics={"gradient_norm": 1e200, "pruned_share": 0.5, "residual_norm": 1.0})
    assert run("rounds=2 defense=dgp client.norms=true", lie, tmp_path)["status"] == "finished"


EVALUATED = "fraction_evaluate=1.0 rounds=2 defense=none"
HONEST = {"loss": 2.3, "accuracy": 0.5, "num-examples": 8}
EVALUATIONS = {
    "more samples than it was dealt": adds(metrics=MetricRecord(HONEST | {"num-examples": 2**62})),
    "samples beyond all bounds": adds(metrics=MetricRecord(HONEST | {"num-examples": 1e300})),
    "fewer than no samples": adds(metrics=MetricRecord(HONEST | {"num-examples": -8})),
    "no samples": adds(metrics=MetricRecord({"loss": 2.3, "accuracy": 0.5})),
    "samples that are none": adds(metrics=MetricRecord(HONEST | {"num-examples": float("nan")})),
    "an integer without end": adds(metrics=MetricRecord(HONEST | {"num-examples": 10**400})),
    "an accuracy above 1": adds(metrics=MetricRecord(HONEST | {"accuracy": 7.0})),
    "an accuracy below 0": adds(metrics=MetricRecord(HONEST | {"accuracy": -0.5})),
    "300,000 metrics": adds(metrics=MetricRecord({f"m{i}": float(i) for i in range(300_000)})),
    "another record": adds(metrics=ConfigRecord({"accuracy": 0.5})),
    "no record": names_records([]),
    "an error": fails("\x1b[2J" * 1000),
}


@pytest.mark.parametrize("lie", EVALUATIONS)
def test_a_lie_about_an_evaluation_is_as_none(lie):
    failed, _ = train(EVALUATED, {LIAR: fails("gone")}, kind=EVALUATE)
    lied, _ = train(EVALUATED, {LIAR: EVALUATIONS[lie]}, kind=EVALUATE)
    for one, other in zip(lied.strategy.records, failed.strategy.records, strict=True):
        assert (one.client_accuracy, one.client_loss) == (other.client_accuracy, other.client_loss)
        assert other.client_accuracy is not None


@pytest.mark.parametrize("loss", [{}, {"loss": 1e308}, {"loss": float("inf")}])
def test_one_client_takes_no_metric_from_the_others_and_moves_it_no_further_than_its_samples(loss):
    plain, _ = train(EVALUATED)
    lie = adds(
        metrics=MetricRecord({"accuracy": 1.0, "num-examples": 8, "\x1b[2J": 1.0, **loss}),
        junk=ConfigRecord({"x": bytes(20 << 20)}),
    )
    lied, _ = train(EVALUATED, {LIAR: lie}, kind=EVALUATE)
    for one, other in zip(lied.strategy.records, plain.strategy.records, strict=True):
        assert 0 < one.client_loss < 10
        assert other.client_accuracy < one.client_accuracy <= other.client_accuracy + 1 / 5
        assert abs(one.uplink_bytes - other.uplink_bytes) < 200


def test_names_of_metrics_are_those_of_most_clients():
    told = {0: {"a": 1.0, "b": 1.0}, 1: {"a": 4.0, "c": 7.0}, 2: {"b": 3.0, "num-examples": 5.0}}
    weights = {0: 1.0, 1: 2.0, 2: 3.0}
    assert mean_metrics(told, weights) == {"a": pytest.approx(3.0), "b": pytest.approx(2.5)}
    assert mean_metrics({}, {}) == {}


def test_claims_that_cannot_be_checked_count_ten_medians_at_most():
    parts = server_parts(f"{SMALL} defense=none")
    gate = parts.strategy.exchange.gate
    gate.own_data = frozenset(range(5))
    assert gate.weights({0: 4.0, 1: 6.0, 2: 2.0**31}) == {0: 4.0, 1: 6.0, 2: 60.0}
    gate.own_data = frozenset()
    assert gate.weights({0: 4.0, 1: 1e6}) == {0: 4.0, 1: 1e6}


class Silent(InlineGrid):
    """A grid in which some node is silent in every exchange: each takes all the time that it may."""

    def __init__(self, *args, clock, **kwargs):
        super().__init__(*args, **kwargs)
        self.clock, self.waits = clock, []

    def send_and_receive(self, messages, *, timeout=None):
        replies = super().send_and_receive(messages)
        self.waits.append(timeout)
        self.clock[0] += timeout
        return replies


@pytest.mark.parametrize(("setting", "seconds"), [("", 3600.0), ("timeout=30", 30.0)])
@pytest.mark.parametrize("defense", ["none", "adgp", "fl_std secagg=on"])
def test_all_exchanges_of_a_round_share_one_finite_deadline(setting, seconds, defense, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("fl_app.flower.deadline.time.monotonic", lambda: clock[0])
    overrides = f"rounds=2 defense={defense} {setting}"
    grid = Silent(real_client_app, 5, clock=clock, run_config={"overrides": f"{SMALL} {overrides}"})
    federated, _ = train(overrides, grid=grid)
    assert clock[0] <= 2 * seconds
    assert all(wait > 0 for wait in grid.waits)
    # there is time left for the last exchange, and so the round succeeds
    assert [record.clients for record in federated.strategy.records] == [5, 5]


def test_the_order_that_a_liar_got_is_the_one_of_everybody():
    _, tap = train("rounds=1 defense=none", {LIAR: says(samples=2**63 - 1)})
    assert len({unpack_order(order).model for order, _ in tap.exchanges}) == 1
