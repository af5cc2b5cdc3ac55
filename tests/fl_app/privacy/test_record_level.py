"""Noise of single records beside that of their client: what it costs, and that clients add it."""

import json
import logging
import math

import pytest
import torch
from federations import SMALL, train
from scipy.stats import chi2
from torch import nn

from fl_app.client.vector_client import VectorClient
from fl_app.config.build import client_parts, server_parts
from fl_app.config.compose import ConfigError
from fl_app.data import Samples
from fl_app.defenses import Defense, fl_top, with_records
from fl_app.experiments.job import run_job
from fl_app.privacy import RecordLevel
from fl_app.privacy.draws import OwnDraws
from fl_app.privacy.gaussian_privacy import gaussian_epsilon
from fl_app.strategies.charges import RecordCharges
from fl_app.training import Job, LocalData, run_epochs
from fl_app.wire.messages import Order

TINY = f"{SMALL} defense=fl_std model=mlp model.hidden=[8] clients=4 fraction=1 dp=both dp.clip=1"
DELTA = 1e-5


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


def level(**settings) -> RecordLevel:
    return RecordLevel(**{"rounds": 10, "steps": 5} | settings)


@pytest.mark.parametrize(("rate", "epsilon"), [(0.1, 4.0), (0.3, 1.0), (1.0, 8.0), (1.0, 0.05)])
def test_the_noise_keeps_the_budget_by_another_accountant(rate, epsilon):
    dp_accounting = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    from dp_accounting import pld

    logging.getLogger("absl").setLevel(logging.ERROR)
    records = level(rate=rate, epsilon=epsilon)
    one = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(records.sigma))
    events = dp_accounting.SelfComposedDpEvent(one, 10 * 5)
    exact = pld.PLDAccountant().compose(events).get_epsilon(DELTA)
    assert 0.75 * epsilon < exact <= epsilon


def test_without_sampling_the_cost_is_that_of_one_gaussian():
    charges = RecordCharges(level(rate=1.0, noise_multiplier=7.0, accountant="auto"))
    assert charges.epsilon == 0
    charges.charge([0, 1])
    charges.charge([1])
    assert charges.epsilon == pytest.approx(gaussian_epsilon(math.sqrt(2 * 5) / 7, DELTA), rel=1e-6)
    again = RecordCharges(level(rate=1.0, noise_multiplier=7.0, accountant="auto"))
    again.restore(charges.history())
    assert again.epsilon == charges.epsilon


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": 0.0},
        {"rate": 1.5},
        {"epsilon": 0.0},
        {"epsilon": math.nan},
        {"delta": 1.0},
        {"clip": math.inf},
        {"steps": 0},
        {"rounds": 2.5},
        {"noise_multiplier": 0.0},
        {"accountant": "none"},
        {"epsilon": 1e-9},
    ],
)
def test_settings_that_protect_no_record_are_refused(wrong):
    with pytest.raises(ValueError, match=r"RecordLevel|calibrate"):
        level(**wrong)


