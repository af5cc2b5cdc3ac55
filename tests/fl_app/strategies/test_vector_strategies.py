"""The FL-TOP family in a federation: the papers' algorithms, what travels, and clients that hold nothing."""

import ctypes
import gc
import logging
import resource
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from federations import SMALL, train, with_update
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from fl_app.client_app import app as real_client_app
from fl_app.config.build import client_parts, server_parts
from fl_app.config.trust import WHOLE
from fl_app.flower import InlineGrid
from fl_app.flower.held_tensor import hold
from fl_app.flower.tapped import TappedGrid
from fl_app.sketches import draw_coordinates, draw_measurements, flatten, reconstruct
from fl_app.training import LocalData
from fl_app.wire import decode, encode
from fl_app.wire.messages import (
    VALUES,
    content_bytes,
    pack_blob,
    read_locations,
    unpack_order,
    unpack_reply,
)

TINY = "model=mlp model.hidden=[8]"
N = 3072 * 8 + 8 + 8 * 10 + 10
PARTIAL = f"{TINY} clients=10 fraction=0.3 rounds=4"
FAMILY = ["fl_std", "fl_basic", "fl_cs", "fl_top"]


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


def flat_model(parts) -> Tensor:
    """Return the initial weights, which nothing has written to."""
    return flatten(dict(parts.model.named_parameters())).clone()


def flat(parts) -> Tensor:
    return flatten(parts.strategy.weights)


def by_round(tap) -> dict[int, list[tuple[Message, Message]]]:
    rounds: dict[int, list[tuple[Message, Message]]] = {}
    for sent, reply in tap.exchanges:
        rounds.setdefault(unpack_order(sent).order.round, []).append((sent, reply))
    return rounds


def local_change(
    model: nn.Module,
    start: Tensor,
    data: LocalData,
    round: int,
    chosen: Tensor | None = None,
    *,
    size: int = 4,
    steps: int = 5,
    lr: float = 0.1,
) -> Tensor:
    """Plain SGD written out; after each step all but the ``chosen`` are put back, as in the papers."""
    batches, passes = [], -(-steps * size // len(data))
    for k in range(passes):
        batches += data.order((round - 1) * passes + k).split(size)
    weights, names = start.clone(), list(model.parameters())
    for indices in batches[:steps]:
        nn.utils.vector_to_parameters(weights, names)
        batch = data.batch(indices, torch.device("cpu"), start.dtype)
        loss = F.cross_entropy(model(batch.inputs), batch.labels)
        moved = weights - lr * torch.cat([g.flatten() for g in torch.autograd.grad(loss, names)])
        if chosen is None:
            weights = moved
        else:
            weights[chosen] = moved[chosen]
    return weights - start


def federation_by_hand(overrides: str, rounds: list[list[int]], chosen: Callable[[int], Tensor | None]):
    """Average what these clients change, round by round."""
    text = f"{SMALL} {overrides}"
    parts, model = client_parts(text), server_parts(text).model.train()
    weights = flatten(dict(model.named_parameters())).clone()
    for round, clients in enumerate(rounds, 1):
        changes = [local_change(model, weights, parts.data_of(c, 10), round, chosen(round)) for c in clients]
        weights = weights + torch.stack(changes).mean(0)
    return weights


def drawn(tap) -> list[list[int]]:
    return [[unpack_order(sent).order.client for sent, _ in pairs] for pairs in by_round(tap).values()]


def top_by_hand(parts, share: float) -> Tensor:
    """Twenty steps on all public samples; the largest sums of magnitudes, the lower index at ties."""
    data, model = parts.strategy.public.data, parts.model
    batch = data.batch(torch.arange(len(data)), torch.device("cpu"), torch.float64)
    weights, total = flat_model(parts), torch.zeros(N, dtype=torch.float64)
    for _ in range(20):
        nn.utils.vector_to_parameters(weights, list(model.parameters()))
        loss = F.cross_entropy(model(batch.inputs), batch.labels)
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])
        total, weights = total + gradient.abs(), weights - 0.1 * gradient
    ranked = sorted(range(N), key=lambda i: (-float(total[i]), i))
    return torch.tensor(sorted(ranked[: int(N * share)]))


