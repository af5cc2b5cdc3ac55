"""Planted bits are read off each exit through which an app smuggles, and off no other."""

import numpy as np
import pytest

from fl_app.audit.channels import Reading
from fl_app.audit.exits import exit_findings, hidden_picture, measure_exits
from fl_app.audit.planting import Plant

RUNS = 24
SMUGGLED = {"metrics": 64, "list": 64, "packed": 16, "config": 64, "array": 64, "count": 1}
SMUGGLED |= {"fraction": 16, "decimals": 8, "huge": 16, "names": 8, "presence": 16, "order": 1, "later": 64}


@pytest.mark.parametrize("way", SMUGGLED)
def test_planted_bits_are_read_off_a_smuggling_app(audit, way):
    report = audit("smuggler", f"way='{way}'", exits=RUNS)
    told = {bit for channel in report.exits.decoded for bit in channel.told}
    assert len(told) >= SMUGGLED[way]
    worst = next(f for f in report.findings if f.rule == "data-in-exit")
    assert worst.severity == ("medium" if way in ("count", "order") else "high")


def test_numbers_that_training_did_not_leave_are_found(audit):
    for app, config in (("smuggler", ("way='digits'",)), ("cnn_batchnorm", ()), ("gradients", ())):
        report = audit(app, *config)
        assert report.understood
        altered = [f for f in report.findings if f.rule == "update-is-not-what-was-trained"]
        assert len(altered) == (app == "smuggler")


@pytest.mark.parametrize("way", ["metrics", "list", "array", "config"])
def test_the_hidden_picture_is_shown(audit, way):
    report = audit("smuggler", f"way='{way}'", exits=RUNS)
    if way == "config":  # base64 mixes neighbours: blocks come out, not a smooth picture
        assert report.picture is not None
        return
    places = np.linspace(-1, 1, 12)
    truth = np.exp(-3 * (places[:, None] ** 2 + (places[None] - 0.3) ** 2))
    blocks = truth.reshape(12, 12)
    index = np.arange(12) * 8 // 12
    coarse = np.array([[blocks[index == i][:, index == j].mean() for j in range(8)] for i in range(8)])
    assert np.corrcoef(coarse.ravel(), report.picture.ravel())[0, 1] > 0.95


@pytest.mark.parametrize("app", ["cnn_batchnorm", "head_only", "tabular", "legacy"])
def test_an_honest_app_leaks_no_planted_bit(audit, app):
    report = audit(app, exits=RUNS)
    assert report.exits.runs == RUNS
    assert report.exits.places
    assert not report.exits.decoded
    assert not [f for f in report.findings if f.rule.endswith("exit")]


def test_a_loss_changes_with_the_data_and_tells_no_bit(audit):
    channels = {channel.name: channel for channel in audit("cnn_batchnorm", exits=RUNS).exits.exits}
    loss = channels["train: metrics.train_loss"]
    assert loss.changes
    assert loss.bits == 0
    assert not channels["train: metrics.num-examples"].changes


def readings(values, kind="metric", text=False):
    return [{"c": Reading(kind, np.asarray(value, dtype=float), text)} for value in values]


def test_a_channel_that_changes_by_itself_is_no_leak():
    generator = np.random.default_rng(0)
    bits = generator.integers(0, 2, (RUNS, 260))
    seen = readings(generator.random((RUNS, 1)))
    report = measure_exits(seen, bits, readings([[0.5]])[0], ["x"])
    assert not report.exits[0].repeats
    assert not exit_findings(report)


def test_noise_is_not_mistaken_for_bits():
    generator = np.random.default_rng(1)
    for _ in range(20):
        bits = generator.integers(0, 2, (RUNS, 260))
        seen = readings(generator.random((RUNS, 40)))
        report = measure_exits(seen, bits, seen[0], ["x"])
        assert not report.decoded


def test_runs_that_end_in_an_error_do_not_count_as_missing_names():
    bits = np.random.default_rng(4).integers(0, 2, (RUNS, 260))
    name, loss = Reading("names", np.array([1.0, 2.0]), True), Reading("metric", np.array([0.5]))
    failed = {"train: error": Reading("error", np.array([7.0]), True)}
    seen = [failed if run % 3 == 2 else {"train: names": name, "train: loss": loss} for run in range(RUNS)]
    report = measure_exits(seen, bits, seen[0], ["x"])
    assert {c.name for c in report.exits if c.changes} == {"train: error"}
    assert not [f for f in exit_findings(report) if f.severity != "low"]


def test_few_runs_decide_nothing():
    bits = np.array([[0, 1] * 130, [1, 0] * 130])
    seen = readings([[0.0], [1.0]])
    assert not measure_exits(seen, bits, seen[0], ["x"]).decoded


def test_a_text_that_changes_with_the_data_is_found():
    generator = np.random.default_rng(2)
    bits = generator.integers(0, 2, (RUNS, 260))
    seen = readings(generator.integers(0, 256, (RUNS, 32)), "config", True)
    (finding,) = exit_findings(measure_exits(seen, bits, seen[0], ["x"]))
    assert finding.severity == "high"


def test_a_picture_is_put_together_from_its_blocks():
    bits = np.array([Plant.draw(seed).bits for seed in range(RUNS)])
    seen = readings(bits[:, :64])
    report = measure_exits(seen, bits, seen[0], ["x"])
    shown = hidden_picture(report.decoded, readings([np.arange(64)])[0])
    np.testing.assert_allclose(shown, np.arange(64).reshape(8, 8) / 63)


def test_an_error_text_of_planted_data_is_a_low_finding():
    generator = np.random.default_rng(3)
    bits = generator.integers(0, 2, (RUNS, 260))
    seen = readings(generator.integers(0, 256, (RUNS, 40)), "error", True)
    (finding,) = exit_findings(measure_exits(seen, bits, seen[0], ["x"]))
    assert finding.severity == "low"
