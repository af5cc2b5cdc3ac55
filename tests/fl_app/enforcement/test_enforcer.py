"""A node's policy around foreign apps: what they may send is rebuilt, everything else is an error."""

import json

import flwr.serverapp.strategy as flower
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from foreign_apps import ask, federate, legacy_app, message_app
from hostile_apps import BREAKING, REPLIES, SECRET, counting, replying, two_faced
from own_apps import CLIENTS, started
from torch import nn

from fl_app.enforcement.enforcer import PREFIX, AppIdentity, guard_app
from fl_app.flower import InlineGrid
from fl_app.mods import dgp_mod, topk_mod
from fl_app.policy.policy import Policy
from fl_app.policy.refusal import TEXTS

BUNDLE = "ab" * 32
ALL = {"min_train_nodes": CLIENTS, "min_available_nodes": CLIENTS, "min_evaluate_nodes": CLIENTS}
OPEN = {"metrics": ["train_loss", "size", "loss", "accuracy"], "min_samples": 2}
DGP = {"name": "dgp", "settings": {"k1": 0.05, "k2": 0.75}}


def policy(**settings):
    return Policy.model_validate(OPEN | settings)


def with_norm():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def order(weights=None, round=1):
    weights = started().state_dict() if weights is None else weights
    return RecordDict({"arrays": ArrayRecord(weights), "config": ConfigRecord({"server-round": round})})


def code_of(reply):
    assert reply.has_error(), reply.content
    assert reply.error.code == 2
    code = reply.error.reason[1:].split("]")[0]
    assert reply.error.reason == f"[{code}] {TEXTS[code]}"
    return code


def legacy_order():
    from flwr.common import FitIns, ndarrays_to_parameters
    from flwr.compat.common.recorddict_compat import fitins_to_recorddict

    arrays = ndarrays_to_parameters([t.numpy() for t in started().state_dict().values()])
    return fitins_to_recorddict(FitIns(arrays, {"server_round": 1}), True)


def test_the_nodes_defense_gives_the_model_that_the_apps_own_mod_gives():
    strategy = {"fraction_evaluate": 0.0, **ALL}
    own = federate(message_app([dgp_mod(0.05, 0.75)]), flower.FedAvg(**strategy))
    enforced = federate(guard_app(message_app(), policy(apps={"apply": [DGP]})), flower.FedAvg(**strategy))
    assert all(torch.allclose(own[name], enforced[name], atol=1e-6) for name in own)


def test_rounds_with_evaluation_run_under_a_policy_and_numbers_are_rounded():
    numbers = []

    class Kept(flower.FedAvg):
        def aggregate_evaluate(self, server_round, replies):
            replies = list(replies)
            numbers.extend(reply.content["metrics"]["size"] for reply in replies)
            return super().aggregate_evaluate(server_round, replies)

    federate(guard_app(message_app(), policy(apps={"digits": 3})), Kept(**ALL), rounds=2)
    assert len(numbers) == 2 * CLIENTS
    assert all(number == float(f"{number:.2e}") for number in numbers)


def test_apps_of_the_legacy_api_are_answered_for_and_their_texts_are_not_sent():
    reply = ask(guard_app(legacy_app(), policy(apps={"apply": [DGP]})), legacy_order())[0]
    assert set(reply.content) == {
        "fitres.parameters",
        "fitres.metrics",
        "fitres.num_examples",
        "fitres.status",
    }
    assert dict(reply.content["fitres.status"]) == {"code": 0, "message": ""}
    mod = ask(legacy_app([dgp_mod(0.05, 0.75)]), legacy_order())[0].content["fitres.parameters"]
    assert {n: a.data for n, a in reply.content["fitres.parameters"].items()} == {
        n: a.data for n, a in mod.items()
    }


@pytest.mark.parametrize("applied", [[], [DGP]], ids=["no defense", "dgp"])
@pytest.mark.parametrize("name", REPLIES)
def test_a_hostile_reply_is_an_error_of_a_code_and_nothing_leaves(name, applied):
    reply = ask(guard_app(replying(name), policy(apps={"apply": applied})), order())[0]
    assert code_of(reply) in ("records", "metrics", "bytes", "batch", "unreadable")
    assert SECRET not in str(reply)


