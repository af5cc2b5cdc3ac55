"""Lemma 1 of Xue et al.: the bound by hand, and in a run, whose clients report what it is made of."""

import json

import pytest
from federations import SMALL

from fl_app.client_app import app
from fl_app.config.build import server_parts
from fl_app.flower import InlineGrid
from fl_app.flower.held_tensor import hold
from fl_app.running.federation import run_federation
from fl_app.transforms import residual_bound


def test_the_bound_by_hand():
    # 3 · 0.5 · 2.5 / (2 · 0.25) · 4 = 3.75 / 0.5 · 4
    assert residual_bound(0.5, 2.0) == pytest.approx(30.0)
    assert residual_bound(0.0, 7.0) == 0.0
    # 3 · 0.8 · 2.8 / (2 · 0.04) = 6.72 / 0.08
    assert residual_bound(0.8, 1.0) == pytest.approx(84.0)


@pytest.mark.parametrize(("gamma", "g"), [(1.0, 1.0), (-0.1, 1.0), (0.5, -1.0), (float("nan"), 1.0)])
def test_refuses_what_is_no_share_or_no_norm(gamma, g):
    with pytest.raises(ValueError, match="residual_bound: g"):
        residual_bound(gamma, g)


def records(overrides):
    text = f"{SMALL} rounds=3 {overrides}"
    parts = server_parts(text)
    grid = InlineGrid(app, 5, run_config={"overrides": text})
    parts.strategy.start(grid=grid, initial_arrays=hold(parts.model.state_dict()), num_rounds=3)
    return parts.strategy.records


def test_without_a_defense_nothing_is_held_back_and_by_default_nothing_is_told():
    for record in records("defense=none client.norms=true"):
        assert record.gradient_norm > 0
        assert record.pruned_share == 0
    assert all(record.gradient_norm is None for record in records("defense=dgp"))


def test_top_k_of_a_tenth_holds_back_less_than_nine_tenths_of_the_square():
    rows = records("defense=topk defense.share=0.1 client.norms=true")
    assert all(0 < record.pruned_share < 0.9 for record in rows)
    assert all(
        record.pruned_share == 0 for record in records("defense=topk defense.share=1 client.norms=true")
    )


def test_what_is_measured_on_private_data_is_not_told_under_differential_privacy():
    rows = records("defense=dp_sgd client.norms=true model=lenet")
    assert all(record.gradient_norm is None and record.pruned_share is None for record in rows)


def test_the_residual_of_a_run_stays_below_the_bound(tmp_path):
    text = f"{SMALL} rounds=6 defense=dgp client.norms=true run_dir={tmp_path}"
    run_federation(InlineGrid(app, 5, run_config={"overrides": text}), text)
    result = json.loads((tmp_path / "result.json").read_text())
    share = max(row["pruned_share"] for row in result["rounds"])
    g = max(row["gradient_norm"] for row in result["rounds"])
    assert result["summary"]["residual_bound"] == pytest.approx(residual_bound(share, g))
    assert max(row["residual_norm"] for row in result["rounds"]) ** 2 < result["summary"]["residual_bound"]
