"""Faults into a deployed federation of three: SuperLink, SuperNodes and apps as processes, over TLS.

Run as a program it serves seeds from its standard input: the federation lives as long as it does.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import combinations, product
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

from benchmarks.chaos.session import Chaos, Outcome
from fl_app.console.logs import show_logs

if TYPE_CHECKING:
    from compose_harness import Harness

_ROOT = Path(__file__).resolve().parents[2]
_FAULTS = "tests/deployment/test_faults.py"
_ROUNDS, _PATIENCE = 4, 900.0
_TARGETS = ("server app", "SuperLink", "client app", "SuperNode")
_PRIVATE = "defense=fl_top defense.share=0.3 dp=client dp.epsilon=null dp.noise_multiplier=1"
_serving: list[subprocess.Popen[str]] = []


def deployed(chaos: Chaos, rng: random.Random, config: str, seed: int) -> Outcome:
    """Kill parts of a federation, up to two in one run, and compare models, residuals and budgets."""
    if not _serving:
        command = [sys.executable, "-m", "benchmarks.chaos.deployments"]
        _serving.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT)
        )
    server = _serving[0]
    cast(IO[str], server.stdin).write(f"{seed}\n")
    cast(IO[str], server.stdin).flush()
    line = cast(IO[str], server.stdout).readline()
    if not line:
        _serving.clear()
        return Outcome("a deployment", [], [f"the federation ended with {server.wait()}"])
    return Outcome(**json.loads(line))


def links(chaos: Chaos, rng: random.Random, config: str, seed: int) -> Outcome:
    """Pull the cable of a client for seconds and for minutes, by the test that does so."""
    test = f"{_FAULTS}::test_a_cut_link_is_waited_for_and_if_it_lasts_the_round_goes_on_without"
    command = [sys.executable, "-m", "pytest", "-q", "-m", "slow", test]
    done = subprocess.run(command, capture_output=True, text=True, cwd=_ROOT)
    name = "a deployment: a cut link"
    ran = " passed" in done.stdout or done.returncode
    return Outcome(name, [name] * 2 if ran else [], [] if done.returncode == 0 else [done.stdout[-1500:]])


@contextmanager
def closing() -> Iterator[None]:
    """End the federation, if there is one, at the end."""
    try:
        yield
    finally:
        for server in _serving:
            with suppress(OSError):
                cast(IO[str], server.stdin).close()
            server.wait()
        _serving.clear()


def _strike(federation: Harness, seed: int) -> Outcome:
    """Run the seed's federation with its faults."""
    from deployed import Training, result_of
    from disturbed_runs import BRIEF, DGP

    rng = random.Random(seed)
    config = rng.choice(("dgp", "dgp", "dp", "dp and secagg"))
    overrides = f"{DGP if config == 'dgp' else f'{BRIEF} {_PRIVATE}'} rounds={_ROUNDS}"
    overrides += " secagg=on secagg.min_clients=2" if "secagg" in config else ""
    folder = f"chaos-{seed}"
    targets = [rng.choice(_TARGETS) for _ in range(rng.choice((1, 1, 2)))]
    training = Training(federation, f"{overrides} run_dir=runs/{folder}", patience=_PATIENCE)
    met, wrong = list[str](), list[str]()
    code, said = 1, ""
    for target in targets:
        if _kill_once(federation, training, folder, target, rng):
            met.append(f"a deployment: a killed {target}{', with its run resumed before' if met else ''}")
        if target in _TARGETS[:2]:  # the run has ended
            code, said = training.end()
            status = result_of(federation, folder).get("status")
            if code == 0 and status != "finished":
                wrong.append(f"exit 0, status {status}")
            if status == "finished":
                break
            federation.wait_for_health("superlink")
            begun = bool(result_of(federation, folder))
            where = f"resume=runs/{folder}" if begun else f"run_dir=runs/{folder}"
            training = Training(federation, f"{overrides} {where}", patience=_PATIENCE)
    code, said = training.end()
    if code:
        wrong.append(f"exit {code}: {said[-500:]}")
    else:
        wrong += _check(federation, folder, overrides, config)
    return Outcome(f"a deployment: a killed {targets[0]}", met, wrong, config)