@pytest.mark.parametrize("name", BREAKING)
def test_a_hostile_app_that_breaks_tells_nothing_by_it(name):
    app = ClientApp()
    app.train()(BREAKING[name])
    reply = ask(guard_app(app, policy()), order())[0]
    assert code_of(reply) == "internal"
    assert SECRET not in str(reply)


def test_records_that_hide_some_of_themselves_leave_without_them():
    reply = ask(guard_app(message_app(change=two_faced), policy()), order())[0]
    assert set(reply.content) == {"arrays", "metrics"}
    assert SECRET not in str(dict(reply.content))


def test_the_honest_app_beside_them_passes():
    assert ask(guard_app(message_app(), policy()), order())[0].has_content()


def test_a_counter_may_count_and_do_no_more():
    weights = with_norm().state_dict()

    def sent(value, **settings):
        app = message_app(net=with_norm, change=lambda m, c: counting(m, c, value))
        return ask(guard_app(app, policy(**settings)), order(weights))[0]

    assert int(sent(5).content["arrays"].to_torch_state_dict()["1.num_batches_tracked"]) == 5
    assert code_of(sent(2**40)) == "records"
    assert code_of(sent(-1)) == "records"
    withheld = sent(5, buffers=False).content["arrays"].to_torch_state_dict()
    for name in ("1.num_batches_tracked", "1.running_mean", "1.running_var"):
        assert torch.equal(withheld[name], weights[name])


def test_the_order_of_arrays_and_numbers_is_the_messages():
    def shuffled(message, content):
        content["arrays"] = ArrayRecord(dict(reversed(list(content["arrays"].items()))))
        content["metrics"] = MetricRecord(dict(reversed(list(content["metrics"].items()))))
        return RecordDict(dict(reversed(list(content.items()))))

    one, other = (
        ask(guard_app(message_app(change=change), policy()), order())[0] for change in (None, shuffled)
    )
    assert list(one.content) == list(other.content)
    assert list(one.content["arrays"]) == list(other.content["arrays"]) == list(started().state_dict())
    assert list(one.content["metrics"]) == list(other.content["metrics"])


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"apps": {"allowed": [{"bundle": "cd" * 32}]}}, "app"),
        ({"apps": {"allowed": [{"id": "hospital/other"}]}}, "app"),
        ({"apps": {"messages": ["evaluate"]}}, "message"),
        ({"apps": {"apply": [{"name": "soteria"}]}}, "node"),
        ({"apps": {"apply": [{"name": "topk", "settings": {"seed": 1}}]}}, "node"),
        ({"defenses": [{"name": "dgp"}]}, "defense"),
        ({"defenses": [{"name": "dgp", "at_least": {"k2": 0.9}}], "apps": {"apply": [DGP]}}, "defense"),
        ({"min_cohort": 5}, "cohort"),
        ({"secure_aggregation": {"required": True}}, "secagg"),
        ({"dp": {"required": True}}, "dp"),
        ({"orders": {"total": 5}}, "node"),
        ({"max_bytes": 300}, "bytes"),
        ({"metrics": []}, "metrics"),
        ({"min_samples": 50}, "batch"),
        ({"models": ["lenet_zhu"]}, "model"),
    ],
)
def test_each_limit_of_a_policy_binds_foreign_apps(settings, code):
    assert code_of(ask(guard_app(message_app(), policy(**settings)), order())[0]) == code


def test_an_allowed_app_with_the_required_defense_passes():
    allowed = [{"id": "x/y"}, {"id": "hospital/app", "version": "1.0.0", "bundle": BUNDLE}]
    rules = {"defenses": [{"name": "dgp", "at_least": {"k2": 0.75}}]}
    strict = policy(apps={"allowed": allowed, "apply": [DGP]}, **rules)
    identity = AppIdentity("hospital/app", "1.0.0", BUNDLE)
    assert ask(guard_app(message_app(), strict, identity), order())[0].has_content()
    other = AppIdentity("hospital/app", "1.0.1", BUNDLE)
    assert code_of(ask(guard_app(message_app(), strict, other), order())[0]) == "app"


