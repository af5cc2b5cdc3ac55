"""Orders of a hostile server against a deployed node: every attack first succeeds where runs are trusted."""

import math

import pytest
import torch
from federations import SMALL as FEW
from federations import train
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

from fl_app.client.movement import LastMove, movement
from fl_app.client_app import app
from fl_app.flower import InlineGrid
from fl_app.models import ModelSpec
from fl_app.privacy.draws import OwnDraws, exponential, normal, uniform
from fl_app.seeding import generator_for
from fl_app.training import parameters
from fl_app.wire import decode_masks
from fl_app.wire.messages import (
    LOCATE,
    AuditOrder,
    LocationQuery,
    Plan,
    add_query,
    take_audit,
    unpack_reply,
)

MLP = f"model=mlp {SMALL}"
PRIVATE = (
    f"model=mlp model.hidden=[16] {SMALL} defense=fl_std dp=client dp.secure=true training.steps=1 rounds=10"
)
TRUSTED, UNTRUSTED = True, False
KEY = "0123456789abcdef"
BUNDLE = "fe" * 32


def plan(cohort: int = 2) -> Plan:
    return Plan("", "", 0, cohort, 1.0)


# positions


@pytest.mark.parametrize(
    "defense",
    [
        "defense=dgp",
        "defense=none",
        "defense=dp_sgd",
        "defense=fl_std dp=client training.steps=1",
        "defense=fl_std secagg=on secagg.min_clients=2 training.steps=1",
    ],
)
@pytest.mark.parametrize("trust", [TRUSTED, UNTRUSTED])
def test_positions_are_named_for_no_defense_that_does_not_use_them(defense, trust):
    text = f"{MLP} {defense}"
    parts = parts_of(text)
    content = add_query(order(parts.model, model_of(parts.model), plan=plan()), LocationQuery(0.4, 4))
    assert code_of(send(node(text, trust_config=trust), content, LOCATE)) == "locate"


def test_positions_show_the_pixels_of_whoever_names_them_at_every_level():
    """Many queries add up to a ranking of entries; a guarded client answers one query a round."""
    text = f"{MLP} defense=adgp defense.location=vote batch_size=8"
    parts = parts_of(text)
    model = model_of(parts.model)
    like = {name: p.detach() for name, p in parameters(model).items()}
    shares = (0.01, 0.05, 0.1, 0.2, 0.4)
    levels = {}
    for trust in (TRUSTED, UNTRUSTED):
        grid, answered = node(text, trust_config=trust), []
        for share in shares:
            query = add_query(order(parts.model, model), LocationQuery(share, 4))
            reply = send(grid, query, LOCATE)
            if not reply.has_error():
                answered.append(decode_masks(unpack_reply(reply).update, like)["hidden1.weight"].float())
        levels[trust] = answered
    assert (len(levels[TRUSTED]), len(levels[UNTRUSTED])) == (5, 1)
    assert sum(levels[TRUSTED]).unique().numel() == 6
    # no finer level than the defense's own, before or after
    grid = node(text)
    finer = add_query(order(parts.model, model), LocationQuery(0.5, 4))
    assert code_of(send(grid, finer, LOCATE)) == "locate"


def test_positions_of_an_answered_round_are_not_named_any_more():
    text = f"{MLP} defense=adgp defense.location=vote batch_size=8"
    parts = parts_of(text)
    model, grid = model_of(parts.model), node(text)
    query = add_query(order(parts.model, model, round=2), LocationQuery(0.4, 4))
    assert code_of(send(grid, query, LOCATE)) is None
    assert code_of(send(grid, query, LOCATE)) is None  # the same one
    earlier = add_query(order(parts.model, model, round=1), LocationQuery(0.4, 4))
    assert code_of(send(grid, earlier, LOCATE)) == "order"


# many orders


def shown_by(
    text: str, trust: bool, *, step: float, orders: int, rounds: bool, dead: int = 0
) -> tuple[int, int]:
    """Lower the biases of a layer together, order by order: fewer and fewer samples pass each unit.

    The first ``dead`` units have huge weights, which no sample passes: the layer is large, the others are
    not. Return how many orders were answered, and how many samples of the batch they show exactly.
    """
    parts = parts_of(text)
    grid, samples, answered = node(text, trust_config=trust), first_batch(parts, 16), 0
    shown = torch.zeros(len(samples), dtype=torch.bool)
    for number in range(orders):
        model = model_of(parts.model)
        with torch.no_grad():
            model.hidden1.bias -= step * number
            model.hidden1.weight[:dead] *= 1e4
            model.hidden1.bias[:dead] = -1e9
        reply = send(grid, order(parts.model, model, round=number + 1 if rounds else 1))
        if reply.has_error():
            continue
        answered += 1
        update = update_of(reply, model)
        weight, bias = update["hidden1.weight"], update["hidden1.bias"]
        rows = weight[bias.abs() > 1e-8] / bias[bias.abs() > 1e-8, None]
        shown |= (torch.cdist(rows, samples) ** 2 / samples.shape[1] < 1e-6).any(0)
    return answered, int(shown.sum())


