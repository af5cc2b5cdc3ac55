"""ADGP in a federation: the papers' algorithm, exact downloads, and broadcasters that cannot be trusted."""

import logging
import math
from fractions import Fraction

import pytest
import torch
from federations import SMALL, Wiretap, train, with_update
from flwr.app import Context, Message, RecordDict

from fl_app.adversary.passive import PassiveServer, Public, observe
from fl_app.client.client import Client
from fl_app.client_app import app as real_client_app
from fl_app.config.build import client_parts, server_parts
from fl_app.config.compose import ConfigError
from fl_app.flower import InlineGrid
from fl_app.flower.held_tensor import hold
from fl_app.flower.tapped import TappedGrid
from fl_app.seeding import SERVER, generator_for
from fl_app.training import Job
from fl_app.wire import decode, encode
from fl_app.wire.messages import LOCATE, TRAIN, read_locations, read_order, unpack_reply

ADGP = "defense=adgp model=mlp model.hidden=[8] dtype=float64"


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


def ranking(values: list[float]) -> list[int]:
    return sorted(range(len(values)), key=lambda i: (-abs(values[i]), i))


def drawn(round: int, clients: int = 5) -> list[int]:
    """The order in which the server asks clients for locations."""
    return torch.randperm(clients, generator=generator_for(0, round, SERVER, "broadcaster")).tolist()


def one_by_one(overrides: str, rounds: int) -> dict[str, torch.Tensor]:
    """Algorithm 2 in plain loops: k = 0.2, k1 = 0.05, lr 0.1."""
    text = f"{SMALL} {overrides}"
    parts, model = client_parts(text), server_parts(text).model.train()
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    residual = [{name: torch.zeros_like(w) for name, w in weights.items()} for _ in range(5)]
    for round in range(1, rounds + 1):
        p = []
        for client in range(5):
            model.load_state_dict(weights)
            job = Job(round, 0.1, torch.Generator())
            gradient = parts.trainer(model, parts.data_of(client, 5), job).update
            p.append({name: gradient[name] + residual[client][name] for name in weights})
        mean = {name: torch.zeros_like(w) for name, w in weights.items()}
        for name, weight in weights.items():
            n = weight.numel()
            named = p[drawn(round)[0]][name].flatten().tolist()
            locations = set(ranking(named)[: max(1, math.floor(Fraction("0.4") * n))])
            for client in range(5):
                values = p[client][name].flatten().tolist()
                ranked = ranking(values)
                own_top = set(ranked[: math.ceil(Fraction("0.05") * n)])
                offered = [i for i in ranked if i in locations and i not in own_top]
                kept = set(offered[: max(1, math.floor(Fraction("0.2") * n))])
                sent = torch.tensor(
                    [v if i in kept else 0.0 for i, v in enumerate(values)], dtype=torch.float64
                )
                residual[client][name] = p[client][name] - sent.view(weight.shape)
                mean[name] += sent.view(weight.shape) / 5
        weights = {name: weights[name] - 0.1 * mean[name] for name in weights}
    return weights