@pytest.mark.parametrize("other", ["fl_top", "fl_basic"])
def test_with_all_coordinates_it_is_fl_std_bit_for_bit(other):
    std, plain = train(f"defense=fl_std {PARTIAL}")
    whole, tap = train(f"defense={other} defense.share=1.0 {PARTIAL}")
    assert torch.equal(flat(std), flat(whole))
    assert not torch.equal(flat(std), flat_model(std))
    for (_, ours), (_, theirs) in zip(tap.exchanges, plain.exchanges, strict=True):
        assert unpack_reply(ours).update == unpack_reply(theirs).update
    assert [r.train_loss for r in whole.strategy.records] == [r.train_loss for r in std.strategy.records]


def test_fl_std_is_fed_avg_when_clients_are_of_equal_size():
    common = f"{PARTIAL} dtype=float64"
    std, _ = train(f"defense=fl_std public._target_=own_parts.all_stay {common}")
    avg, _ = train(f"defense=none strategy=fed_avg training.steps=5 {common}")
    torch.testing.assert_close(std.strategy.weights, avg.strategy.weights, rtol=0, atol=1e-12)


def test_fl_std_counts_a_large_client_like_a_small_one():
    overrides = f"defense=fl_std dtype=float64 {PARTIAL} partition=dirichlet partition.alpha=0.3"
    federated, tap = train(overrides)
    sizes = {len(client_parts(f"{SMALL} {overrides}").data_of(c, 10)) for c in set().union(*drawn(tap))}
    assert len(sizes) > 2
    expected = federation_by_hand(overrides, drawn(tap), lambda round: None)
    torch.testing.assert_close(flat(federated), expected, rtol=0, atol=1e-12)


def test_fl_top_is_the_paper_in_plain_loops():
    overrides = f"defense=fl_top defense.share=0.02 dtype=float64 {PARTIAL}"
    federated, tap = train(overrides)
    chosen = top_by_hand(federated, 0.02)
    assert federated.strategy.coordinates.tolist() == chosen.tolist()
    expected = federation_by_hand(overrides, drawn(tap), lambda round: chosen)
    torch.testing.assert_close(flat(federated), expected, rtol=0, atol=1e-12)


def test_fl_basic_is_the_paper_in_plain_loops_with_new_coordinates_each_round():
    overrides = f"defense=fl_basic defense.share=0.02 dtype=float64 {PARTIAL}"
    federated, tap = train(overrides)
    seeds = [{unpack_order(sent).plan.seed for sent, _ in pairs} for pairs in by_round(tap).values()]
    assert all(len(one) == 1 for one in seeds)
    sets = [draw_coordinates(N, int(N * 0.02), one.pop()) for one in seeds]
    assert len({tuple(one.tolist()) for one in sets}) == 4
    expected = federation_by_hand(overrides, drawn(tap), lambda round: sets[round - 1])
    torch.testing.assert_close(flat(federated), expected, rtol=0, atol=1e-12)
    never = torch.ones(N, dtype=torch.bool)
    never[torch.cat(sets)] = False
    assert torch.equal(flat(federated)[never], flat_model(federated)[never])


def test_what_the_server_sees_of_a_client_is_zero_outside_the_round_s_coordinates():
    federated, tap = train(f"defense=fl_basic defense.share=0.02 {TINY} rounds=1")
    chosen = federated.strategy.sketch.trained
    outside = torch.ones(N, dtype=torch.bool)
    outside[chosen] = False
    for sent, reply in tap.exchanges:
        client, weights = unpack_order(sent).order.client, federated.strategy.weights
        seen = flatten(federated.strategy.see(unpack_reply(reply).update, client, weights, None))
        assert not seen[outside].any()
        assert seen[chosen].any()


def test_a_client_follows_the_seed_of_its_order_and_a_forged_one_is_not_noticed():
    """Which coordinates are meant is the server's word alone: the connection has to protect it."""
    forged = 12345

    def forge(message: Message) -> None:
        message.content["plan"]["seed"] = forged

    overrides = f"defense=fl_basic defense.share=0.02 dtype=float64 {TINY} rounds=1"
    federated, tap = edited(overrides, {2: forge})
    assert not federated.strategy.records[0].failures
    parts, model = client_parts(f"{SMALL} {overrides}"), federated.model.train()
    others = draw_coordinates(N, int(N * 0.02), forged)
    change = local_change(model, flat_model(federated), parts.data_of(2, 5), 1, others)
    sent = decode(unpack_reply(tap.exchanges[2][1]).update, {VALUES: change[others]})[VALUES]
    torch.testing.assert_close(sent, change[others], rtol=0, atol=1e-12)


