"""The commands as a user types them, in processes of their own, in a folder of their own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
QUICK = [
    "data.train_per_class=8",
    "data.test_per_class=4",
    "clients=3",
    "batch_size=4",
    "rounds=3",
    "threads=1",
]
ATTACK = ["attack.steps=5"]

needs_install = pytest.mark.skipif(
    not (BIN / "flower-simulation").exists(), reason="the package is not installed beside this interpreter"
)
pytestmark = needs_install


def run(
    command: list[str], cwd: Path, expect: int = 0, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == expect, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


def result_of(report_line: str) -> dict:
    report = Path(report_line.split("report: ")[1].strip())
    assert report.is_file()
    return json.loads((report.parent / "result.json").read_text())


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    return next(line for line in reversed(done.stdout.splitlines()) if "report: " in line)


def test_flower_simulation_trains_attacks_and_reports(repository, tmp_path):
    overrides = " ".join(QUICK + ATTACK)
    done = run(
        [
            "flower-simulation",
            "--app",
            str(repository / "fl_app"),
            "--run-config",
            f'overrides="{overrides}"',
        ],
        tmp_path,
    )
    result = result_of(last_line(done))
    assert result["status"] == "finished"
    assert [row["round"] for row in result["rounds"]] == [1, 2, 3]
    assert {a["update"] for a in result["attacks"]} == {"defended", "undefended"}
    for attack in result["attacks"]:
        assert (attack["round"], attack["client"], attack["batch_size"]) == (1, 0, 1)
        assert len(attack["psnr"]) == 1
    summary = result["summary"]
    assert 0 < summary["uplink_bytes"] < summary["dense_bytes"] / 2


def test_fl_app_sweeps_and_fl_app_report_compares(tmp_path):
    run(["fl-app", "-m", "defense=none,topk", "seed=0,1", "attack=none", *QUICK], tmp_path)
    results = sorted(tmp_path.glob("multirun/*/*/*/result.json"))
    assert len(results) == 4
    chosen = {(r["config"]["choices"]["defense"], r["config"]["seed"]) for r in map(_read, results)}
    assert chosen == {("none", 0), ("none", 1), ("topk", 0), ("topk", 1)}
    done = run(["fl-app-report", "multirun"], tmp_path)
    assert "topk" in done.stdout
    assert "none" in (tmp_path / "comparison.html").read_text()


def _read(path: Path) -> dict:
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (
            ["fl-app", "defense=dpg"],
            ["fl-app: defense: 'dpg' is not one of its choices", "did you mean dgp?"],
        ),
        (["fl-app", "roundz=3"], ["fl-app: roundz: unknown key", "rounds"]),
        (["fl-app", "-m", "defense=none,tpok"], ["topk"]),
        (["flower-simulation", "--app", "nowhere"], ["flower-simulation: --app: expected a folder"]),
        (["fl-app-report", "nowhere"], ["fl-app-report: "]),
    ],
)
def test_what_the_user_can_mend_is_one_clear_line(command, words, tmp_path):
    done = run(command, tmp_path, expect=2)
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


@pytest.mark.parametrize(
    ("overrides", "code", "word"),
    [(["data=cifar10"], 1, "data.download"), (["model._target_=nowhere.f"], 2, "nowhere.f")],
)
def test_a_run_that_cannot_begin_says_why_in_one_line_and_leaves_no_folder(overrides, code, word, tmp_path):
    done = run(["fl-app", *overrides], tmp_path, expect=code)
    assert len(done.stderr.splitlines()) == 1
    assert word in done.stderr
    assert not list((tmp_path / "runs").glob("*/*"))


def test_an_unknown_run_config_key_is_refused_with_the_known_ones(repository, tmp_path):
    command = ["flower-simulation", "--app", str(repository), "--run-config", "rounds=3"]
    assert "'rounds' is not one of attack, clients" in run(command, tmp_path, expect=2).stderr


@pytest.mark.parametrize("engine", ["inline", pytest.param("ray", marks=pytest.mark.slow)])
def test_ctrl_c_leaves_a_usable_folder_that_says_so(tmp_path, engine):
    process = subprocess.Popen(
        [
            str(BIN / "fl-app"),
            f"engine={engine}",
            "rounds=100000",
            *(q for q in QUICK if not q.startswith("rounds")),
            *ATTACK,
        ],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a child of a background job may have been started with Ctrl-C ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            found = list(tmp_path.glob("runs/*/*/result.json"))
            if found and _read(found[0])["rounds"]:
                break
            time.sleep(0.2)
        os.kill(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    (path,) = tmp_path.glob("runs/*/*/result.json")
    result = _read(path)
    assert result["status"] == "interrupted"
    assert len(result["rounds"]) > 0
    assert result["summary"]["uplink_bytes"] > 0
    assert not (path.parent / "report.html").exists()  # it comes with the resumed run


def test_python_dash_m_is_the_same_command(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "fl_app", "attack=none", *QUICK],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "report: " in done.stdout


@pytest.mark.slow
def test_ray_runs_the_same_app(repository, tmp_path):
    overrides = " ".join(QUICK + ATTACK)
    done = run(
        [
            "flower-simulation",
            "--app",
            str(repository),
            "--backend",
            "ray",
            "--run-config",
            f'overrides="{overrides}"',
        ],
        tmp_path,
        timeout=600,
    )
    result = result_of(last_line(done))
    assert result["status"] == "finished"
    assert {a["update"] for a in result["attacks"]} == {"defended", "undefended"}
