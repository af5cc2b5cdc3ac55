"""Laws of a whole federation on the inline engine."""

import logging

import pytest
import torch
from federations import SMALL, train
from flwr.common.serde import recorddict_to_proto
from torch.nn import functional as F

from fl_app.config.build import client_parts, server_parts
from fl_app.training import parameters
from fl_app.wire import decode
from fl_app.wire.messages import unpack_order, unpack_reply


@pytest.fixture(autouse=True)
def _quiet(caplog):
    logging.getLogger("flwr").setLevel(logging.ERROR)


@pytest.mark.parametrize("model", ["lenet", "lenet_sigmoid", "mlp"])
@pytest.mark.parametrize("server", ["", "strategy.momentum=0.9 strategy.weight_decay=0.01"])
def test_undefended_fed_sgd_is_plain_sgd_on_the_joined_batch(model, server):
    overrides = f"defense=none dtype=float64 rounds=20 clients=4 model={model} {server}"
    federated, _ = train(overrides)

    text = f"{SMALL} {overrides}"
    parts = client_parts(text)
    net = server_parts(text).model.train()
    momentum, decay = (0.9, 0.01) if server else (0.0, 0.0)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=momentum, weight_decay=decay)
    for round in range(20):
        batches = []
        for client in range(4):
            data = parts.data_of(client, 4)
            indices = data.window(round * 4, 4)
            batches.append(data.batch(indices, torch.device("cpu"), torch.float64))
        sgd.zero_grad()
        joined = torch.cat([b.inputs for b in batches]), torch.cat([b.labels for b in batches])
        F.cross_entropy(net(joined[0]), joined[1]).backward()
        sgd.step()
    expected = {name: p.detach() for name, p in parameters(net).items()}
    torch.testing.assert_close(federated.strategy.weights, expected, rtol=0, atol=1e-9)


def test_clients_of_unequal_size_count_by_their_samples():
    # 80 samples, Dirichlet: some clients have fewer than a batch
    overrides = (
        "defense=none dtype=float64 rounds=3 clients=4 partition=dirichlet partition.alpha=0.2 batch_size=40"
    )
    federated, _ = train(overrides)
    net = server_parts(f"{SMALL} {overrides}").model.train()
    parts = client_parts(f"{SMALL} {overrides}")
    counts = [min(40, len(parts.data_of(client, 4))) for client in range(4)]
    assert len(set(counts)) > 1
    for round in range(3):
        batches = [
            parts.data_of(c, 4).batch(
                parts.data_of(c, 4).window(round * n, n), torch.device("cpu"), torch.float64
            )
            for c, n in enumerate(counts)
        ]
        inputs, labels = torch.cat([b.inputs for b in batches]), torch.cat([b.labels for b in batches])
        grads = torch.autograd.grad(F.cross_entropy(net(inputs), labels), list(net.parameters()))
        with torch.no_grad():
            for p, g in zip(net.parameters(), grads, strict=True):
                p -= 0.1 * g
    expected = {name: p.detach() for name, p in parameters(net).items()}
    torch.testing.assert_close(federated.strategy.weights, expected, rtol=0, atol=1e-9)


def test_fed_avg_with_one_full_batch_step_is_fed_sgd():
    common = "defense=none dtype=float64 clients=4 batch_size=20 rounds=3"
    sgd, _ = train(common)
    avg, _ = train(f"{common} strategy=fed_avg")
    torch.testing.assert_close(sgd.strategy.weights, avg.strategy.weights, rtol=0, atol=1e-12)


def test_fed_avg_of_one_client_is_its_own_training():
    overrides = (
        "strategy=fed_avg clients=1 dtype=float64 defense=none rounds=2 batch_size=16 "
        "training.epochs=2 training.momentum=0.9 training.weight_decay=0.001"
    )
    federated, _ = train(overrides)
    text = f"{SMALL} {overrides}"
    data, net = client_parts(text).data_of(0, 1), server_parts(text).model.train()
    for round in range(2):
        sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.001)
        for epoch in range(2):
            for indices in data.order(round * 2 + epoch).split(16):
                batch = data.batch(indices, torch.device("cpu"), torch.float64)
                sgd.zero_grad()
                F.cross_entropy(net(batch.inputs), batch.labels).backward()
                sgd.step()
    expected = {name: p.detach() for name, p in parameters(net).items()}
    torch.testing.assert_close(federated.strategy.weights, expected, rtol=0, atol=1e-9)


def wire_bytes(overrides: str) -> list[bytes]:
    _, tap = train(overrides)
    return [
        recorddict_to_proto(message.content).SerializeToString(deterministic=True)
        for exchange in tap.exchanges
        for message in exchange
    ]


@pytest.mark.parametrize(
    "overrides", ["defense=dgp rounds=3", "strategy=fed_avg defense=topk fraction=0.6 rounds=3"]
)
def test_two_runs_give_byte_identical_wire_traffic(overrides):
    first = wire_bytes(overrides)
    assert first == wire_bytes(overrides)
    assert first != wire_bytes(f"{overrides} seed=1")


def test_what_travels_down_is_a_change_and_restores_the_weights_bit_for_bit():
    federated, tap = train("defense=dgp rounds=3")
    orders = [unpack_order(sent).order for sent, _ in tap.exchanges]
    assert [o.base for o in orders] == [-1] * 5 + [0] * 5 + [1] * 5
    records = federated.strategy.records
    assert records[1].downlink_bytes < records[0].downlink_bytes
    # had a client restored other weights than the server's, its next gradient would differ
    whole, other = train("defense=dgp rounds=3 strategy.downlink=full")
    for (_, a), (_, b) in zip(tap.exchanges, other.exchanges, strict=True):
        assert unpack_reply(a).update == unpack_reply(b).update
    torch.testing.assert_close(federated.strategy.weights, whole.strategy.weights, rtol=0, atol=0)


def test_bytes_are_those_of_the_serialised_contents():
    federated, tap = train("defense=topk rounds=2")
    for record, exchanges in zip(
        federated.strategy.records, (tap.exchanges[:5], tap.exchanges[5:]), strict=True
    ):
        down, up = (
            sum(len(recorddict_to_proto(m[side].content).SerializeToString()) for m in exchanges)
            for side in (0, 1)
        )
        assert (record.downlink_bytes, record.uplink_bytes) == (down, up)
        dense = 4 * sum(p.numel() for p in federated.model.parameters())
        assert record.dense_bytes == 2 * 5 * dense


def test_dgp_sends_a_fifth_of_every_layer():
    federated, tap = train("defense=dgp rounds=1")
    update = decode(unpack_reply(tap.exchanges[0][1]).update, federated.strategy.weights)
    for name, tensor in update.items():
        n = tensor.numel()
        assert int((tensor != 0).sum()) <= n - -(-n * 5 // 100) - n * 75 // 100, name


def test_partial_participation_draws_some_clients_and_sends_the_whole_model():
    federated, tap = train("clients=10 fraction=0.3 rounds=4 defense=none")
    drawn = [unpack_order(sent).order.client for sent, _ in tap.exchanges]
    assert [record.clients for record in federated.strategy.records] == [3] * 4
    assert len(set(map(tuple, (drawn[i : i + 3] for i in range(0, 12, 3))))) > 1
    assert all(unpack_order(sent).order.base == -1 for sent, _ in tap.exchanges)
