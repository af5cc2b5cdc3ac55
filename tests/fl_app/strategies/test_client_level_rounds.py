"""Differential privacy of whole clients in a federation: what they send, what it costs, and when it ends."""

import itertools
import json
import logging
import math
import statistics
import warnings
from functools import cache
from pathlib import Path

import pytest
import torch
from federations import SMALL, train, with_update
from flwr.app import Context, Message
from scipy.optimize import brentq
from scipy.stats import chi2, norm
from torch import Tensor

from fl_app.config.build import client_parts, server_parts
from fl_app.config.compose import split_overrides
from fl_app.experiments.job import run_job
from fl_app.sketches import flatten
from fl_app.training import Job, Rules
from fl_app.training.constrained import confine
from fl_app.wire import decode
from fl_app.wire.messages import VALUES, unpack_order, unpack_reply

TINY = "model=mlp model.hidden=[8] clients=10 fraction=0.5"
PRIVATE = f"{TINY} dp=client dp.secure=false"
FAINT = "dp.epsilon=null dp.noise_multiplier=1e-12"
N = 3072 * 8 + 8 + 8 * 10 + 10
DELTA = 1e-5


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


def uploads(parts, tap) -> list[dict[int, Tensor]]:
    """The vectors that came, by client, round by round."""
    rounds: dict[int, dict[int, Tensor]] = {record.round: {} for record in parts.strategy.records}
    like = {
        VALUES: torch.zeros(
            parts.strategy.sketch.size, dtype=next(iter(parts.strategy.weights.values())).dtype
        )
    }
    for sent, reply in tap.exchanges:
        order = unpack_order(sent).order
        rounds[order.round][order.client] = decode(unpack_reply(reply).update, like)[VALUES].double()
    return list(rounds.values())


def initial(parts) -> Tensor:
    return flatten(dict(parts.model.named_parameters())).clone()


class Undisturbed:
    """What clients would send without clipping and noise."""

    def __init__(self, overrides: str) -> None:
        text = f"{SMALL} {overrides}"
        self._parts, server = client_parts(text), server_parts(text)
        self._model, self._strategy = server.model.train(), server.strategy
        self.clients = server.config["clients"]

    def vector(self, weights: Tensor, round: int, client: int) -> Tensor:
        sketch = self._strategy.sketch_of(round)
        torch.nn.utils.vector_to_parameters(weights.clone(), list(self._model.parameters()))
        like = dict(self._model.named_parameters())
        job = Job(round, 0.1, torch.Generator(), rules=confine(Rules(), sketch.trained, like))
        data = self._parts.data_of(client, self.clients)
        return sketch.take(self._parts.trainer(self._model, data, job).update)

    def restore(self, vector: Tensor, round: int) -> Tensor:
        sketch = self._strategy.sketch_of(round)
        return flatten(sketch.restore(vector, dict(self._model.named_parameters())))


@pytest.mark.parametrize("defense", ["fl_std", "fl_top defense.share=0.02", "fl_basic defense.share=0.02"])
def test_with_hardly_any_noise_it_is_the_sum_over_the_expected_number_of_clients(defense):
    overrides = f"{PRIVATE} {FAINT} defense={defense} dp.clip=100 dtype=float64 rounds=3"
    federated, tap = train(overrides)
    came, oracle, weights = uploads(federated, tap), Undisturbed(overrides), initial(federated)
    assert len({len(one) for one in came}) > 1, "coins do not fall alike"
    for round, clients in enumerate(came, 1):
        total = sum(oracle.vector(weights, round, client) for client in clients)
        weights = weights + oracle.restore(total, round) / (0.5 * 10)
    # each client's noise has a deviation of 1e-10 or less, which training carries on
    torch.testing.assert_close(flatten(federated.strategy.weights), weights, rtol=0, atol=5e-8)
    assert [record.clients for record in federated.strategy.records] == [len(one) for one in came]