def test_fl_cs_steps_by_the_sparse_change_that_explains_the_mean_of_measurements():
    overrides = f"defense=fl_cs defense.share=0.05 dtype=float64 {TINY} rounds=2 clients=3"
    federated, tap = train(overrides)
    parts, model = client_parts(f"{SMALL} {overrides}"), server_parts(f"{SMALL} {overrides}").model.train()
    rounds, count = by_round(tap), int(N * 0.05)
    starts = [
        flatten(decode(unpack_order(pairs[0][0]).model, federated.strategy.weights))
        for pairs in rounds.values()
    ]
    seeds = [{unpack_order(sent).plan.seed for sent, _ in pairs} for pairs in rounds.values()]
    assert all(len(one) == 1 for one in seeds)
    assert seeds[0] != seeds[1]
    for round, (before, after) in enumerate(zip(starts, [starts[1], flat(federated)], strict=True), 1):
        operator = draw_measurements(N, count, seeds[round - 1].pop())
        like = {VALUES: torch.zeros(count, dtype=torch.float64)}
        came = [decode(unpack_reply(reply).update, like)[VALUES] for _, reply in rounds[round]]
        for client, values in enumerate(came):
            change = local_change(model, before, parts.data_of(client, 3), round)
            torch.testing.assert_close(values, operator.measure(change), rtol=0, atol=1e-12, msg=f"{round}")
        change = reconstruct(operator, (came[0] + came[1] + came[2]) / 3).vector
        assert change.any()
        torch.testing.assert_close(after, before + change, rtol=0, atol=1e-12)


def test_fl_cs_finds_a_sparse_change_that_clients_agree_on_but_for_noise():
    count, truth = int(N * 0.05), torch.zeros(N)
    generator = torch.Generator().manual_seed(3)
    truth[draw_coordinates(N, 40, seed=3)] = 0.1 * (1 + torch.rand(40, generator=generator))

    def measured(order: Message, reply: Message, context: Context) -> Message:
        operator = draw_measurements(N, count, unpack_order(order).plan.seed)
        own = truth + 1e-4 * torch.randn(N, generator=generator)
        return with_update(reply, encode({VALUES: operator.measure(own)}))

    federated, _ = train(
        f"defense=fl_cs defense.share=0.05 {TINY} rounds=1", dict.fromkeys(range(5), measured)
    )
    change = flat(federated) - flat_model(federated)
    assert float((change - truth).norm() / truth.norm()) < 0.05
    assert set(torch.nonzero(change.abs() > 0.05).flatten().tolist()) == set(
        torch.nonzero(truth).flatten().tolist()
    )


