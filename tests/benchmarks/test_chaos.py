"""The chaos command: a few faults in every test run, and a checker that finds what is lost."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from cut_runs import MLP, without_pictures, words
from safetensors.torch import load_file, save_file

from benchmarks.chaos.invariants import check_end, check_whole
from fl_app.experiments.job import run_job


def chaos(repository: Path, *words: str) -> str:
    command = [sys.executable, "-m", "benchmarks.chaos", *words]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout


def test_a_few_faults_lose_nothing(repository):
    said = chaos(
        repository,
        *(
            "--faults",
            "6",
            "--seed",
            "42",
            "--configs",
            "dgp",
            "--kinds",
            "exact",
            "clients",
            "damage",
            "twice",
        ),
    )
    assert "seeds 42 to 47" in said
    met = int(said.splitlines()[-1].split("|")[2])
    assert met >= 6


@pytest.mark.slow
def test_counts_of_several_sessions_add_up(repository, tmp_path):
    counts = tmp_path / "counts.json"
    words = ("--configs", "dgp", "--kinds", "exact", "moments", "anew", "attacks", "--add-to", str(counts))
    totals = []
    for seed in ("100", "200"):
        said = chaos(repository, "--faults", "8", "--seed", seed, *words)
        totals.append(int(said.splitlines()[-1].split("|")[2]))
    assert 8 <= totals[0] < totals[1]
    assert sum(met for met, _, _ in json.loads(counts.read_text()).values()) == totals[1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        without_pictures(patch)
        run_job(words(f"{MLP} defense=dp_sgd"), folder=folder)
    return folder


def edit(change):
    def edited(folder: Path) -> None:
        content = json.loads((folder / "result.json").read_text())
        change(content)
        (folder / "result.json").write_text(json.dumps(content))

    return edited


def another_model(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = next(iter(tensors))
    tensors[name] = torch.nextafter(tensors[name], tensors[name] + 1)
    save_file(tensors, folder / "model.safetensors")


LOSSES = {
    "a bit of the model": another_model,
    "a round": edit(lambda c: c["rounds"].pop()),
    "a client of a round": edit(lambda c: c["rounds"][1].update(clients=2)),
    "a charge": edit(lambda c: c["rounds"][4].update(epsilon=c["rounds"][3]["epsilon"] / 2)),
    "the end": edit(lambda c: c.update(status="running")),
    "order": lambda folder: (folder / "result.json.part").write_text("x"),
    "a file": lambda folder: (folder / "config.yaml").unlink(),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_the_checker_finds_every_loss(loss, whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "run")
    assert not check_whole(folder, whole, 0, "", repeats=True)
    LOSSES[loss](folder)
    assert check_whole(folder, whole, 0, "", repeats=True)


def test_the_checker_finds_a_bad_end(whole):
    assert not check_end(whole, 0, "report: there")
    assert check_end(whole, 0, "Traceback (most recent call last)\nKeyError: 1")
    assert check_end(whole, "hangs", "")
    assert check_whole(whole, whole, 1, "fl-app: no", repeats=True)