def test_every_client_s_vector_is_clipped_to_the_bound_and_keeps_its_direction():
    overrides = f"{PRIVATE} {FAINT} defense=fl_std dp.clip=0.05 dtype=float64 rounds=1"
    federated, tap = train(overrides)
    oracle, (came,) = Undisturbed(overrides), uploads(federated, tap)
    assert came
    for client, sent in came.items():
        raw = oracle.vector(initial(federated), 1, client)
        assert float(raw.norm()) > 0.05
        assert float(sent.norm()) <= 0.05 * (1 + 1e-6)
        torch.testing.assert_close(sent, raw * (0.05 / raw.norm()), rtol=0, atol=1e-9)


def test_the_noise_of_a_sum_has_the_deviation_that_is_accounted_for():
    sigma, clip = 1000.0, 0.01  # no client's own part is seen beside it
    federated, tap = train(
        f"{PRIVATE} defense=fl_std dtype=float64 rounds=3 dp.noise_multiplier={sigma} dp.clip={clip}"
    )
    before, low, high = initial(federated), *chi2.ppf([1e-6, 1 - 1e-6], N)
    sums = []
    for came in uploads(federated, tap):
        total = sum(came.values())
        sums.append(total)
        assert low < float((total**2).sum()) / (sigma * clip) ** 2 < high
        assert abs(float(total.mean())) < 5 * sigma * clip / math.sqrt(N)
        vectors = list(came.values())
        for one, other in itertools.pairwise(vectors):
            share = (sigma * clip) ** 2 / len(came)
            assert low < float((one**2).sum()) / share < high
            assert abs(float(one @ other)) < 6 * share * math.sqrt(N)
    assert abs(float(sums[0] @ sums[1])) < 6 * (sigma * clip) ** 2 * math.sqrt(N)
    torch.testing.assert_close(
        flatten(federated.strategy.weights), before + sum(sums) / 5, rtol=1e-9, atol=1e-9
    )


@cache
def divergences(sigma: float, rate: float):
    from opacus.accountants import RDPAccountant
    from opacus.accountants.analysis.rdp import compute_rdp

    orders = RDPAccountant.DEFAULT_ALPHAS
    return orders, compute_rdp(q=rate, noise_multiplier=sigma, steps=1, orders=orders)


def opacus_epsilon(sigma: float, rate: float, rounds: int) -> float:
    """What Opacus' RDPAccountant says of so many steps; it would compute every order anew at each call."""
    from opacus.accountants.analysis.rdp import get_privacy_spent

    orders, one_round = divergences(sigma, rate)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(get_privacy_spent(orders=orders, rdp=rounds * one_round, delta=DELTA)[0])


def renyi_epsilon(sigma: float) -> float:
    """One Gaussian release, by hand: divergence a / 2 sigma^2 at order a (Balle et al., 2020, Theorem 21)."""
    orders = [1 + k / 100 for k in range(1, 10_000)]
    return min(
        a / (2 * sigma**2) - (math.log(DELTA) + math.log(a)) / (a - 1) + math.log((a - 1) / a) for a in orders
    )


def exact_epsilon(sigma: float) -> float:
    """One Gaussian release (Balle and Wang, 2018, Theorem 8)."""

    def excess(epsilon: float) -> float:
        a, b = 1 / (2 * sigma), epsilon * sigma
        return norm.cdf(a - b) - math.exp(epsilon) * norm.cdf(-a - b) - DELTA

    return brentq(excess, 0, 200)


def test_both_epsilons_are_those_of_an_independent_computation():
    sigma = 8.0
    federated, tap = train(
        f"{PRIVATE} defense=fl_top defense.share=0.02 rounds=4 dp.epsilon=null dp.noise_multiplier={sigma}"
    )
    spent = dict.fromkeys(range(10), 0.0)
    for round, (record, came) in enumerate(
        zip(federated.strategy.records, uploads(federated, tap), strict=True), 1
    ):
        assert record.epsilon == pytest.approx(opacus_epsilon(sigma, 0.5, round), rel=0.01)
        for client in came:  # whose own noise has a deviation of sigma / sqrt(number of clients)
            spent[client] += len(came) / sigma**2
        alone = 1 / math.sqrt(max(spent.values()))
        assert record.epsilon_server == pytest.approx(renyi_epsilon(alone), rel=0.01)
        assert record.epsilon_server >= exact_epsilon(alone)
    assert max(spent.values()) > statistics.mean(spent.values())