@pytest.mark.parametrize("defense", ["fl_std", "fl_basic", "fl_cs"])
def test_the_whole_model_goes_down_where_no_coordinates_were_agreed_on(defense):
    federated, tap = train(f"defense={defense} {PARTIAL} rounds=2")
    for sent, _ in tap.exchanges:
        parcel = unpack_order(sent)
        assert (parcel.order.base, parcel.locations) == (-1, b"")
        assert decode(parcel.model, federated.strategy.weights).keys() == federated.strategy.weights.keys()
    assert {r.downlink_blob_bytes // r.clients // 1000 for r in federated.strategy.records} <= set(
        range(80, 4 * N // 1000 + 1)
    )


@pytest.mark.parametrize("defense", ["fl_basic", "fl_cs", "fl_top"])
def test_an_upload_is_its_values_and_nothing_else(defense):
    federated, tap = train(f"defense={defense} defense.share=0.02 {PARTIAL} rounds=2")
    values = 4 * int(N * 0.02)
    for _, reply in tap.exchanges:
        assert len(unpack_reply(reply).update) <= values + 32
        assert content_bytes(reply.content) <= values + 400
    for record in federated.strategy.records:
        assert record.uplink_blob_bytes <= record.clients * (values + 32)
        assert record.uplink_bytes <= record.clients * (values + 400)


def test_fl_top_downloads_its_values_and_the_coordinates_once_a_client():
    federated, tap = train(f"defense=fl_top defense.share=0.02 {TINY} clients=10 fraction=0.3 rounds=8")
    values, met = 4 * int(N * 0.02), set()
    expected_blobs = dict.fromkeys(range(1, 9), 0)
    for sent, _ in tap.exchanges:
        parcel = unpack_order(sent)
        blob = read_locations(sent)
        assert bool(blob) == (parcel.order.client not in met)
        assert len(parcel.model) <= values + 32
        assert content_bytes(sent.content) <= values + len(blob) + 700
        assert len(blob) < N // 8
        expected_blobs[parcel.order.round] += len(parcel.model) + len(blob)
        met.add(parcel.order.client)
    assert 3 < len(met) < len(tap.exchanges)
    assert [r.downlink_blob_bytes for r in federated.strategy.records] == list(expected_blobs.values())


@pytest.mark.parametrize("share", [0.02, 0.5])
def test_fl_top_leaves_all_other_weights_as_they_were_bit_for_bit(share, tmp_path):
    start = server_parts(f"{SMALL} {TINY}").model.state_dict()
    for tensor in start.values():  # what pruning a model leaves behind: zeros of both signs
        tensor[..., ::3] *= 0.0
    save_file(start, tmp_path / "start.safetensors")
    federated, _ = train(
        f"defense=fl_top defense.share={share} {TINY} rounds=3 init={tmp_path / 'start.safetensors'} "
        "strategy.momentum=0.5"
    )
    before, after, chosen = flatten(start), flat(federated), federated.strategy.coordinates
    assert (before.view(torch.int32) == -(2**31)).any()
    outside = torch.ones(N, dtype=torch.bool)
    outside[chosen] = False
    assert torch.equal(before[outside].view(torch.int32), after[outside].view(torch.int32))
    assert (before[chosen] != after[chosen]).any()


@pytest.mark.parametrize("defense", FAMILY)
def test_clients_hold_no_tensor_between_rounds(defense):
    overrides = f"defense={defense} {PARTIAL} rounds=2"
    grid = InlineGrid(real_client_app, 10, run_config={"overrides": f"{SMALL} {overrides}"})
    _, tap = train(overrides, grid=grid)
    packed = {read_locations(sent) for sent, _ in tap.exchanges} - {b""}
    assert len(packed) == (1 if defense == "fl_top" else 0)
    for node in grid.get_node_ids():
        for record in grid.context(node).state.values():
            if isinstance(record, ArrayRecord):
                assert not record
                continue
            held = {value for value in record.values() if isinstance(value, bytes)} - {b""}
            assert held <= packed
            assert not any(isinstance(value, list) for value in record.values())


def test_a_client_that_forgot_the_coordinates_gets_them_in_the_same_round():
    overrides = f"defense=fl_top defense.share=0.02 {TINY} rounds=3"
    grid = InlineGrid(real_client_app, 5, run_config={"overrides": f"{SMALL} {overrides}"})
    original = grid.send_and_receive

    def wiping(messages, *, timeout=None):
        messages = list(messages)
        orders = [unpack_order(m).order for m in messages if m.metadata.message_type == "train"]
        if orders and orders[0].round == 3 and len(orders) == 5:
            grid.context(list(grid.get_node_ids())[3]).state = RecordDict()
        return original(messages, timeout=timeout)

    grid.send_and_receive = wiping
    federated, tap = train(overrides, grid=grid)
    undisturbed, _ = train(overrides)
    assert [record.clients for record in federated.strategy.records] == [5, 5, 5]
    assert not any(record.failures for record in federated.strategy.records)
    assert torch.equal(flat(federated), flat(undisturbed))
    last = [(unpack_order(s).order.client, bool(read_locations(s)), r) for s, r in by_round(tap)[3]]
    assert [(client, told) for client, told, _ in last] == [
        *((c, False) for c in range(5)),
        (3, True),
    ]
    assert [unpack_reply(r).answer.need_model for _, _, r in last] == [False] * 3 + [True] + [False] * 2
    assert federated.strategy.records[2].uplink_bytes == sum(content_bytes(r.content) for _, _, r in last)


class Editor:
    """Changes the orders to some clients."""

    def __init__(self, changes: dict[int, Callable[[Message], None]]) -> None:
        self._changes = changes

    def on_send(self, message: Message) -> Message:
        if message.metadata.message_type == "train":
            self._changes.get(unpack_order(message).order.client, lambda m: None)(message)
        return message

    def on_reply(self, sent: Message, reply: Message) -> Message:
        return reply


def edited(overrides: str, changes: dict[int, Callable[[Message], None]]):
    grid = InlineGrid(real_client_app, 5, run_config={"overrides": f"{SMALL} {overrides}"})
    return train(overrides, grid=TappedGrid(grid, Editor(changes)))


def wrong_coordinates(message: Message) -> None:
    message.content["plan"]["coordinates"] = "0" * 64


def other_coordinates(message: Message) -> None:
    weights = dict(server_parts(f"{SMALL} {TINY}").model.named_parameters())
    first = torch.zeros(N, dtype=torch.bool)
    first[: int(N * 0.02)] = True
    parts = first.split([w.numel() for w in weights.values()])
    masks = {name: part.view(w.shape) for (name, w), part in zip(weights.items(), parts, strict=True)}
    message.content["locations"] = pack_blob(encode(masks))


def wrong_start(message: Message) -> None:
    message.content["plan"]["start"] = "0" * 64


def no_plan(message: Message) -> None:
    del message.content["plan"]


def broken_values(message: Message) -> None:
    message.content["model"] = pack_blob(encode({VALUES: torch.zeros(3)}))


def broken_coordinates(message: Message) -> None:
    message.content["locations"] = pack_blob(b"not masks at all")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (wrong_coordinates, "client 0: its coordinates are not those of the order"),
        (other_coordinates, "client 0: its coordinates are not those of the order"),
        (wrong_start, "client 0: the initial weights that it makes are not the server's"),
        (no_plan, "client 0: the order has no plan"),
        (broken_values, ""),
        (broken_coordinates, ""),
    ],
)
def test_an_order_that_cannot_be_meant_is_refused_and_the_round_goes_on(change, reason):
    federated, _ = edited(f"defense=fl_top defense.share=0.02 {TINY} rounds=1", {0: change})
    (record,) = federated.strategy.records
    (failure,) = record.failures
    assert failure.client == 0
    assert reason in failure.reason
    assert record.clients == 4


