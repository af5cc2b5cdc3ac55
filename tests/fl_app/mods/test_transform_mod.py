"""Mods in foreign apps: the same update as our own client's, in every form in which apps answer."""

import flwr.client.mod as legacy_mods
import flwr.clientapp.mod as flower_mods
import flwr.serverapp.strategy as flower
import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from foreign_apps import LR, ask, federate, legacy_app, message_app
from hypothesis import given, settings
from hypothesis import strategies as st
from own_apps import CLIENTS, client_of, started, train
from torch import nn

import fl_app.client
from fl_app.flower import InlineGrid
from fl_app.mods import (
    MODS,
    clip_and_noise_mod,
    dgp_mod,
    noise_mod,
    none_mod,
    quantise_mod,
    sign_mod,
    topk_mod,
    transform_mod,
)
from fl_app.mods.arrays import read_arrays, write_array
from fl_app.strategies import FedAvg, Unpacked
from fl_app.transforms import (
    add_gaussian,
    error_feedback,
    keep_topk,
    prune_dual,
    round_int8,
    stateless,
    take_sign,
)
from fl_app.wire.messages import content_bytes

ALL = {"min_train_nodes": CLIENTS, "min_available_nodes": CLIENTS, "fraction_evaluate": 0.0}
SAME = {
    "topk": (topk_mod(k=0.2), error_feedback(keep_topk(0.2))),
    "dgp": (dgp_mod(k1=0.05, k2=0.75), error_feedback(prune_dual(0.05, 0.75))),
    "noise": (noise_mod(std=0.01, seed=0), add_gaussian(0.01)),
    "sign": (sign_mod(), take_sign()),
    "int8": (quantise_mod(), round_int8()),
}
TOLERANCE = 1e-6


def with_norm():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def apart(one, other):
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


def message_of(weights):
    return RecordDict({"arrays": ArrayRecord(weights), "config": ConfigRecord({"server-round": 1})})


def legacy_model(mods, workflow=None, rounds=3):
    """Return the arrays that Flower's legacy FedAvg ends with."""
    last = []

    class Kept(LegacyFedAvg):
        def aggregate_fit(self, server_round, results, failures):
            parameters, metrics = super().aggregate_fit(server_round, results, failures)
            assert not failures
            last[:] = [np.load(__import__("io").BytesIO(t)) for t in parameters.tensors]
            return parameters, metrics

    start = ndarrays_to_parameters([t.numpy() for t in started().state_dict().values()])
    strategy = Kept(initial_parameters=start, min_fit_clients=CLIENTS, fraction_evaluate=0.0)
    grid = InlineGrid(legacy_app(mods), CLIENTS)
    context = grid.context(next(iter(grid.get_node_ids())))
    legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=rounds), strategy=strategy)
    DefaultWorkflow(fit_workflow=workflow)(grid, legacy)
    return dict(zip(started().state_dict(), map(torch.tensor, last), strict=True))


@pytest.mark.parametrize("name", SAME)
def test_flowers_fed_avg_with_a_mod_gives_the_model_of_our_own_strategy(name):
    mod, transform = SAME[name]
    theirs = federate(message_app([mod]), flower.FedAvg(**ALL))
    own = fl_app.client.app(started, train, defense=transform, seed=0)
    ours = federate(own, FedAvg(started(), lr=LR))
    assert apart(theirs, ours) < TOLERANCE