def test_a_round_is_answered_once_and_never_an_earlier_one():
    grid = InlineGrid(guard_app(message_app(), policy(apps={"rounds": 5})), 1)
    node = next(iter(grid.get_node_ids()))

    def asked(round, kind="train"):
        content = order(round=round) if round is not None else RecordDict({"arrays": order()["arrays"]})
        return next(iter(grid.send_and_receive([Message(content, node, kind)])))

    assert asked(1).has_content()
    assert code_of(asked(1)) == "order"
    assert asked(2, "evaluate").has_content()
    assert asked(3).has_content()
    assert code_of(asked(2)) == "order"
    assert code_of(asked(6)) == "order"
    assert code_of(asked(None)) == "order"
    assert code_of(asked(4, "query")) == "message"


def test_answers_over_all_runs_are_counted_in_the_nodes_folder(tmp_path):
    strict = policy(orders={"total": 2})
    config = {"state-dir": str(tmp_path)}
    codes = []
    for run in (1, 2, 3):
        grid = InlineGrid(guard_app(message_app(), strict), 1, node_config=config, run_id=run)
        node = next(iter(grid.get_node_ids()))
        reply = next(iter(grid.send_and_receive([Message(order(), node, "train")])))
        codes.append(code_of(reply) if reply.has_error() else "")
    assert codes == ["", "", "orders"]
    log = [json.loads(line) for line in (tmp_path / "leaving.jsonl").read_text().splitlines()]
    assert [line["allowed"] for line in log] == [True, True, False]
    assert log[2]["decision"] == "orders"
    assert log[0]["bytes"] > 0


def test_an_app_sees_and_changes_none_of_the_nodes_records():
    seen = []

    def nosy(message, context, call_next):
        seen.append((sorted(context.state), sorted(context.node_config)))
        context.state["mine"] = ConfigRecord({"n": len(seen)})
        context.state[f"{PREFIX}train"] = ConfigRecord({"json": "{}"})
        return call_next(message, context)

    strict = policy(apps={"apply": [{"name": "topk", "settings": {"k": 0.2}}]})
    grid = InlineGrid(guard_app(message_app(whole=[nosy]), strict), 1)
    node = next(iter(grid.get_node_ids()))
    plain = InlineGrid(message_app([topk_mod(0.2)]), 1)
    for round in (1, 2):
        replies = [
            next(iter(g.send_and_receive([Message(order(round=round), node, "train")])))
            for g in (grid, plain)
        ]
        own, theirs = (reply.content["arrays"].to_torch_state_dict() for reply in replies)
        assert all(torch.equal(own[name], theirs[name]) for name in own)
    assert [names for names, _ in seen] == [[], ["mine"]]
    assert all("policy" not in keys for _, keys in seen)


def test_a_refused_reply_leaves_the_residual_as_it_was():
    refuse = [False]

    def change(message, content):
        return RecordDict(dict(content) | {"x": ConfigRecord({"t": "x"})}) if refuse[0] else content

    strict = policy(apps={"apply": [{"name": "topk", "settings": {"k": 0.2}}]})
    models = []
    for refused in ((), (2,)):
        grid = InlineGrid(guard_app(message_app(change=change), strict), 1)
        node = next(iter(grid.get_node_ids()))
        for round in (1, 2, 3) if refused else (1, 3):
            refuse[0] = round in refused
            reply = next(iter(grid.send_and_receive([Message(order(round=round), node, "train")])))
        models.append(reply.content["arrays"].to_torch_state_dict())
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


def test_a_trusted_bundle_passes_unread():
    app = message_app(change=REPLIES["bytes in a config"])
    trusting = policy(apps={"trusted": [BUNDLE]})
    assert ask(guard_app(app, trusting, AppIdentity(bundle=BUNDLE)), order())[0].has_content()
    assert ask(guard_app(app, trusting, AppIdentity(bundle="cd" * 32)), order())[0].has_error()