def update(records: RecordLevel, inputs: torch.Tensor, *, wide: int = 4000, seed: int = 0) -> torch.Tensor:
    """What a client of a linear model sends after its local steps, in units of the learning rate."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(wide, 2, bias=False))
    nn.init.zeros_(model[1].weight)
    rules = with_records(Defense(), records).rules
    data = LocalData(Samples(inputs, torch.zeros(len(inputs), dtype=torch.int64)), (), (), 0, 0)
    job = Job(1, 1e-6, torch.Generator().manual_seed(seed), rules)
    return next(iter(run_epochs(steps=records.steps)(model, data, job).update.values())).double() / 1e-6


@pytest.mark.parametrize(("rate", "held"), [(1.0, 3), (0.25, 3), (0.25, 40)])
def test_the_noise_of_local_steps_has_the_deviation_that_is_accounted_for(rate, held):
    records = level(rate=rate, noise_multiplier=3.0, clip=0.5)
    noise = update(records, torch.zeros(held, 4000))
    expected = 5 * (3.0 * 0.5 / (rate * held)) ** 2
    low, high = chi2.ppf([1e-6, 1 - 1e-6], noise.numel()) / noise.numel()
    assert low < float(noise.square().mean()) / expected < high


def test_a_record_moves_a_step_by_the_bound_at_most_whatever_the_others_are():
    records = level(rate=1.0, noise_multiplier=1e-9, clip=0.5)
    one = torch.zeros(3, 4000)
    one[0, 0] = 1e6
    moved = update(records, one) - update(records, torch.zeros(3, 4000))
    assert float(moved.norm()) == pytest.approx(5 * 0.5 / 3, rel=1e-6)


def test_records_are_drawn_by_a_public_rate_and_an_empty_draw_is_noise_alone():
    records = level(rate=0.2, steps=400, noise_multiplier=1e-9, clip=0.5)
    one = torch.zeros(2, 20)
    one[0, 0] = 100
    drawn = float(update(records, one, wide=20).norm()) / (0.5 / (0.2 * 2))
    assert 400 * 0.2 - 5 * 8 < drawn < 400 * 0.2 + 5 * 8
    assert drawn == pytest.approx(round(drawn), abs=1e-3)


def test_a_defense_without_records_stays_as_it_is_and_one_with_them_tells_no_release():
    plain = fl_top(0.1)
    assert with_records(plain, None) is plain
    noisy = with_records(plain, level())
    assert noisy.release is None
    assert (noisy.scheme, noisy.traces, noisy.server) == (plain.scheme, plain.traces, plain.server)


def test_a_federation_has_an_epsilon_of_each_kind_and_clients_tell_no_number_of_records():
    parts, tap = train(f"{TINY} rounds=2 dp.records.noise_multiplier=5 dp.accountant=auto dp.secure=false")
    last = parts.strategy.records[-1]
    charges = RecordCharges(parts.strategy.privacy.records)
    for _ in range(2):
        charges.charge([0])
    assert last.epsilon_record == charges.epsilon
    assert last.epsilon <= 1
    for _, reply in tap.exchanges:
        assert "release" not in reply.content
        assert reply.content["answer"]["samples"] == 0


def test_noise_of_records_cannot_be_replayed_unless_the_run_says_so():
    kinds = []
    for secure in ("true", "false"):
        parts = client_parts(f"{TINY} dp.secure={secure}")
        order = Order(1, 0, 0.1, parts.model.hash, 0)
        kinds.append(isinstance(VectorClient(parts, 0, 4, False)._draws(order, "rules"), OwnDraws))
    assert kinds == [True, False]


@pytest.mark.parametrize(
    "overrides",
    [
        "defense=dp_sgd dp=client",
        "defense=dp_sgd dp=both",
        "defense=fl_std dp=both model=resnet18",
        "defense=fl_std dp=both dp.records.rate=0",
        "defense=fl_std dp=both dp.records.epsilon=1e-9",
        "defense=fl_std dp=both training.steps=null",
    ],
)
def test_combinations_that_cannot_be_are_refused_before_the_run(overrides):
    with pytest.raises(ConfigError):
        server_parts(f"{SMALL} {overrides}")


def test_a_result_states_both_epsilons_and_what_each_compares(tmp_path):
    run_job(f"{TINY} rounds=2 attack=none baseline=false dp.secure=false run_dir={tmp_path}/run".split())
    found = json.loads((tmp_path / "run" / "result.json").read_text())
    summary, records = found["summary"], found["privacy"]["records"]
    assert summary["epsilon_unit"] == "client"
    assert summary["epsilon_adjacency"] == "add or remove one client"
    assert records["adjacency"].startswith("add or remove one record")
    assert summary["epsilon_record"] == found["rounds"][-1]["epsilon_record"] <= 4
    assert (records["rate"], records["steps"], records["delta"]) == (0.1, 5, DELTA)
    page = (tmp_path / "run" / "report.html").read_text()
    for fact in ("protects-client-models", "protects-client-server", "protects-record-updates"):
        assert f'data-fact="{fact}"' in page
    assert 'data-value="client and record"' in page