def test_noise_is_found_for_a_budget_and_the_rounds_stay_within_it():
    federated, _ = train(f"{PRIVATE} defense=fl_top rounds=3 dp.epsilon=3 dp.delta={DELTA}")
    epsilons = [record.epsilon for record in federated.strategy.records]
    assert len(epsilons) == 3
    assert 0.98 * 3 < epsilons[-1] <= 3
    assert opacus_epsilon(federated.strategy.privacy.sigma, 0.5, 3) == pytest.approx(epsilons[-1], rel=0.01)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_round_of_nobody_moves_the_model_by_the_whole_noise(seed):
    """That a round stands still would tell that nobody was drawn, and so of any one client."""
    settings = (
        "fraction=0.05 clients=10 defense=fl_std rounds=3 dp.epsilon=null dp.noise_multiplier=2 dp.clip=0.1"
    )
    federated, tap = train(f"{PRIVATE} {settings} dtype=float64 seed={seed}")
    records, came = federated.strategy.records, uploads(federated, tap)
    empty = [round for round, one in enumerate(came, 1) if not one]
    assert len(records) == 3
    for round, record in enumerate(records, 1):
        assert record.epsilon == pytest.approx(opacus_epsilon(2.0, 0.05, round), rel=0.01)
        assert record.clients == len(came[round - 1])
    if len(empty) == 3:
        moved = flatten(federated.strategy.weights) - initial(federated)
        expected = math.sqrt(3) * 2 * 0.1 / (0.05 * 10)
        assert float(moved.std()) == pytest.approx(expected, rel=5 / math.sqrt(2 * N))


def test_the_server_adds_the_noise_of_a_client_whose_vector_is_lost():
    def lost(order: Message, reply: Message, context: Context) -> Message:
        return with_update(reply, b"?")

    overrides = (
        f"{PRIVATE} fraction=1.0 clients=5 defense=fl_std rounds=1 dp.epsilon=null dp.noise_multiplier=4 "
        "dp.clip=1e-3 dtype=float64"
    )
    for saboteurs in ({}, {2: lost}, dict.fromkeys(range(5), lost)):
        federated, _ = train(overrides, saboteurs)
        (record,) = federated.strategy.records
        assert record.clients == 5 - len(saboteurs)
        assert record.epsilon == pytest.approx(renyi_epsilon(4.0), rel=0.01)
        assert set(federated.strategy.account.server) == set(range(5))
        moved = flatten(federated.strategy.weights) - initial(federated)
        # the vectors are short beside the noise, which is the same whoever is missing
        assert float(moved.std()) == pytest.approx(4e-3 / 5, rel=6 / math.sqrt(2 * N))


def test_silent_clients_do_not_shorten_training():
    def lost(order: Message, reply: Message, context: Context) -> Message:
        return with_update(reply, b"?")

    overrides = f"{PRIVATE} fraction=1.0 clients=5 defense=fl_top rounds=3 dp.epsilon=1.5"
    whole, _ = train(overrides)
    fewer, _ = train(overrides, dict.fromkeys((1, 2, 3), lost))
    assert [r.epsilon for r in fewer.strategy.records] == [r.epsilon for r in whole.strategy.records]
    assert [r.clients for r in fewer.strategy.records] == [2, 2, 2]


@pytest.mark.parametrize("vanished", [0, 1, 3])
def test_the_noise_of_a_fixed_draw_shows_nobody_who_vanished(vanished):
    """Another client in one's place may vanish where this one answers: noise over their number would tell."""

    def lost(order: Message, reply: Message, context: Context) -> Message:
        return with_update(reply, b"?")

    federated, _ = train(
        f"{PRIVATE} defense=fl_std dp.sampling=fixed dp.clip=1e-3 dp.epsilon=null dp.noise_multiplier=4 "
        "rounds=1 fraction=1.0 clients=3",
        dict.fromkeys(range(vanished), lost),
    )
    moved = flatten(federated.strategy.weights) - initial(federated)
    # the vectors are short beside the noise
    assert float(moved.std()) == pytest.approx(4e-3 / 3, rel=6 / math.sqrt(2 * N))