def test_a_client_that_failed_is_told_the_coordinates_again():
    rounds = {"seen": 0}

    def wrong_once(message: Message) -> None:
        rounds["seen"] += 1
        if rounds["seen"] == 2:
            wrong_coordinates(message)

    federated, tap = edited(f"defense=fl_top defense.share=0.02 {TINY} rounds=4", {3: wrong_once})
    assert [record.clients for record in federated.strategy.records] == [5, 4, 5, 5]
    told = [bool(read_locations(s)) for s, _ in tap.exchanges if unpack_order(s).order.client == 3]
    assert told == [True, False, True, False]


class OtherSettings(ClientApp):
    """The real client app, except that one client composes other settings than the server."""

    def __init__(self, overrides: str) -> None:
        super().__init__()
        self._overrides = overrides

    def __call__(self, message: Message, context: Context) -> Message:
        if int(context.node_config["partition-id"]) != 2:
            return real_client_app(message, context)
        own = Context(
            run_id=context.run_id,
            node_id=context.node_id,
            node_config=context.node_config,
            state=context.state,
            run_config={"overrides": self._overrides},
        )
        return real_client_app(message, own)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        (
            "seed=1",
            "client 2: the initial weights that it makes are not the server's; both need the same seed",
        ),
        ("defense.share=0.01", "expected 246 agreed coordinates, got 493"),
        ("defense=fl_std", ""),
    ],
)
def test_a_client_with_other_settings_than_the_server_is_named(setting, reason):
    overrides = f"defense=fl_top defense.share=0.02 {TINY} rounds=1"
    own = f"{SMALL} defense=fl_std {TINY} rounds=1" if "=fl" in setting else f"{SMALL} {overrides} {setting}"
    grid = InlineGrid(OtherSettings(own), 5, run_config={"overrides": f"{SMALL} {overrides}"})
    federated, _ = train(overrides, grid=grid)
    (record,) = federated.strategy.records
    (failure,) = record.failures
    assert failure.client == 2
    assert reason in failure.reason
    assert record.clients == 4


