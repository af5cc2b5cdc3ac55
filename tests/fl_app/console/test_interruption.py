"""Ctrl-C waits for the round's end, but not for long, and what is saved goes on."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fl_app.console.interruption import asked_to_stop, stopping_after_rounds

RUN = [
    *("data.train_per_class=8", "data.test_per_class=4", "clients=3", "batch_size=4", "threads=1"),
    *("rounds=100000", "attack=none", "defense=none", "baseline=false"),
]


@pytest.fixture(autouse=True)
def python_handles_ctrl_c():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_the_first_asks_and_the_round_goes_on():
    with stopping_after_rounds(30.0):
        assert not asked_to_stop()
    seen: list[bool] = []
    with pytest.raises(KeyboardInterrupt):  # nobody looked: it is not lost at the end
        interrupted_round(30.0, lambda: seen.append(asked_to_stop()))
    assert seen == [True]
    assert not asked_to_stop()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_round_that_does_not_end_is_cut():
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted_round(0.1, lambda: time.sleep(20))
    assert 0.1 <= time.monotonic() - start < 10


def test_a_second_one_does_not_wait():
    with pytest.raises(KeyboardInterrupt):
        interrupted_round(30.0, lambda: signal.raise_signal(signal.SIGINT))
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_an_alarm_of_others_is_put_back():
    def theirs(number, frame):
        raise AssertionError

    before = signal.signal(signal.SIGALRM, theirs)
    try:
        with stopping_after_rounds():
            pass
        assert signal.getsignal(signal.SIGALRM) is theirs
    finally:
        signal.signal(signal.SIGALRM, before)


def test_who_ignores_ctrl_c_or_is_no_main_thread_keeps_its_signals():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stopping_after_rounds():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    seen = []

    def work():
        with stopping_after_rounds():
            seen.append(asked_to_stop())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]


def test_a_run_saves_its_round_and_prints_the_command_that_goes_on(tmp_path: Path):
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    others = children.ru_utime + children.ru_stime
    first = start(tmp_path, RUN)
    wait_for(first, tmp_path / "run" / "result.json", '"round": 2')
    before = seconds_of_processor(first.pid)
    code, _, words = end(first)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    # of the processor: 0.3 s on a machine that is free
    assert used.ru_utime + used.ru_stime - others - before < 1.0
    assert not (tmp_path / "run" / "report.html").exists()
    assert (code, "Traceback" in words) == (130, False)
    assert f"fl-app resume={tmp_path / 'run'}" in words
    done = read_rounds(tmp_path / "run")
    second = start(tmp_path, [f"resume={tmp_path / 'run'}"], run_dir=False)
    wait_for(second, tmp_path / "run" / "result.json", f'"round": {done + 1},')
    code, _, words = end(second)
    assert code == 130, words
    assert read_rounds(tmp_path / "run") > done


def seconds_of_processor(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def interrupted_round(seconds: float, rest: Callable[[], None]) -> None:
    with stopping_after_rounds(seconds):
        signal.raise_signal(signal.SIGINT)
        rest()


def start(home: Path, overrides: list[str], *, run_dir: bool = True) -> subprocess.Popen[str]:
    place = [f"run_dir={home / 'run'}"] if run_dir else []
    return subprocess.Popen(
        [sys.executable, "-m", "fl_app", *overrides, *place],
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        # a child of a background job may have been started with Ctrl-C ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def wait_for(process: subprocess.Popen[str], path: Path, words: str) -> None:
    deadline = time.monotonic() + 240
    while not (path.exists() and words in path.read_text(encoding="utf-8")):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(f"{words} never came: {process.communicate()[1]}")
        time.sleep(0.2)


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    process.send_signal(signal.SIGINT)
    try:
        out, words = process.communicate(timeout=120)
    finally:
        process.kill()
    return process.returncode, out, words


def read_rounds(folder: Path) -> int:
    return len(json.loads((folder / "result.json").read_text(encoding="utf-8"))["rounds"])