def test_a_fixed_draw_is_divided_by_its_size():
    federated, tap = train(
        f"{PRIVATE} defense=fl_std dp.sampling=fixed dp.clip=100 dp.epsilon=null dp.noise_multiplier=0.01 "
        "dtype=float64 rounds=2 fraction=0.3"
    )
    came = uploads(federated, tap)
    assert [len(one) for one in came] == [3, 3]
    steps = sum(sum(one.values()) / 3 for one in came)
    torch.testing.assert_close(
        flatten(federated.strategy.weights), initial(federated) + steps, rtol=1e-9, atol=1e-9
    )
    # replace one: the sum may change by two clipping bounds, and coins hide nobody
    assert federated.strategy.records[-1].epsilon > opacus_epsilon(0.01, 0.3, 2)


def test_clients_say_nothing_beside_their_vector():
    federated, tap = train(f"{PRIVATE} defense=fl_std rounds=1 partition=dirichlet partition.alpha=0.3")
    replies = [unpack_reply(reply) for _, reply in tap.exchanges]
    assert replies
    assert {(r.answer.samples, r.answer.steps) for r in replies} == {(0, 5)}
    assert all((r.metrics, r.buffers, r.release) == ({}, b"", None) for r in replies)
    assert federated.strategy.records[0].train_loss is None


def test_noise_and_draws_of_the_operating_system_never_repeat_and_seeded_ones_do():
    def sent(secure: str) -> list[dict[int, Tensor]]:
        federated, tap = train(f"{PRIVATE} defense=fl_top rounds=2 seed=5 dp.secure={secure}")
        return uploads(federated, tap)

    def same(one, other) -> bool:
        return all(
            a.keys() == b.keys() and all(torch.equal(a[c], b[c]) for c in a)
            for a, b in zip(one, other, strict=True)
        )

    assert same(sent("false"), sent("false"))
    first, second = sent("true"), sent("true")
    for a, b in zip(first, second, strict=True):
        assert not any(torch.equal(a[client], b[client]) for client in a.keys() & b.keys())
    assert not same(first, second)
    assert server_parts(f"{SMALL} {TINY} defense=fl_top dp=client").strategy.privacy.replayable is False


@pytest.mark.parametrize("defense", ["fl_top defense.share=0.02", "fl_basic defense.share=0.02", "fl_std"])
def test_the_bound_is_the_norm_of_a_round_on_public_samples(defense):
    """Of FL-BASIC the median over a hundred random sets."""
    parts = server_parts(f"{SMALL} {PRIVATE} defense={defense} dtype=float64 rounds=1")
    strategy, like = parts.strategy, dict(parts.model.named_parameters())
    data, norms = strategy.public.data, []
    assert len(data) == 10
    for round in range(1, 101 if "basic" in defense else 2):
        sketch = strategy.sketch_of(round)
        start = initial(parts)
        weights, passes = start.clone(), -(-5 * 4 // 10)
        batches = [indices for k in range(passes) for indices in data.order(k).split(4)]
        for indices in batches[:5]:
            torch.nn.utils.vector_to_parameters(weights, list(parts.model.parameters()))
            batch = data.batch(indices, torch.device("cpu"), torch.float64)
            loss = torch.nn.functional.cross_entropy(parts.model(batch.inputs), batch.labels)
            moved = weights - 0.1 * flatten(
                dict(zip(like, torch.autograd.grad(loss, list(like.values())), strict=True))
            )
            if sketch.trained is None:
                weights = moved
            else:
                weights[sketch.trained] = moved[sketch.trained]
        torch.nn.utils.vector_to_parameters(start, list(parts.model.parameters()))
        norms.append(float((weights - start).norm()))
    assert len(set(norms)) == len(norms)
    assert strategy.clip == pytest.approx(statistics.median(norms), rel=1e-9)


def test_a_bound_of_ones_own_is_taken_and_told_to_clients():
    federated, tap = train(f"{PRIVATE} defense=fl_top dp.clip=0.25 rounds=1")
    assert {unpack_order(sent).plan.clip for sent, _ in tap.exchanges} == {0.25}
    assert {unpack_order(sent).plan.cohort for sent, _ in tap.exchanges} == {len(tap.exchanges)}
    assert federated.strategy.clip == 0.25


def read(folder: Path) -> dict:
    return json.loads((folder / "result.json").read_text())


def job(overrides: str, folder: Path) -> Path:
    return run_job([*split_overrides(f"{SMALL} {TINY} dp=client baseline=false {overrides}")], folder=folder)


def test_training_stops_before_the_budget_is_passed_and_says_so(tmp_path):
    folder = job("defense=fl_top rounds=50 dp.epsilon=4.5 dp.noise_multiplier=1.5", tmp_path / "run")
    result = read(folder)
    rows = result["rounds"]
    assert result["status"] == "finished"
    assert 2 < len(rows) < 50
    assert rows[-1]["epsilon"] <= 4.5 < opacus_epsilon(1.5, 0.5, len(rows) + 1)
    assert rows[-1]["accuracy"] is not None
    assert result["summary"]["accuracy"] == rows[-1]["accuracy"]
    assert any(f"stopped before round {len(rows) + 1}" in note for note in result["notes"])
    assert (result["summary"]["epsilon_unit"], result["privacy"]["replayable"]) == ("client", True)
    assert any("can be replayed from the seed" in note for note in result["notes"])
    assert any("epsilon_server, not epsilon" in note for note in result["notes"])
    assert (folder / "model.safetensors").is_file()


def test_a_budget_for_not_even_one_round_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r"dp: stopped before round 1: .* the budget is 0.5: more noise"):
        job("defense=fl_top rounds=2 dp.epsilon=0.5 dp.noise_multiplier=0.5", tmp_path / "run")
    assert read(tmp_path / "run")["status"] == "failed"