def replaced(values: Callable[[Tensor], Tensor]):
    def sabotage(order: Message, reply: Message, context: Context) -> Message:
        sent = decode(unpack_reply(reply).update, {VALUES: torch.zeros(int(N * 0.02))})[VALUES]
        return with_update(reply, encode({VALUES: values(sent)}))

    return sabotage


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (lambda v: torch.cat([v, v[:1]]), ""),
        (lambda v: v[:-1], ""),
        (lambda v: v.double(), ""),
        (lambda v: v * float("nan"), "values holds NaN or infinity"),
        (lambda v: v / 0, "values holds NaN or infinity"),
    ],
    ids=["one too many", "one too few", "another type", "nan", "infinity"],
)
@pytest.mark.parametrize("defense", ["fl_basic", "fl_top"])
def test_a_vector_that_cannot_be_is_its_clients_failure(defense, values, reason):
    federated, tap = train(
        f"defense={defense} defense.share=0.02 {TINY} rounds=1 clients=3", {1: replaced(values)}
    )
    (record,) = federated.strategy.records
    (failure,) = record.failures
    assert failure.client == 1
    assert reason in failure.reason
    assert record.clients == 2
    like = {VALUES: torch.zeros(int(N * 0.02))}
    good = [decode(unpack_reply(tap.exchanges[c][1]).update, like)[VALUES] for c in (0, 2)]
    moved = (flat(federated) - flat_model(federated))[federated.strategy.sketch.trained]
    torch.testing.assert_close(moved, (good[0] + good[1]) / 2, rtol=0, atol=1e-6)


def test_server_momentum_goes_on_where_the_last_round_ended():
    plain, _ = train(f"defense=fl_top defense.share=0.02 dtype=float64 {TINY} rounds=1")
    moved = flat(plain) - flat_model(plain)
    pushed, tap = train(
        f"defense=fl_top defense.share=0.02 dtype=float64 {TINY} rounds=2 strategy.momentum=0.5"
    )
    like = {VALUES: torch.zeros(int(N * 0.02)).double()}
    second = torch.stack([decode(unpack_reply(r).update, like)[VALUES] for _, r in tap.exchanges[5:]]).mean(0)
    expected = flat_model(pushed) + 1.5 * moved
    expected[pushed.strategy.coordinates] += second
    torch.testing.assert_close(flat(pushed), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("defense=fl_top defense.share=0", r"share must be in \(0, 1\], got 0"),
        ("defense=fl_basic defense.share=1.5", r"share must be in \(0, 1\], got 1.5"),
        ("defense=fl_top defense.public_steps=0", "steps must be at least 1, got 0"),
        ("defense=fl_top defense.public_lr=0", "public_lr must be above 0, got 0"),
        ("defense=fl_std strategy.downlink=change", "clients keep no model: downlink must be full"),
        ("defense=fl_std public.samples=80", "leave none of photos for the clients"),
    ],
)
def test_impossible_settings_are_refused(overrides, words):
    with pytest.raises(ValueError, match=words):
        server_parts(f"{SMALL} {TINY} {overrides}")


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="nothing here says how much memory is used")
@pytest.mark.parametrize("defense", ["fl_top", pytest.param("fl_std", marks=pytest.mark.slow)])
def test_thousands_of_clients_cost_the_memory_of_those_that_work(defense):
    rounds, small = 15, SMALL.replace("data.train_per_class=8 data.test_per_class=4 ", "")
    text = (
        f"{small} data=custom data._target_=own_parts.many_rows model=mlp model.hidden=[20000] "
        f"clients=2000 fraction=0.005 rounds={rounds} batch_size=2 defense={defense}"
    )
    parts = server_parts(text, WHOLE)
    model_bytes = 4 * parts.strategy.total_entries
    assert model_bytes > 1_800_000
    grid = InlineGrid(real_client_app, 2000, run_config={"overrides": text})
    used: dict[int, int] = {}

    def look(server_round: int, arrays: ArrayRecord) -> None:
        if server_round in (5, rounds):
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)  # else freed memory counts too
            used[server_round] = resident_bytes()

    parts.strategy.start(
        grid=grid,
        initial_arrays=hold({name: t.clone() for name, t in parts.model.state_dict().items()}),
        num_rounds=rounds,
        evaluate_fn=look,
    )
    assert [record.clients for record in parts.strategy.records] == [10] * rounds
    # were one version of the model kept in each round, this would be 10 of them
    assert used[rounds] - used[5] < 5 * model_bytes
