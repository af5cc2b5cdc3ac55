"""Epsilon that canaries measure stands in a run's result, and accuses a mechanism with too little noise."""

import json
import logging

import pytest

from fl_app.experiments.job import run_job
from fl_app.privacy import ClientLevel, NoiseShares
from fl_app.report import write_report

RUN = [
    "data=random",
    "data.shape=[1,8,8]",
    "data.classes=4",
    "data.train=200",
    "model=mlp",
    "model.hidden=[64]",
    "clients=20",
    "fraction=0.5",
    "rounds=10",
    "evaluate_every=10",
    "defense=fl_std",
    "dp=client",
    "dp.epsilon=4",
    "dp.clip=0.5",
    "dp.canaries=100",
    "attack=none",
    "baseline=false",
    "threads=1",
]


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


def test_a_run_with_canaries_measures_an_epsilon_below_the_computed_one(tmp_path):
    run_job([*RUN, f"run_dir={tmp_path}"])
    result = result_of(tmp_path)
    privacy, computed = result["privacy"], result["summary"]["epsilon"]
    low, high = privacy["epsilon_measured_interval"]
    assert privacy["canaries"] == 100
    assert 0 < low < privacy["epsilon_measured"] < high
    assert low < computed
    assert privacy["epsilon_measured"] > computed / 3
    assert not any("canaries" in note for note in result["notes"])
    page = write_report(tmp_path).read_text()
    assert 'data-fact="epsilon-measured" data-value="100"' in page


def test_a_run_with_too_little_noise_is_accused_by_its_canaries(tmp_path, monkeypatch):
    monkeypatch.setattr(
        ClientLevel, "shares", lambda self, cohort, threshold: NoiseShares(self.sigma / 4, cohort, threshold)
    )
    run_job([*RUN, f"run_dir={tmp_path}"])
    result = result_of(tmp_path)
    assert result["privacy"]["epsilon_measured_interval"][0] > result["summary"]["epsilon"]
    assert any("canaries" in note for note in result["notes"])