def test_it_is_the_algorithm_in_plain_loops():
    federated, _ = train(f"{ADGP} rounds=3")
    expected = one_by_one(f"{ADGP} rounds=3", 3)
    torch.testing.assert_close(federated.strategy.weights, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("location", ["random", "vote"])
def test_uploads_say_where_they_are_within_the_broadcast(location):
    federated, tap = train(f"defense=adgp rounds=3 defense.location={location}")
    weights = federated.strategy.weights
    for sent, reply in tap.exchanges:
        locations = decode(read_locations(sent), {name: w.bool() for name, w in weights.items()})
        blob = unpack_reply(reply).update
        update = decode(blob, weights, within=locations)
        for name, tensor in update.items():
            assert not tensor[~locations[name]].any(), name
        named = sum(int(mask.sum()) for mask in locations.values())
        values = sum(int((tensor != 0).sum()) for tensor in update.values())
        assert len(blob) <= named / 8 + 4 * values + 200


def test_downloads_are_small_and_restore_the_weights_bit_for_bit():
    federated, tap = train("defense=adgp rounds=4")
    bases = [read_order(sent).base for sent, _ in tap.exchanges]
    first = drawn(1)[0]
    # the broadcaster holds the model already
    assert [base for i, base in enumerate(bases[:5]) if i != first] == [-1] * 4
    assert bases[first] == 0
    for round in (2, 3, 4):
        of_round = bases[5 * (round - 1) : 5 * round]
        expected = [round - 1 if i == drawn(round)[0] else round - 2 for i in range(5)]
        assert of_round == expected
    whole, other = train("defense=adgp rounds=4 strategy.downlink=full")
    for (_, a), (_, b) in zip(tap.exchanges, other.exchanges, strict=True):
        assert unpack_reply(a).update == unpack_reply(b).update
    torch.testing.assert_close(federated.strategy.weights, whole.strategy.weights, rtol=0, atol=0)
    assert federated.strategy.records[-1].downlink_bytes < 0.5 * whole.strategy.records[-1].downlink_bytes


def test_the_model_moves_only_at_the_broadcast_positions():
    before = {
        n: p.detach().clone() for n, p in server_parts(f"{SMALL} defense=adgp").model.named_parameters()
    }
    federated, _ = train("defense=adgp rounds=1")
    for name, weight in federated.strategy.weights.items():
        assert torch.equal(
            weight[~federated.strategy.within[name]], before[name][~federated.strategy.within[name]]
        )
        assert (weight != before[name]).any(), name


def test_the_broadcaster_goes_through_its_data_once(monkeypatch):
    worked = []
    original = Client._work

    def counting(self, start, parcel):
        worked.append((parcel.order.round, self.client))
        return original(self, start, parcel)

    monkeypatch.setattr(Client, "_work", counting)
    train("defense=adgp rounds=3 defense.location=vote")
    assert sorted(worked) == [(round, client) for round in (1, 2, 3) for client in range(5)]


def masks(change) -> bytes:
    weights = dict(server_parts(f"{SMALL} defense=adgp").model.named_parameters())
    return encode({name: change(name, w.detach()).bool() for name, w in weights.items()})


def first_share(tensor: torch.Tensor, share: float) -> torch.Tensor:
    n = tensor.numel()
    return (torch.arange(n) < max(1, math.floor(Fraction(str(share)) * n))).view(tensor.shape)


def all_ones(order: Message, reply: Message, context: Context) -> Message:
    return with_update(reply, masks(lambda name, w: torch.ones_like(w)))


def all_zeros(order: Message, reply: Message, context: Context) -> Message:
    return with_update(reply, masks(lambda name, w: torch.zeros_like(w)))


def one_layer_only(order: Message, reply: Message, context: Context) -> Message:
    return with_update(
        reply, masks(lambda name, w: torch.ones_like(w) if name == "conv1.weight" else torch.zeros_like(w))
    )


def wrong_count(order: Message, reply: Message, context: Context) -> Message:
    return with_update(reply, masks(lambda name, w: first_share(w, 0.41)))


def wrong_shape(order: Message, reply: Message, context: Context) -> Message:
    return with_update(reply, encode({"w": torch.ones(3, dtype=torch.bool)}))


def garbage(order: Message, reply: Message, context: Context) -> Message:
    return with_update(reply, b"\x00\x01 not masks")


def dies(order: Message, reply: Message, context: Context) -> Message:
    raise RuntimeError("disk on fire")


RUBBISH = {
    all_ones: "must have 360 of 900 positions, got 900",
    all_zeros: "must have 360 of 900 positions, got 0",
    one_layer_only: "must have 360 of 900 positions, got 900",
    wrong_count: "must have 360 of 900 positions, got 369",
    wrong_shape: "its locations are refused",
    garbage: "its locations are refused",
    dies: "disk on fire",
}


@pytest.mark.parametrize("location", ["random", "vote"])
@pytest.mark.parametrize("bad", RUBBISH, ids=lambda f: f.__name__)
def test_rubbish_for_locations_is_refused_named_and_replaced(bad, location):
    # whoever is asked first in round 1 answers rubbish
    culprit = drawn(1)[0]
    federated, tap = train(f"defense=adgp rounds=1 defense.location={location}", {culprit: bad}, kind=LOCATE)
    (record,) = federated.strategy.records
    (failure,) = record.failures
    assert failure.client == culprit
    assert RUBBISH[bad] in failure.reason
    assert record.clients == 4
    asked = [read_order(sent).client for sent, _ in tap.exchanges]
    assert set(asked) == set(drawn(1)[: (2 if location == "random" else 4)])
    assert federated.strategy.within is not None


def test_when_nobody_names_locations_the_model_is_unchanged():
    federated, _ = train("defense=adgp rounds=2", dict.fromkeys(range(5), all_zeros), kind=LOCATE)
    for record in federated.strategy.records:
        assert record.clients == 0
        assert sorted(failure.client for failure in record.failures) == list(range(5))
        assert any("no client named locations" in note for note in record.notes)
    initial = {name: p.detach() for name, p in federated.model.named_parameters()}
    torch.testing.assert_close(federated.strategy.weights, initial, rtol=0, atol=0)


def smallest_instead(order: Message, reply: Message, context: Context) -> Message:
    """Steer the round to where nothing happens: as many positions as asked for, but the complement's."""
    weights = dict(server_parts(f"{SMALL} defense=adgp").model.named_parameters())
    like = {name: w.detach().bool() for name, w in weights.items()}
    honest = decode(unpack_reply(reply).update, like)
    steered = {}
    for name, mask in honest.items():
        flat, out = mask.flatten(), torch.zeros(mask.numel(), dtype=torch.bool)
        order_ = torch.cat([torch.nonzero(~flat).flatten(), torch.nonzero(flat).flatten()])
        out[order_[: int(flat.sum())]] = True
        steered[name] = out.view(mask.shape)
    return with_update(reply, encode(steered))


def test_a_steering_client_chooses_alone_when_drawn_but_is_outvoted_and_named_in_a_vote():
    culprit = drawn(1)[0]
    alone, _ = train("defense=adgp rounds=1 batch_size=32", {culprit: smallest_instead}, kind=LOCATE)
    honest, _ = train("defense=adgp rounds=1 batch_size=32", kind=LOCATE)
    assert not alone.strategy.records[0].failures
    voted, _ = train(
        "defense=adgp rounds=1 batch_size=32 defense.location=vote defense.voters=5",
        {culprit: smallest_instead},
        kind=LOCATE,
    )
    notes = voted.strategy.records[0].notes
    assert len(notes) == 1
    assert f"client {culprit} was outvoted" in notes[0]
    assert overlap(voted, honest) > overlap(alone, honest) + 0.2


def overlap(a, b) -> float:
    common = sum(int((a.strategy.within[n] & m).sum()) for n, m in b.strategy.within.items())
    return common / sum(int(m.sum()) for m in b.strategy.within.values())


def test_an_honest_vote_names_nobody():
    federated, _ = train("defense=adgp rounds=3 batch_size=16 defense.location=vote defense.voters=4")
    assert [record.notes for record in federated.strategy.records] == [[], [], []]


def test_an_update_that_was_refused_is_sent_again_with_the_next_one():
    """sent + residual = sum of gradients, whatever was counted."""
    overrides = "defense=adgp clients=1 rounds=2 dtype=float64"
    refused = {"done": False}

    def refuse_first(order: Message, reply: Message, context: Context) -> Message:
        if not refused["done"]:
            refused["done"] = True
            return with_update(reply, b"garbled on its way")
        return reply

    text = f"{SMALL} {overrides}"
    grid = InlineGrid(_Garbling(refuse_first), 1, run_config={"overrides": text})
    federated, tap = train(overrides, grid=grid)
    parts, model = client_parts(text), server_parts(text).model.train()
    gradients = [
        parts.trainer(model, parts.data_of(0, 1), Job(round, 0.1, torch.Generator())).update
        for round in (1, 2)
    ]
    within = federated.strategy.within
    sent = decode(unpack_reply(tap.exchanges[-1][1]).update, federated.strategy.weights, within=within)
    state = grid.context(next(iter(grid.get_node_ids()))).state
    residual = next(record for name, record in state.items() if name.endswith("/transform"))
    for name, tensor in sent.items():
        e = torch.from_numpy(residual[f"defense/e/{name}"].numpy())
        torch.testing.assert_close(tensor + e, gradients[0][name] + gradients[1][name], rtol=0, atol=1e-12)


class _Garbling(type(real_client_app)):
    def __init__(self, garble) -> None:
        super().__init__()
        self._garble = garble

    def __call__(self, message: Message, context: Context) -> Message:
        reply = real_client_app(message, context)
        return self._garble(message, reply, context) if message.metadata.message_type == TRAIN else reply


def test_a_broadcaster_that_lost_its_state_gets_the_whole_model_and_the_round_goes_on():
    text = f"{SMALL} defense=adgp rounds=3 defense.error_feedback=false"
    grid = InlineGrid(real_client_app, 5, run_config={"overrides": text})
    original = grid.send_and_receive

    def wiping(messages, *, timeout=None):
        messages = list(messages)
        for message in messages:
            # the second time it has the whole model and nothing to lose
            if message.metadata.message_type == LOCATE and read_order(message).base == 1:
                grid.context(message.metadata.dst_node_id).state = RecordDict()
        return original(messages, timeout=timeout)

    grid.send_and_receive = wiping
    federated, _ = train("defense=adgp rounds=3 defense.error_feedback=false", grid=grid)
    undisturbed, _ = train("defense=adgp rounds=3 defense.error_feedback=false")
    assert [record.clients for record in federated.strategy.records] == [5, 5, 5]
    torch.testing.assert_close(federated.strategy.weights, undisturbed.strategy.weights, rtol=0, atol=0)


def test_a_client_that_fails_after_naming_locations_starts_from_the_whole_model():
    culprit = drawn(2)[0]

    def fails_in_round_2(order: Message, reply: Message, context: Context) -> Message:
        return with_update(reply, b"?") if read_order(order).round == 2 else reply

    federated, tap = train("defense=adgp rounds=4", {culprit: fails_in_round_2})
    assert [record.clients for record in federated.strategy.records] == [5, 4, 5, 5]
    of_culprit = [read_order(sent) for sent, _ in tap.exchanges if read_order(sent).client == culprit]
    assert of_culprit[2].round == 3
    assert of_culprit[2].base in (-1, 2)  # the whole model; or it named locations again and holds it


def test_it_works_with_a_part_of_the_clients():
    federated, _ = train("defense=adgp clients=10 fraction=0.3 rounds=3")
    assert [record.clients for record in federated.strategy.records] == [3, 3, 3]
    assert not any(record.failures for record in federated.strategy.records)


def test_an_attacked_broadcaster_reveals_its_locations_and_the_truth_that_belongs_to_them():
    text = f"{SMALL} defense=adgp rounds=1"
    parts = server_parts(text)
    auditor = PassiveServer(
        rounds=[1],
        clients="all",
        model=lambda: (parts.strategy.weights, parts.strategy.buffers),
        read=parts.strategy.see,
        public=parts.public,
        batch_size=1,
    )
    config = {"overrides": text}
    grid = InlineGrid(real_client_app, 5, run_config=config, node_config={"allow-audit": True})
    parts.strategy.start(
        grid=TappedGrid(TappedGrid(grid, Wiretap()), auditor),
        initial_arrays=hold({name: t.clone() for name, t in parts.model.state_dict().items()}),
        num_rounds=1,
    )
    assert [s.order.client for s in auditor.sightings] == list(range(5))
    assert [s.broadcaster for s in auditor.sightings] == [client == drawn(1)[0] for client in range(5)]
    public = Public(10, (3, 32, 32), (0.5,) * 3, (0.5,) * 3, (), True)
    for sighting in auditor.sightings:
        assert sighting.answer.samples == 1
        assert sighting.truth is not None
        obs = observe(sighting, parts.model, public, grant_labels=False)
        assert obs.locations is not None
        assert obs.broadcaster == sighting.broadcaster
        raw = observe(sighting, parts.model, public, grant_labels=False, undefended=True)
        assert raw.locations is None
        if sighting.broadcaster:
            for name, mask in obs.locations.items():
                inside, outside = raw.update[name].abs()[mask], raw.update[name].abs()[~mask]
                assert not outside.numel() or inside.min() >= outside.max(), name


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("defense.k=0.6", "k must be in"),
        ("defense.k1=0.2", "k1 in"),
        ("strategy.momentum=0.9", "momentum and weight_decay must be 0"),
        ("strategy.weight_decay=0.1", "momentum and weight_decay must be 0"),
        ("defense.location=first", "location must be one of random, vote"),
        ("defense.location=vote defense.voters=1", "voters must be at least 2"),
        ("strategy=fed_avg", "defense=adgp brings its own"),
    ],
)
def test_impossible_settings_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        server_parts(f"{SMALL} defense=adgp {overrides}")