def test_a_fixed_draw_and_noise_of_the_operating_system_are_labelled(tmp_path):
    folder = job("defense=fl_top rounds=1 dp.sampling=fixed dp.secure=true", tmp_path / "run")
    result = read(folder)
    assert result["privacy"]["adjacency"] == "replace one client"
    assert result["privacy"]["mechanism"] == "Gaussian"
    assert not any("replayed" in note for note in result["notes"])
    assert result["privacy"]["replayable"] is False


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("dp.epsilon=null", "give epsilon or noise_multiplier, got neither"),
        ("dp.noise_multiplier=0", "noise_multiplier must be finite and above 0, got 0"),
        ("dp.clip=-1", "clip must be finite and above 0, got -1"),
        ("dp.sampling=all", "sampling must be one of .*, got 'all'"),
        ("dp.accountant=me", "accountant must be one of .*; got 'me'"),
        ("dp.delta=1", r"delta must be in \(0, 1\), got 1"),
        ("dp.epsilon=-1", "limit must be above 0, got -1"),
        ("dp.secure=maybe", "secure must be one of .*, got 'maybe'"),
        (
            "dp.accountant=prv secagg=on secagg.min_clients=2",
            "the prv accountant knows continuous noise only",
        ),
        ("secagg=on secagg.min_clients=3", "are drawn in some of 2 rounds with a chance of"),
        ("secagg=on secagg.min_clients=1", "min_clients must be at least 2, got 1"),
    ],
)
def test_settings_that_protect_nobody_are_refused(overrides, words):
    with pytest.raises(ValueError, match=f"dp: .*{words}"):
        server_parts(f"{SMALL} {PRIVATE} defense=fl_std {overrides}")


@pytest.mark.parametrize("honest", [1.0, 0.5])
def test_the_server_s_epsilon_leaves_out_the_noise_of_clients_that_collude_with_it(honest):
    federated, _ = train(
        f"{PRIVATE} clients=6 fraction=1 defense=fl_top defense.share=0.001 rounds=1 secagg=on "
        f"dp.epsilon=null dp.noise_multiplier=4 dp.honest={honest}"
    )
    others = 6 - 6 * (1 - honest) - 1
    (signal,) = set(federated.strategy.account.server.values())
    assert signal == pytest.approx(6 / (others * 4**2))
    assert federated.strategy.privacy.assumed_honest == honest