def test_ten_orders_of_one_round_show_every_sample_and_a_guarded_client_answers_one():
    text = f"{MLP} defense=none batch_size=16"
    assert shown_by(text, TRUSTED, step=0.2, orders=10, rounds=False) == (10, 16)
    answered, shown = shown_by(text, UNTRUSTED, step=0.2, orders=10, rounds=False)
    assert answered == 1
    assert shown < 4


@pytest.mark.parametrize("step", [0.1, 0.2, 0.5])
def test_a_model_whose_biases_jump_from_round_to_round_is_not_followed(step):
    # all samples in every round: the same ones under many models
    text = f"{MLP} defense=none batch_size=64 partition=fixed partition.samples=16"
    assert shown_by(text, TRUSTED, step=step, orders=10, rounds=True)[1] > 12
    answered, shown = shown_by(text, UNTRUSTED, step=step, orders=10, rounds=True)
    assert answered == 1
    assert shown < 4


def test_huge_weights_of_dead_units_do_not_let_the_others_move_far():
    text = f"{MLP} defense=none batch_size=64 partition=fixed partition.samples=16"
    assert shown_by(text, TRUSTED, step=0.2, orders=10, rounds=True, dead=80)[1] > 12
    answered, shown = shown_by(text, UNTRUSTED, step=0.2, orders=10, rounds=True, dead=80)
    assert answered == 1
    assert shown < 4


def test_a_model_with_other_weights_in_every_round_is_not_followed():
    text = f"{MLP} defense=none"
    parts, said = parts_of(text), []
    grid = node(text)
    for round in range(1, 9):
        said.append(code_of(send(grid, order(parts.model, model_of(parts.model, seed=round), round=round))))
    assert said == [None, *["moved"] * 7]


def test_movement_is_of_single_tensors_and_infinite_where_it_cannot_be_told():
    weights = {"a.weight": torch.ones(10, 4), "a.bias": torch.full((10,), 1e6)}

    def move(weight: float = 0.0, bias: float = 0.0) -> float:
        return movement(
            weights, {"a.weight": weights["a.weight"] + weight, "a.bias": weights["a.bias"] + bias}
        )

    assert move() == 0
    assert move(weight=0.5) == pytest.approx(0.5)
    # a bias counts by its layer's signals, four inputs of size 1, however large it is itself
    assert move(bias=8) == pytest.approx(8 / (0.25 * math.sqrt(4)))
    assert move(weight=math.nan) == math.inf
    assert movement({"w": torch.zeros(2, 2)}, {"w": torch.ones(2, 2)}) == math.inf
    # no distance is known beside numbers whose squares are no float32, not even a small one
    huge = {"a.weight": torch.full((10, 4), 1e20), "a.bias": torch.zeros(10)}
    assert movement(huge, {**huge, "a.bias": torch.full((10,), 1e-6)}) == math.inf
    # one that starts at 0 counts by the smallest entries that there are
    both = {"w": torch.zeros(2, 2), "v": torch.full((2, 2), 0.5)}
    assert movement(both, {**both, "w": torch.ones(2, 2)}) == pytest.approx(2)


def test_clients_of_one_process_share_a_move_of_the_very_same_models_alone():
    before = {"w": torch.ones(3, 3)}
    near, far = ({"w": before["w"] + by} for by in (0.1, 9.0))
    last = LastMove()
    # another model under the same name, equal numbers in another tensor, and the first one again
    pairs = [(before, near), (before, far), (far, near), ({"w": before["w"].clone()}, near), (before, near)]
    assert [last.of(*pair) for pair in pairs] == [movement(*pair) for pair in pairs]