@pytest.mark.parametrize("form", ["delta", "gradient"])
@pytest.mark.parametrize("stated", ["auto", None])
def test_deltas_and_gradients_are_rewritten_as_they_come(form, stated):
    told = {} if stated == "auto" else {"returns": form}
    reply = ask(message_app([topk_mod(0.2, **told)], returns=form), message_of(started().state_dict()))[0]
    plain = ask(message_app([], returns=form), message_of(started().state_dict()))[0]
    sent, whole = (one.content["arrays"].to_torch_state_dict() for one in (reply, plain))
    for name, tensor in whole.items():
        kept = max(1, tensor.numel() * 2 // 10)
        order = tensor.flatten().abs().argsort(descending=True, stable=True)[:kept]
        expected = torch.zeros(tensor.numel())
        expected[order] = tensor.flatten()[order]
        assert torch.equal(sent[name].flatten(), expected)


def test_what_a_mod_withholds_is_sent_later():
    weights = started().state_dict()
    replies = ask(
        message_app([topk_mod(0.2, returns="delta")], returns="delta"), message_of(weights), rounds=3
    )
    plain = ask(message_app([], returns="delta"), message_of(weights))[0].content["arrays"]
    delta = plain.to_torch_state_dict()
    residual = {name: torch.zeros_like(tensor) for name, tensor in delta.items()}
    for reply in replies:
        for name, sent in reply.content["arrays"].to_torch_state_dict().items():
            corrected = delta[name] + residual[name]
            residual[name] = corrected - sent
            assert torch.equal(sent[sent != 0], corrected[sent != 0])
            assert int((sent != 0).sum()) == max(1, sent.numel() * 2 // 10)


@pytest.mark.parametrize("name", [name for name in MODS if name != "clip_and_noise"])
def test_every_mod_of_the_catalogue_runs_in_both_apis(name):
    model = federate(message_app([MODS[name]()]), flower.FedAvg(**ALL), rounds=1)
    assert all(bool(tensor.isfinite().all()) for tensor in model.values())
    legacy = legacy_model([MODS[name]()], rounds=1)
    if name not in ("gaussian", "laplace", "outpost", "noisy_support", "common_signs"):
        assert apart(model, legacy) < TOLERANCE


@pytest.mark.parametrize(
    "name", ["FedAdam", "FedYogi", "FedAdagrad", "FedAvgM", "FedProx", "Krum", "FedMedian"]
)
def test_flowers_strategies_are_unchanged_behind_a_mod_that_changes_nothing(name):
    options = ALL | ({"proximal_mu": 0.1} if name == "FedProx" else {})
    plain = federate(message_app(), getattr(flower, name)(**options))
    # adaptive steps divide by small numbers: roundings grow
    same = federate(message_app([none_mod()]), getattr(flower, name)(**options))
    assert apart(same, plain) < 10 * TOLERANCE
    assert apart(federate(message_app([dgp_mod()]), getattr(flower, name)(**options)), plain) > 1e-4


def test_flowers_privacy_wrapper_on_the_server_clips_what_the_mod_sent():
    def wrapped():
        return flower.DifferentialPrivacyServerSideFixedClipping(flower.FedAvg(**ALL), 0.0, 0.01, CLIENTS)

    before = started().state_dict()
    after = federate(message_app([topk_mod(0.2)]), wrapped(), rounds=1)
    moved = torch.cat([(after[name] - before[name]).flatten() for name in before])
    assert 0 < float(moved.norm()) <= 0.01 + TOLERANCE


def test_flowers_clipping_mod_stands_before_ours_and_is_refused_behind_it():
    def wrapped():
        return flower.DifferentialPrivacyClientSideFixedClipping(flower.FedAvg(**ALL), 0.0, 0.01, CLIENTS)

    clip = flower_mods.fixedclipping_mod
    before = started().state_dict()
    after = federate(message_app([clip, topk_mod(0.2)]), wrapped(), rounds=1)
    moved = torch.cat([(after[name] - before[name]).flatten() for name in before])
    assert 0 < float(moved.norm()) <= 0.01 + TOLERANCE
    content = message_of(before)
    content["config"]["clipping_norm"] = 0.01
    refused = ask(message_app([topk_mod(0.2), clip], empties=False), content)[0]
    assert refused.has_error()
    assert "fixedclipping_mod" in refused.error.reason


def test_flowers_noise_and_size_mods_work_on_either_side():
    noise = flower_mods.LocalDpMod(1.0, 1e-6, 1.0, 1e-5)
    sizes = [flower_mods.message_size_mod, flower_mods.arrays_size_mod]
    plain = federate(message_app([topk_mod(0.2)]), flower.FedAvg(**ALL), rounds=1)
    outer = federate(message_app([*sizes, noise, topk_mod(0.2)]), flower.FedAvg(**ALL), rounds=1)
    assert apart(plain, outer) < 1e-3
    federate(message_app([topk_mod(0.2), noise, *sizes], empties=False), flower.FedAvg(**ALL), rounds=1)


def test_flowers_secure_aggregation_masks_what_the_mod_left():
    masked = SecAggPlusWorkflow(num_shares=CLIENTS, reconstruction_threshold=CLIENTS - 1, max_weight=100)
    secret = legacy_model([legacy_mods.secaggplus_mod, topk_mod(0.2)], masked, rounds=1)
    plain = legacy_model([topk_mod(0.2)], rounds=1)
    assert apart(secret, plain) < 1e-3  # Flower's quantisation draws at random


def test_a_mod_before_secure_aggregation_is_refused_before_the_app_trains():
    trained = []

    def note(message, context, call_next):
        trained.append(1)
        return call_next(message, context)

    for hiding in (legacy_mods.secaggplus_mod, legacy_mods.secagg_mod):
        app = message_app([topk_mod(0.2), hiding, note])
        refused = ask(app, message_of(started().state_dict()))[0]
        assert refused.has_error()
        assert hiding.__name__ in refused.error.reason
    assert not trained


def test_two_mods_of_one_defense_keep_a_memory_each():
    once = federate(message_app([topk_mod(0.5)]), flower.FedAvg(**ALL))
    twice = federate(message_app([topk_mod(0.5), topk_mod(0.5)]), flower.FedAvg(**ALL))
    assert apart(once, twice) < TOLERANCE  # the outer one keeps all that the inner one left


def test_mods_for_the_whole_app_let_evaluation_and_queries_pass():
    weights = started().state_dict()
    plain = ask(message_app(), message_of(weights), kind="evaluate")[0].content
    assert ask(message_app(whole=[sign_mod()]), message_of(weights), kind="evaluate")[0].content == plain
    app = ClientApp(mods=[sign_mod()])
    app.query("state")(lambda message, context: Message(message.content, reply_to=message))
    secret = RecordDict({"c": ConfigRecord({"blob": b"x"}), "arrays": ArrayRecord(weights)})
    assert ask(app, secret, kind="query.state")[0].content == secret


def test_error_replies_pass_untouched():
    app = ClientApp()
    app.train(mods=[topk_mod(0.2)])(
        lambda message, context: Message(Error(code=77, reason="out of rows"), reply_to=message)
    )
    reply = ask(app, message_of(started().state_dict()))[0]
    assert (reply.error.code, reply.error.reason) == (77, "out of rows")


def add(**records):
    def change(message, content):
        return RecordDict(dict(content) | records)

    return change


def renamed(message, content):
    arrays = {f"x{name}": array for name, array in content["arrays"].items()}
    return RecordDict({"arrays": ArrayRecord(arrays), "metrics": content["metrics"]})


def scaled(factor):
    def change(message, content):
        weights = content["arrays"].to_torch_state_dict()
        content["arrays"] = ArrayRecord({name: factor * tensor for name, tensor in weights.items()})
        return content

    return change


def whole_numbers(message, content):
    weights = content["arrays"].to_torch_state_dict()
    content["arrays"] = ArrayRecord({name: (100 * tensor).to(torch.int8) for name, tensor in weights.items()})
    return content


UNKNOWN = {
    "a second record of arrays": add(more=ArrayRecord({"x": Array(np.ones(3, np.float32))})),
    "bytes in a config": add(more=ConfigRecord({"pickle": b"\x80\x04"})),
    "a long list": add(more=MetricRecord({"all": [0.5] * 65})),
    "arrays of other names": renamed,
    "twice the weights": scaled(2.0),
    "not a number": scaled(float("nan")),
    "infinity": scaled(float("inf")),
    "whole numbers": whole_numbers,
    "packed arrays": add(arrays=ArrayRecord({"0.weight": Array("float32", (8, 6), "mine", b"1234")})),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_records_in_which_the_update_is_unknown_leave_nothing(name):
    for mod in (topk_mod(0.2), none_mod()):
        reply = ask(message_app([mod], change=UNKNOWN[name]), message_of(started().state_dict()))[0]
        assert reply.has_error()
        assert reply.error.code == 2


def test_what_cannot_be_told_apart_can_be_stated():
    app = message_app([topk_mod(0.2, returns="gradient")], change=scaled(2.0), returns="weights")
    assert ask(app, message_of(started().state_dict()))[0].has_content()


def test_statistics_pass_counters_too_and_are_withheld_under_noise():
    weights = with_norm().state_dict()
    plain, sent, private = (
        ask(message_app(mods, net=with_norm), message_of(weights))[0].content["arrays"].to_torch_state_dict()
        for mods in ([], [dgp_mod()], [clip_and_noise_mod(1.0, 0.1)])
    )
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(plain[name], sent[name])
        assert torch.equal(private[name], weights[name])
        assert sent[name].dtype == weights[name].dtype
    assert int(sent["1.num_batches_tracked"]) > 0
    assert not torch.equal(plain["0.weight"], sent["0.weight"])


def test_a_head_alone_may_come_back():
    def head(message, content):
        weights = content["arrays"].to_torch_state_dict()
        content["arrays"] = ArrayRecord({name: weights[name] for name in ("2.weight", "2.bias")})
        return content

    reply = ask(message_app([dgp_mod(0.2, 0.5)], change=head), message_of(started().state_dict()))[0]
    assert list(reply.content["arrays"]) == ["2.weight", "2.bias"]
    moved = reply.content["arrays"].to_torch_state_dict()["2.bias"] != started().state_dict()["2.bias"]
    assert not bool(moved.any())  # of 3 entries: too few to prune, and the largest names the label


def test_records_may_have_names_of_their_own():
    app = message_app([topk_mod(0.2)], names=("my.weights", "my.numbers"))
    reply = ask(app, message_of(started().state_dict()))[0]
    assert set(reply.content) == {"my.weights", "my.numbers"}


def test_noise_from_the_operating_system_differs_between_runs_and_has_the_size_that_was_asked_for():
    app = message_app([clip_and_noise_mod(1e-6, 0.5)])
    weights = started().state_dict()
    two = [ask(app, message_of(weights))[0].content["arrays"].to_torch_state_dict() for _ in range(2)]
    assert not torch.equal(two[0]["0.weight"], two[1]["0.weight"])
    noise = torch.cat([(two[0][name] - weights[name]).flatten() for name in weights])
    assert 0.35 < float(noise.std()) < 0.65


def test_memory_belongs_to_one_run_and_one_defense():
    weights = started().state_dict()
    app, other = message_app([topk_mod(0.2)]), message_app([topk_mod(0.3)])
    grid = InlineGrid(app, 1)
    node = next(iter(grid.get_node_ids()))

    def answer(app, run):
        grid._client_app = app
        grid.context(node).run_id = run
        reply = next(iter(grid.send_and_receive([Message(message_of(weights), node, "train")])))
        return reply.content["arrays"].to_torch_state_dict()

    first, second = answer(app, 1), answer(app, 1)
    assert apart(first, second) > 0  # the residual came on top
    assert torch.equal(answer(app, 2)["0.weight"], first["0.weight"])
    fresh = ask(other, message_of(weights))[0].content["arrays"].to_torch_state_dict()
    assert torch.equal(answer(other, 2)["0.weight"], fresh["0.weight"])


def test_a_message_with_another_model_does_not_touch_the_residual():
    weights = started().state_dict()
    small = {"w": torch.ones(4)}

    def any_model(message, context):
        base = message.content["arrays"].to_torch_state_dict()
        moved = {name: tensor * 1.1 for name, tensor in base.items()}
        return Message(
            RecordDict({"arrays": ArrayRecord(moved), "m": MetricRecord({"num-examples": 1})}),
            reply_to=message,
        )

    def sequence(models):
        app = ClientApp()
        app.train(mods=[topk_mod(0.2)])(any_model)
        grid = InlineGrid(app, 1)
        node = next(iter(grid.get_node_ids()))
        replies = [next(iter(grid.send_and_receive([Message(message_of(m), node, "train")]))) for m in models]
        assert len(grid.context(node).state) <= 4
        return replies[-1].content["arrays"].to_torch_state_dict()

    straight = sequence([weights, weights])
    detour = sequence([weights, small, {"v": torch.ones(5)}, weights])
    assert all(torch.equal(straight[name], detour[name]) for name in weights)


def test_a_transform_of_ones_own_is_a_mod_too():
    halved = transform_mod(stateless(lambda update, ctx: {n: t / 2 for n, t in update.items()}))
    weights = started().state_dict()
    plain, half = (
        ask(message_app(mods), message_of(weights))[0].content["arrays"].to_torch_state_dict()
        for mods in ([], [halved])
    )
    for name in weights:
        assert torch.allclose(half[name] - weights[name], (plain[name] - weights[name]) / 2, atol=1e-7)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: topk_mod(0), ValueError),
        (lambda: dgp_mod(0.9, 0.9), ValueError),
        (lambda: noise_mod(-1), ValueError),
        (lambda: quantise_mod("int3"), ValueError),
        (lambda: topk_mod(0.1, returns="wieghts"), ValueError),
        (lambda: topk_mod(0.1, buffers="running_mean"), TypeError),
        (lambda: transform_mod(lambda update: update), TypeError),
    ],
)
def test_wrong_settings_are_refused_when_the_mod_is_made(make, error):
    with pytest.raises(error):
        make()


