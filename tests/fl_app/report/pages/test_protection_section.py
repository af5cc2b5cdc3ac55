"""The sentences on what each ε protects, and the bounds beside attacks, on the page of a run."""

from __future__ import annotations

import math
from typing import Any

import pytest
from parsed_page import ParsedPage
from run_folders import with_secure_aggregation

from fl_app.report import write_report

pytestmark = pytest.mark.usefixtures("quick_charts")


def with_records(result: dict[str, Any]) -> None:
    result["config"]["choices"]["defense"] = "dp_sgd"
    result["config"]["defense"] = {"epsilon": 3.0, "delta": 1e-6}
    for row in result["rounds"]:
        row |= {"epsilon": 2.5, "epsilon_server": 2.5}
    result["summary"] |= {"epsilon": 2.5, "epsilon_server": 2.5, "epsilon_unit": "record"}


def with_replaced_clients(result: dict[str, Any]) -> None:
    with_secure_aggregation(result)
    result["privacy"]["adjacency"] = "replace one client"


def report(folder) -> ParsedPage:
    page = ParsedPage(write_report(folder))
    assert page.unbalanced == []
    return page


def test_each_epsilon_of_clients_names_its_observer_its_adjacency_and_delta(make_run):
    page = report(make_run(rounds=4, change=with_replaced_clients))
    assert page.values["protects-client-models"] == "replace one client"
    assert page.values["protects-client-server"] == "add or remove one client"
    for fact, epsilon in (("protects-client-models", 4.0), ("protects-client-server", 5.0)):
        for part in (f"{epsilon:.2f}", "1e-05", f"{math.exp(epsilon):.3g}", page.values[fact]):
            assert part in page.facts[fact]
    assert "server" in page.facts["protects-client-server"]
    assert "server" not in page.facts["protects-client-models"]
    assert page.values["protection-level"] == "client only"
    assert "4.00" not in page.facts["protection-level"]


@pytest.mark.parametrize("epsilon", [1.0, 15.0])
def test_a_record_s_change_costs_twice_the_epsilon_of_a_client_that_comes_or_goes(make_run, epsilon):
    def change(result: dict[str, Any]) -> None:
        with_secure_aggregation(result)
        result["privacy"]["adjacency"] = "add or remove one client"
        for row in [*result["rounds"], result["summary"]]:
            row["epsilon"] = epsilon

    words = report(make_run(rounds=4, change=change)).facts["protection-level"]
    assert ("2.00" in words) == (epsilon == 1)
    assert (f"{(1 + math.e) * 1e-5:.4g}" in words) == (epsilon == 1)


def test_both_levels_have_a_sentence_each_with_its_own_delta(make_run):
    def change(result: dict[str, Any]) -> None:
        with_secure_aggregation(result)
        records = {"clip": 1.0, "noise_multiplier": 2.0, "rate": 0.1, "steps": 5, "delta": 1e-7}
        result["privacy"]["records"] = records | {"adjacency": "add or remove one record of a client"}
        result["summary"]["epsilon_record"] = 3.25

    page = report(make_run(rounds=4, change=change))
    assert page.values["protection-level"] == "client and record"
    assert page.values["protects-record-updates"] == "add or remove one record of a client"
    for part in ("3.25", "1e-07", f"{math.exp(3.25):.4g}"):
        assert part in page.facts["protects-record-updates"]
    assert "1e-05" in page.facts["protects-client-models"]


def test_the_epsilon_of_records_does_not_promise_to_protect_clients(make_run):
    page = report(make_run(change=with_records))
    assert page.values["protects-record-updates"] == "add or remove one record"
    assert "2.50" in page.facts["protects-record-updates"]
    assert "1e-06" in page.facts["protects-record-updates"]
    assert page.values["protection-level"] == "record only"
    assert not [fact for fact in page.values if fact.startswith("protects-client")]


def test_an_epsilon_without_end_has_no_factor(make_run):
    def change(result: dict[str, Any]) -> None:
        with_secure_aggregation(result)
        result["summary"]["epsilon_server"] = 1e300

    assert "protects-client-server" in report(make_run(change=change)).facts


def test_a_run_without_noise_promises_nothing(make_run):
    assert not {fact for fact in report(make_run()).values if fact.startswith("protect")}


@pytest.mark.parametrize(
    ("found", "bound", "state"),
    [(0.0, 0.3, "kept"), (0.3, 0.3, "kept"), (0.5, 0.3, "exceeded"), (None, None, "none")],
)
def test_the_bound_stands_beside_its_attack(make_run, found, bound, state):
    def change(result: dict[str, Any]) -> None:
        note = "no bound computed: the attack names no images" if bound is None else None
        result["attacks"][1] |= {"found": found, "bound": bound, "bound_prior": 0.1, "bound_note": note}
        result["recovery"] = {"unit": "record", "mse_below": 0.001, "candidates": 1000, "prior": 0.05}

    page = report(make_run(change=change))
    assert page.values["reconstruction-bound"] == state
    (row,) = page.table_with("by guessing")
    assert [span["data-bound"] for span in page.named("span") if "data-bound" in span] == [state]
    if bound is not None:
        assert row["bound"] == "30.0 %"
        assert page.values["reconstruction-prior"] == "record"


@pytest.mark.parametrize("strange", [-3.0, 1e300, math.inf])
def test_a_strange_bound_in_a_file_does_no_harm(make_run, strange):
    def change(result: dict[str, Any]) -> None:
        result["attacks"][1] |= {"found": strange, "bound": strange, "bound_prior": strange}

    assert "reconstruction-bound" in report(make_run(change=change)).values