@pytest.mark.parametrize("value", [1e2, 1e15, 1e20])
@pytest.mark.parametrize("shape", [(64, 784), (32, 16)], ids=str)
@pytest.mark.parametrize("part", ["inputs", "outputs", "entries"])
def test_entries_of_any_size_hide_a_move_of_the_others_by_a_few_times_at_most(part, shape, value):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0)) / 28
    plain = {"a.weight": weight, "a.bias": torch.zeros(len(weight))}
    enlarged = weight.clone()
    if part == "inputs":
        enlarged[:, : shape[1] // 2] = value
    elif part == "outputs":
        enlarged[: shape[0] // 2] = value
    else:
        enlarged.view(-1)[::2] = value
    for name in plain:
        moves = [{**m, name: m[name] + 0.1} for m in (plain, {**plain, "a.weight": enlarged})]
        before, hidden = movement(plain, moves[0]), movement({**plain, "a.weight": enlarged}, moves[1])
        # half of all entries: the quartile is the others' median, about twice that of all
        assert before / 8 < hidden, (name, before, hidden)


def test_what_training_makes_of_a_model_counts_by_its_norm():
    """Honest models have few entries far beyond their quartile: the bound of a size does not touch them."""
    parts, _ = train("model=lenet rounds=3 lr=0.5")
    for model in (dict(parts.model.named_parameters()), parts.strategy.weights):
        before = {name: tensor.detach() for name, tensor in model.items() if name.endswith("weight")}
        after = {name: 1.1 * tensor for name, tensor in before.items()}
        assert movement(before, after) == pytest.approx(0.1, rel=1e-3)


@pytest.mark.parametrize("round", [-5, 0, 11, 2**62])
def test_rounds_that_a_run_does_not_have_are_not_answered(round):
    text = f"{MLP} defense=none rounds=10"
    parts = parts_of(text)
    model = model_of(parts.model)
    assert code_of(send(node(text), order(parts.model, model, round=round))) == "order"
    assert code_of(send(node(text), order(parts.model, model, round=10))) is None


def test_answers_go_forwards_only():
    text = f"{MLP} defense=none rounds=10"
    parts = parts_of(text)
    model, grid = model_of(parts.model), node(text)
    said = [code_of(send(grid, order(parts.model, model, round=round))) for round in (3, 2, 3, 4, 1)]
    assert said == [None, "order", None, None, "order"]


def test_the_same_order_gets_the_same_bytes_whatever_noise_there_is():
    text = f"{MLP} defense=gaussian"
    parts = parts_of(text)
    model, grid = model_of(parts.model), node(text)
    first, again = (unpack_reply(send(grid, order(parts.model, model))).update for _ in range(2))
    assert first == again


@pytest.mark.parametrize("folder", [True, False])
def test_another_key_does_not_make_a_node_forget_the_rounds_of_a_run(folder, tmp_path):
    text = f"{MLP} defense=dgp"
    parts = parts_of(text)
    model = model_of(parts.model)
    config = {"state_dir": str(tmp_path)} if folder else {}
    grid = node(text, **config)
    assert code_of(send(grid, order(parts.model, model, key=KEY))) is None
    for key in ("f" * 16, None):
        reply = send(grid, order(parts.model, model, lr=0.3, key=key))
        assert code_of(reply) == "run"


def test_another_spelling_of_the_model_is_another_model():
    text = f"{MLP} defense=dgp"
    parts = parts_of(text)
    spec, model, grid = parts.model, model_of(parts.model), node(text)
    assert code_of(send(grid, order(spec, model))) is None
    for settings in ({"num_classes": 10.0}, {"in_shape": [3.0, 32, 32]}, {"hidden": [256.0]}):
        other = ModelSpec(spec.target, {**spec.settings, **settings})
        assert other.hash != spec.hash
        assert code_of(send(grid, order(other, model, lr=0.3))) == "model"


def test_a_model_that_jumps_is_not_followed_under_masks_either():
    text = "defense=fl_std secagg=on rounds=3 batch_size=8 clients=3 data.size=12 model=mlp model.hidden=[8]"
    counts = {}
    for lr in (0.1, 1000.0):
        overrides = f"{text} lr={lr}"
        config = {"overrides": f"{FEW} {overrides}"}
        federated, _ = train(overrides, grid=InlineGrid(app, 3, run_config=config, node_config=DEPLOYED))
        counts[lr] = [record.clients for record in federated.strategy.records]
    assert counts == {0.1: [3, 3, 3], 1000.0: [3, 0, 0]}


# residuals


def test_no_other_defense_sends_what_one_held_back(tmp_path):
    """A second run names the first one's key and asks a defense that holds nothing back."""
    text = f"{MLP} batch_size=16"
    defended, open_hand = f"{text} defense=dgp", f"{text} defense=dgp defense.k1=0"
    open_hand += " defense.k2=0"
    parts = parts_of(defended)
    model, replies = model_of(parts.model), {}
    for trust in (TRUSTED, UNTRUSTED):
        config = {"trust_config": trust, "state_dir": str(tmp_path / str(trust))}
        assert code_of(send(node(defended, **config), order(parts.model, model, key=KEY))) is None
        second = node(open_hand, run_id=2, **config)
        replies[trust] = send(second, order(parts.model, model, round=2, key=KEY))
    fresh = send(node(open_hand, trust_config=True), order(parts.model, model, round=2))
    raw = update_of(send(node(open_hand, trust_config=True), order(parts.model, model)), model)
    got, alone = update_of(replies[TRUSTED], model), update_of(fresh, model)
    # the whole gradient of the first round, of which DGP had sent a fifth
    for name, tensor in raw.items():
        torch.testing.assert_close(got[name] - alone[name], tensor, rtol=0, atol=1e-6)
    assert code_of(replies[UNTRUSTED]) == "run"


def test_a_resumed_run_goes_on_with_its_own_key_and_plan(tmp_path):
    text = f"{MLP} defense=dgp"
    parts = parts_of(text)
    model = model_of(parts.model)
    first = send(node(text, state_dir=str(tmp_path)), order(parts.model, model, key=KEY))
    resumed = node(text, run_id=2, state_dir=str(tmp_path))
    again = send(resumed, order(parts.model, model, key=KEY))
    assert unpack_reply(again).update == unpack_reply(first).update
    assert code_of(send(resumed, order(parts.model, model, lr=0.3, key=KEY))) == "order"
    assert code_of(send(resumed, order(parts.model, model, round=2, key=KEY))) is None


def test_error_feedback_gives_nothing_back_to_a_server_that_jumps_the_model():
    text = f"{MLP} defense=topk defense.share=0.01 batch_size=16"
    parts = parts_of(text)
    model, flat = model_of(parts.model), model_of(parts.model)
    with torch.no_grad():  # a model whose gradient is 0: what it answers is the residual
        for p in flat.parameters():
            p.zero_()
        flat.output.bias.fill_(0.0)
        flat.hidden1.bias.fill_(-1e3)
    for trust in (TRUSTED, UNTRUSTED):
        grid = node(text, trust_config=trust)
        assert code_of(send(grid, order(parts.model, model))) is None
        reply = send(grid, order(parts.model, flat, round=2))
        if trust:
            given = update_of(reply, model)["hidden1.weight"]
            assert (given != 0).float().mean() == pytest.approx(0.01, abs=1e-3)
        else:
            assert code_of(reply) == "moved"


# noise


def rebuilt_noise(kind: str, tensors: dict, std: float) -> dict:
    generator = generator_for(7, 1, 0, "transform")
    if kind == "gaussian":
        return {n: std * torch.randn(t.shape, generator=generator) for n, t in tensors.items()}

    def draw(tensor):
        return torch.empty(tensor.shape).exponential_(generator=generator)

    return {n: std / math.sqrt(2) * (draw(t) - draw(t)) for n, t in tensors.items()}


@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_whoever_knows_the_seed_does_not_know_a_guarded_clients_noise(kind):
    text = f"{MLP} seed=7 batch_size=8 defense={kind} defense.std=0.1"
    parts = parts_of(text)
    model = model_of(parts.model)
    plain = f"{MLP} seed=7 batch_size=8 defense=none"
    clean = update_of(send(node(plain, trust_config=True), order(parts.model, model)), model)
    errors = {}
    for trust in (TRUSTED, UNTRUSTED):
        seen = update_of(send(node(text, trust_config=trust), order(parts.model, model)), model)
        noise = rebuilt_noise(kind, seen, 0.1)
        errors[trust] = torch.cat([(seen[n] - noise[n] - clean[n]).flatten() for n in seen])
    assert float(errors[TRUSTED].abs().max()) < 1e-6
    # two independent draws of the same spread
    assert float(errors[UNTRUSTED].std()) == pytest.approx(0.1 * math.sqrt(2), rel=0.02)


def test_record_level_noise_and_draws_do_not_follow_from_the_seed():
    text = f"{MLP} seed=7 batch_size=8 defense=dp_sgd defense.noise_multiplier=1"
    parts = parts_of(text)
    model = model_of(parts.model)
    norms = {}
    for trust in (TRUSTED, UNTRUSTED):
        seen = update_of(send(node(text, trust_config=trust), order(parts.model, model)), model)
        generator = generator_for(7, 1, 0, "rules")
        torch.rand(100, generator=generator)  # the draw of records
        rest = [8 * t - torch.randn(t.shape, generator=generator) for t in seen.values()]
        norms[trust] = float(torch.cat([t.flatten() for t in rest]).norm())
    entries = sum(p.numel() for p in model.parameters())
    assert norms[TRUSTED] < 100  # at most as many clipped gradients as there are samples
    assert norms[UNTRUSTED] > math.sqrt(entries)


def test_client_level_noise_is_the_operating_systems_whatever_the_run_says():
    text = PRIVATE.replace("dp.secure=true", "dp.secure=false")
    parts = parts_of(text)
    model = model_of(parts.model)
    vectors = {
        trust: [
            vector_of(send(node(text, trust_config=trust), order(parts.model, model, plan=plan())), model)
            for _ in range(2)
        ]
        for trust in (TRUSTED, UNTRUSTED)
    }
    assert torch.equal(*vectors[TRUSTED])
    assert not torch.equal(*vectors[UNTRUSTED])


def test_own_draws_have_the_laws_of_the_seeded_ones_and_never_repeat():
    like = torch.empty(40_000)
    for law, mean, std in ((normal, 0, 1), (exponential, 1, 1)):
        drawn, other = law(like, OwnDraws()), law(like, OwnDraws())
        assert not torch.equal(drawn, other)
        assert drawn.dtype == like.dtype
        assert float(drawn.mean()) == pytest.approx(mean, abs=0.03)
        assert float(drawn.std()) == pytest.approx(std, abs=0.03)
    drawn = uniform(40_000, OwnDraws())
    assert 0 <= float(drawn.min()) < 0.001
    assert 0.999 < float(drawn.max()) < 1
    one, two = OwnDraws(), OwnDraws()
    assert not torch.equal(torch.rand(8, generator=one), torch.rand(8, generator=two))
    assert float(torch.rand(40_000, generator=one).mean()) == pytest.approx(0.5, abs=0.02)


# channels beside the update


@pytest.mark.parametrize("defense", ["gaussian defense.std=10", "sign", "fl_std training.steps=1"])
def test_no_number_that_was_measured_on_the_data_leaves(defense):
    text = f"{MLP} model.hidden=[] client.norms=true defense={defense}"
    parts = parts_of(text)
    model = model_of(parts.model)
    for trust, leaves in ((TRUSTED, True), (UNTRUSTED, False)):
        reply = send(node(text, trust_config=trust), order(parts.model, model, plan=plan()))
        assert bool(unpack_reply(reply).metrics) is leaves


@pytest.mark.parametrize(
    "text",
    [
        PRIVATE.replace("model=mlp model.hidden=[16]", "model=convnet model.width=4"),
        f"model=convnet model.width=4 {SMALL} defense=dp_sgd",
        f"model=convnet model.width=4 {SMALL} defense=fl_std secagg=on secagg.min_clients=2 training.steps=1",
    ],
    ids=["dp=client", "dp_sgd", "secagg"],
)
def test_statistics_of_layers_do_not_leave_beside_noise_or_masks(text):
    parts = parts_of(text)
    for trust in (TRUSTED, UNTRUSTED):  # a hostile server alone would send such an order
        reply = send(node(text, trust_config=trust), order(parts.model, model_of(parts.model), plan=plan()))
        assert reply.has_error()


# budgets


def test_a_crowd_that_a_run_invents_does_not_make_the_noise_vanish():
    text = f"{PRIVATE} clients=60000 dp.epsilon=1"
    parts = parts_of(text)
    model = model_of(parts.model)
    reply = send(node(text), order(parts.model, model, plan=plan(60000)))
    assert code_of(reply) == "cohort"
    assert code_of(send(node(text), order(parts.model, model, plan=plan(10)))) is None


def test_noise_that_hides_nothing_from_the_server_is_no_noise():
    text = f"{PRIVATE} dp.noise_multiplier=1e-9"
    parts = parts_of(text)
    model = model_of(parts.model)
    assert code_of(send(node(text), order(parts.model, model, plan=plan()))) == "dp"


@pytest.mark.parametrize("unit", ["client", "record"])
def test_a_budget_is_kept_over_orders_runs_and_restarts(unit, tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text("[dp]\nrequired = true\nepsilon = 6.0\ndelta = 1e-5\n")
    text = {
        "client": f"{PRIVATE} dp.noise_multiplier=3 dp.epsilon=null rounds=50 clients=4",
        "record": f"{MLP} model.hidden=[16] defense=dp_sgd defense.noise_multiplier=1 rounds=50",
    }[unit]
    parts = parts_of(text)
    model = model_of(parts.model)
    answered = []
    for run in (1, 2, 3):
        grid = node(text, run_id=run, policy=str(file), state_dir=str(tmp_path))
        for round in range(1, 51):
            reply = send(grid, order(parts.model, model, round=round, plan=plan(), key=f"{run:016x}"))
            if reply.has_error():
                assert code_of(reply) == "budget"
                break
            answered.append((run, round))
    assert 0 < len(answered) < 50
    assert {run for run, _ in answered} == {1}
    from fl_app.policy import AccountFile

    spent = AccountFile(tmp_path / "account-0.json").load().epsilon(1e-5)
    assert 0 < spent <= 6.0


def test_a_budget_needs_a_folder_to_be_kept_in(tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text("[dp]\nepsilon = 5.0\n")
    parts = parts_of(PRIVATE)
    reply = send(node(PRIVATE, policy=str(file)), order(parts.model, model_of(parts.model), plan=plan()))
    assert code_of(reply) == "node"


def test_answers_are_counted_over_all_runs(tmp_path):
    file = tmp_path / "policy.yaml"
    file.write_text("orders: {total: 3}\n")
    text = f"{MLP} defense=none"
    parts = parts_of(text)
    model, said = model_of(parts.model), []
    for run in (1, 2):
        grid = node(text, run_id=run, policy=str(file), state_dir=str(tmp_path))
        said += [
            code_of(send(grid, order(parts.model, model, round=round, key=f"{run:016x}"))) for round in (1, 2)
        ]
    assert said == [None, None, None, "orders"]


# audits


def test_an_audit_shows_no_more_samples_than_were_consented_to():
    text = f"{MLP} defense=dgp"
    parts = parts_of(text)
    model = model_of(parts.model)
    everything, one = AuditOrder(10**9, True, False), AuditOrder(1, True, False)

    def ask(audit: AuditOrder, **config):
        return send(node(text, **config), order(parts.model, model), audit=audit)

    truth, _ = take_audit(ask(everything, trust_config=True, allow_audit=True).content)
    assert len(truth.inputs) == 100
    assert code_of(ask(everything, allow_audit=True)) == "audit"
    assert code_of(ask(one)) == "audit"
    truth, _ = take_audit(ask(one, allow_audit=True).content)
    assert len(truth.inputs) == 1


def test_consent_can_be_tied_to_runs_and_bundles(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "fl_app.client_app.bundle_hash", lambda: BUNDLE[:8]
    )  # Flower names folders by eight digits
    file = tmp_path / "policy.toml"
    text = f"{MLP} defense=dgp"
    parts = parts_of(text)
    model = model_of(parts.model)

    def ask(run: int) -> str | None:
        grid = node(text, run_id=run, policy=str(file))
        return code_of(send(grid, order(parts.model, model), audit=AuditOrder(1, True, False)))

    from fl_app.client.node import _load

    for said, expected in (
        ("runs = [7]", {7: None, 8: "audit"}),
        ('bundles = ["0123abcd"]', {7: "audit"}),
        (f'bundles = ["{BUNDLE}"]', {7: None, 8: None}),
        (f'runs = [7]\nbundles = ["{BUNDLE}"]', {7: None, 8: "audit"}),
        ('runs = [7]\nbundles = ["0123abcd"]', {7: "audit", 8: "audit"}),
        ("samples = 1", {7: None}),
    ):
        file.write_text(f"[audit]\nallowed = true\n{said}\n")
        _load.cache_clear()
        assert {run: ask(run) for run in expected} == expected


def test_a_run_within_a_batch_recovers_nothing_from_a_guarded_client_with_few_samples():
    text = f"{MLP} defense=none partition=fixed partition.samples=2"
    parts = parts_of(text)
    model = model_of(parts.model)
    shown = update_of(send(node(text, trust_config=True), order(parts.model, model)), model)
    assert worst_match(shown, first_batch(parts, 2)) < 1e-8
    assert code_of(send(node(text), order(parts.model, model))) == "batch"