def test_packed_replies_give_the_same_model_in_a_fraction_of_the_bytes():
    def model(mods, strategy):
        return federate(message_app(mods, net=with_norm), strategy, net=with_norm)

    plain = model([topk_mod(0.1)], flower.FedAvg(**ALL))
    packed = model([topk_mod(0.1, packed=True)], Unpacked(flower.FedAvg(**ALL)))
    assert apart(plain, packed) < TOLERANCE  # Flower adds replies in any order
    for name in ("FedAdam", "Krum"):
        one = model([topk_mod(0.1)], getattr(flower, name)(**ALL))
        other = model([topk_mod(0.1, packed=True)], Unpacked(getattr(flower, name)(**ALL)))
        assert apart(one, other) < 10 * TOLERANCE


def test_the_wire_carries_the_pruned_update_and_no_more():
    def wide():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return nn.Sequential(nn.Linear(6, 3000), nn.ReLU(), nn.Linear(3000, 3))

    weights = wide().state_dict()
    plain, whole, short = (
        ask(message_app(mods, net=wide), message_of(weights))[0].content
        for mods in ([], [topk_mod(0.05)], [topk_mod(0.05, packed=True)])
    )
    sizes = [content_bytes(content) for content in (plain, whole, short)]
    assert sizes[1] == sizes[0]  # new weights are dense, whatever the change
    entries = sum(tensor.numel() for tensor in weights.values())
    assert sizes[2] < 0.05 * entries * 8 + 600  # at most position and value of one in twenty
    moved = whole["arrays"].to_torch_state_dict()
    for name, tensor in weights.items():
        assert int((moved[name] != tensor).sum()) <= max(1, tensor.numel() // 20)


def test_a_packed_reply_that_is_damaged_costs_its_client_alone():
    def spoil(message, context, call_next):
        reply = call_next(message, context)
        if client_of(context) == 1:
            blob = reply.content["arrays"]
            name, array = next(iter(blob.items()))
            blob[name] = Array(array.dtype, array.shape, array.stype, array.data[:-3] + b"abc")
        return reply

    kept = []

    class Counting(flower.FedAvg):
        def aggregate_train(self, server_round, replies):
            replies = list(replies)
            kept.append([reply.has_error() for reply in replies])
            return super().aggregate_train(server_round, replies)

    federate(message_app([spoil, topk_mod(0.1, packed=True)]), Unpacked(Counting(**ALL)), rounds=1)
    assert [sorted(failed) for failed in kept] == [[False, False, False, True]]


SHAPES = st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=4)
TYPES = st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64])


