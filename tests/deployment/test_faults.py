"""What dies, hangs or lies in a deployed run, and what becomes of it: no update is lost or counts twice."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from deployed import (
    Training,
    harness,
    needs_flower,
    result_of,
    rows_of,
    until,
)
from disturbed_runs import BRIEF, DGP, counts, failures, history_of, log_of, model_in
from lossy_history import Losses, model_after, records_of, same
from namespaces import NotAllowed, two_networks

pytestmark = [needs_flower, pytest.mark.slow]


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with harness(tmp_path_factory.mktemp("faults")) as services:
        services.up()
        yield services


def loads(process: int) -> bool:
    """Say whether a process has begun to load the app, which it does when it has its order."""
    try:
        return "libtorch" in Path(f"/proc/{process}/maps").read_text()
    except OSError:  # it has ended
        return False


def send(number: signal.Signals, processes: set[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, number)


def test_a_killed_superlink_comes_back_and_the_run_is_resumed_to_the_same_model(federation):
    overrides = f"{DGP} rounds=4"
    training = Training(federation, f"{overrides} run_dir=runs/link")
    training.until_order("supernode-1", 3)
    federation.kill("superlink")
    code, _ = training.end()
    assert code == 1
    assert result_of(federation, "link")["status"] == "running"
    done = len(rows_of(federation, "link"))
    assert done in (1, 2)

    federation.wait_for_health("superlink")
    code, said = Training(federation, f"{overrides} resume=runs/link").end()
    assert code == 0, said
    result = result_of(federation, "link")
    assert result["status"] == "finished"
    assert [(entry["round"], entry["reason"]) for entry in result["resumed"]] == [(done, "killed")]
    assert counts(federation, "link") == [3, 3, 3, 3]
    assert not failures(federation, "link")
    assert "attempt 2" in rows_of(federation, "link")[done]["notes"][0]
    assert f"round {done + 1}: this round was begun before" in log_of(federation, "link")
    assert same(model_in(federation, "link"), model_after(overrides, Losses()))
    # nobody was let in twice: the nodes waited for their SuperLink
    assert federation.starts("superlink") == 2
    assert all(federation.starts(f"supernode-{i}") == 1 for i in range(3))


def test_a_killed_server_app_is_resumed_and_what_it_may_have_seen_is_charged(federation):
    overrides = (
        f"{BRIEF} defense=fl_top defense.share=0.3 dp=client dp.epsilon=null dp.noise_multiplier=1 rounds=3"
    )
    training = Training(federation, f"{overrides} run_dir=runs/server")
    training.until_order("supernode-1", 2)
    server = federation.processes("superlink", "flwr-serverapp")
    assert server
    send(signal.SIGKILL, server)
    code, said = training.end()
    assert code == 1, said
    assert federation.starts("superlink") == 1 or "finished:failed" in said
    (row,) = rows_of(federation, "server")

    code, said = Training(federation, f"{overrides} resume=runs/server").end()
    assert code == 0, said
    rows = rows_of(federation, "server")
    assert counts(federation, "server") == [3, 3, 3]
    assert not failures(federation, "server")
    assert "attempt 2" in rows[1]["notes"][0]
    assert rows[0]["epsilon"] == row["epsilon"]

    # round 2 was begun twice: as many releases as in a run of one round more, from then on
    whole = records_of(overrides.replace("rounds=3", "rounds=4"))
    for what in ("epsilon", "epsilon_server"):
        one, two, three, four = (getattr(record, what) for record in whole)
        assert one < two < three < four
        assert [row[what] for row in rows] == pytest.approx([one, three, four], rel=1e-12)


@pytest.fixture(scope="module")
def patient(federation) -> int:
    """Seconds that an exchange does not take on this machine, as busy as it is: a first round has two."""
    code, said = Training(federation, f"{DGP} rounds=1 run_dir=runs/first").end()
    assert code == 0, said
    return max(30, round(1.2 * rows_of(federation, "first")[0]["seconds"]))


@pytest.mark.parametrize("who", ["flwr-clientapp", "the whole node"])
def test_a_client_that_hangs_is_done_without_and_its_late_answer_does_not_count_twice(
    who, federation, patient
):
    command, folder = (who, "app") if who == "flwr-clientapp" else ("", "node")
    overrides = f"{DGP} rounds=6 timeout={patient}"
    training = Training(federation, f"{overrides} run_dir=runs/{folder}")
    training.until_rows(folder, 1)
    before = federation.processes("supernode-1", "flwr-clientapp")  # that of round 1 may not have ended yet

    def at_work() -> set[int]:
        """Client apps that have taken the order; one that has not is replaced by its node without a loss."""
        return {pid for pid in federation.processes("supernode-1", "flwr-clientapp") - before if loads(pid)}

    until(lambda: bool(at_work()), federation, "supernode-1")
    stopped = at_work() if command else federation.processes("supernode-1")
    send(signal.SIGSTOP, stopped)
    try:
        training.until_rows(folder, 2)
    finally:
        send(signal.SIGCONT, stopped)
    code, said = training.end()
    assert code == 0, said
    assert counts(federation, folder)[:2] == [3, 2]
    assert counts(federation, folder)[-1] == 3, "it did not come back"
    found = failures(federation, folder)
    if patient <= 30:  # before Flower itself gives up the node, or the node its client app
        assert found[1, 2] == "no answer in time"
    for (client, number), reason in found.items():
        assert f"round {number}: client {client}: {reason}" in log_of(federation, folder)
    history_of(federation, folder, overrides, 1)


def test_garbage_is_named_and_an_answer_that_is_handed_in_twice_counts_once(tmp_path):
    overrides = f"{DGP} rounds=3"
    saboteurs = Path(__file__).parent / "saboteurs"
    with harness(tmp_path) as federation:
        for name, kind in (("supernode-0", "garbage"), ("supernode-2", "twice")):
            environment = federation.services[name].environment
            environment.update(PYTHONPATH=f"{saboteurs}:/app/project", SABOTAGE=kind)
        federation.up()
        code, said = Training(federation, f"{overrides} run_dir=runs/bad").end()
        assert code == 0, said
        assert federation.log("supernode-2").count("handed in for the second time") >= 3
        assert counts(federation, "bad") == [2, 2, 2]
        found = failures(federation, "bad")
        assert found.keys() == {(0, 1), (0, 2), (0, 3)}
        assert all("wire: " in reason for reason in found.values())
        for (client, number), reason in found.items():
            assert f"round {number}: client {client}: {reason}" in log_of(federation, "bad")
        expected = model_after(overrides, Losses(uncounted=frozenset(found)))
        assert same(model_in(federation, "bad"), expected)


def test_a_cut_link_is_waited_for_and_if_it_lasts_the_round_goes_on_without(tmp_path):
    """A client in a network of its own, whose cable is pulled twice: for seconds, and for minutes."""
    try:
        with two_networks() as cable:
            _cut_links(cable, tmp_path)
    except NotAllowed as reason:
        pytest.skip(f"no network namespaces here: {reason}")


def _cut_links(cable, folder: Path) -> None:
    overrides = f"{DGP} rounds=9"

    def within(name: str) -> list[str]:
        return cable.within(cable.far if name == "supernode-2" else cable.near)

    with harness(folder, addresses={"superlink": cable.address}, within=within) as federation:
        federation.up()
        training = Training(federation, f"{overrides} run_dir=runs/cut")
        training.until_order("supernode-2", 2)
        cable.cut()
        time.sleep(20)
        assert len(rows_of(federation, "cut")) == 1, "the round did not wait"
        cable.mend()
        training.until_rows("cut", 2)
        short = rows_of(federation, "cut")[1]
        assert (short["clients"], short["failures"]) == (3, [])

        training.until_order("supernode-2", 4)
        cable.cut()
        until(lambda: 2 in counts(federation, "cut"), federation, "superlink")
        cable.mend()
        code, said = training.end()
        assert code == 0, said
        seen = counts(federation, "cut")
        assert seen[:3] == [3, 3, 3]
        assert seen[-1] == 3, federation.log("supernode-2")
        for (client, number), reason in failures(federation, "cut").items():
            assert f"round {number}: client {client}: {reason}" in log_of(federation, "cut")
        history_of(federation, "cut", overrides, 2)