def _kill_once(federation: Harness, training: Any, folder: str, target: str, rng: random.Random) -> bool:
    """Wait for a random moment of the run, kill one part, and say whether it was there."""
    from deployed import rows_of

    wanted = len(rows_of(federation, folder)) + rng.choice((0, 1, 1))
    if wanted >= _ROUNDS:
        return False
    with suppress(AssertionError):  # the run has ended by itself
        training.until_rows(folder, wanted)
    time.sleep(rng.uniform(0, 9))
    node = f"supernode-{rng.randrange(3)}"
    if target == "SuperLink":
        federation.kill("superlink")
        return True
    command = {"server app": "flwr-serverapp", "client app": "flwr-clientapp", "SuperNode": ""}[target]
    who = "superlink" if target == "server app" else node
    deadline = time.monotonic() + 30
    while not (found := federation.processes(who, command)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in found:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return bool(found)


def _check(federation: Harness, folder: str, overrides: str, config: str) -> list[str]:
    """Return what a finished run lacks."""
    from deployed import result_of
    from disturbed_runs import failures, model_in
    from lossy_history import Losses, model_after, records_of, same

    result = result_of(federation, folder)
    rows = result["rounds"]
    wrong = [] if result["status"] == "finished" else [f"status {result['status']}"]
    if [row["round"] for row in rows] != list(range(1, _ROUNDS + 1)):
        wrong.append(f"rounds {[row['round'] for row in rows]}")
    if (federation.volume("runs") / folder / "checkpoint").exists():
        wrong.append("a checkpoint is left")
    if config != "dgp":
        # of fewer clients each adds more noise of its own, and the server learns less of it
        all_asked = all(row["clients"] + len(row["failures"]) == 3 for row in rows)
        names = ("epsilon", "epsilon_server") if all_asked and "secagg" not in config else ("epsilon",)
        whole = records_of(overrides.replace("secagg=on", "secagg=off"))
        for name in names:
            told, least = [row[name] for row in rows], [getattr(record, name) for record in whole]
            if any(one < other - 1e-9 for one, other in zip(told, least, strict=True)):
                wrong.append(f"{name} {told} below {least}")
        return wrong
    # every counted update once, and what was withheld is still owed: the model of one history of losses
    named = sorted(failures(federation, folder))
    missing = [row["round"] for row in rows for _ in range(3 - row["clients"] - len(row["failures"]))]
    found = model_in(federation, folder)
    for who in product(range(3), repeat=len(missing)):
        absent = set(zip(who, missing, strict=True))
        for number in range(len(named) + 1):
            for unheard in combinations(named, number):
                losses = Losses(
                    unheard=frozenset({*unheard, *absent}), uncounted=frozenset({*named} - {*unheard})
                )
                if same(found, model_after(overrides, losses)):
                    return wrong
    return [*wrong, f"the model is that of no history: failures {named}, missing in rounds {missing}"]


def _serve() -> None:
    # the harness of the tests: it reads the services from docker-compose.yml
    sys.path.insert(0, str(_ROOT / "tests" / "deployment"))
    from deployed import harness

    show_logs(False)
    with tempfile.TemporaryDirectory(prefix="chaos-deployed-") as home, harness(Path(home)) as federation:
        federation.up()
        for line in sys.stdin:
            try:
                outcome = _strike(federation, int(line))
            except Exception as error:  # of one seed: the others go on
                outcome = Outcome("a deployment", [], [f"{type(error).__name__}: {error}"[-800:]])
            print(json.dumps(outcome._asdict()), flush=True)


if __name__ == "__main__":
    _serve()