def flower_array(tensor):
    if tensor.dtype != torch.bfloat16:
        return Array(tensor.numpy())
    shell = Array("bfloat16", tuple(tensor.shape), "numpy.ndarray", b"")
    return write_array(shell, tensor)


@settings(max_examples=30, deadline=None)
@given(shapes=SHAPES, dtype=TYPES, seed=st.integers(0, 2**31), k=st.sampled_from([0.05, 0.3, 1.0]))
def test_any_shapes_and_types_come_back_as_the_base_plus_the_largest_changes(shapes, dtype, seed, k):
    draws = torch.Generator().manual_seed(seed)
    base = {f"p{i}": (1 + torch.rand(s, generator=draws)).to(dtype) for i, s in enumerate(shapes)}
    after = {name: t + (torch.rand(t.shape, generator=draws) / 4).to(dtype) for name, t in base.items()}
    counter = {"num_batches_tracked": torch.tensor(3)}
    asked, reply = (
        RecordDict({"arrays": ArrayRecord({n: flower_array(t) for n, t in (own | counter).items()})})
        for own in (base, after)
    )
    app = ClientApp()
    app.train(mods=[topk_mod(k, error_feedback=False)])(lambda m, c: Message(reply, reply_to=m))
    sent = read_arrays(ask(app, asked)[0].content["arrays"], "test")
    for name, start in base.items():
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        change = (after[name].to(wide) - start.to(wide)).flatten()
        kept = min(change.numel(), max(1, int(k * change.numel() + 1e-9)))
        order = np.lexsort((np.arange(change.numel()), -change.abs().numpy()))[:kept]
        expected = start.to(wide).flatten().clone()
        expected[order] += change[order]
        assert sent[name].dtype == dtype
        assert torch.equal(sent[name].flatten(), expected.to(dtype))
    assert int(sent["num_batches_tracked"]) == 3
