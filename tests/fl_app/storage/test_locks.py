import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from fl_app.storage.locks import claim


def write_lock(path: Path, **changed) -> None:
    """Write the lock of this very process, except for what is ``changed``."""
    with claim(path):
        owner = json.loads(path.read_text())
    path.write_text(json.dumps(owner | changed))


def test_a_lock_says_who_has_it_and_is_gone_afterwards(tmp_path):
    lock = tmp_path / "new" / "cell.lock"
    with claim(lock) as other:
        assert other is None
        assert json.loads(lock.read_text())["pid"] == os.getpid()
        with claim(lock) as second:
            assert str(second) == f"process {os.getpid()} on {socket.gethostname()}"
        assert lock.exists(), "who did not get the lock must not remove it"
    assert not lock.exists()


def test_a_lock_is_let_go_when_its_work_fails(tmp_path):
    with pytest.raises(KeyboardInterrupt), claim(tmp_path / "lock"):
        raise KeyboardInterrupt
    assert not (tmp_path / "lock").exists()


@pytest.mark.parametrize("reaped", [True, False])
def test_the_lock_of_a_process_that_was_killed_is_taken_over(tmp_path, reaped):
    code = (
        "import sys, time; from pathlib import Path; from fl_app.storage.locks import claim\n"
        "with claim(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    lock = tmp_path / "lock"
    holder = subprocess.Popen([sys.executable, "-c", code, str(lock)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout.readline() == "held\n"
        with claim(lock) as other:
            assert other is not None
            assert other.pid == holder.pid
        holder.kill()
        if reaped:
            holder.wait()
        else:
            holder.stdout.read()  # to its end: the process is dead, but nobody has asked for its exit code
            time.sleep(0.1)
        with claim(lock) as other:
            assert other is None
    finally:
        holder.kill()
        holder.wait()


def test_a_number_that_another_process_got_later_does_not_hold_a_lock(tmp_path):
    write_lock(tmp_path / "lock", born="before the last start of this machine")
    with claim(tmp_path / "lock") as other:
        assert other is None


def test_the_lock_of_another_host_holds(tmp_path):
    write_lock(tmp_path / "lock", host="elsewhere", pid=2**22 + 1)
    with claim(tmp_path / "lock") as other:
        assert other is not None
        assert other.host == "elsewhere"
    assert (tmp_path / "lock").exists()


@pytest.mark.parametrize("left", [b"", b'{"pid": 1', bytes(40), b"\n", b"\xff\xfe"])
def test_a_lock_that_a_crash_left_half_written_has_no_owner(tmp_path, left):
    (tmp_path / "lock").write_bytes(left)
    with claim(tmp_path / "lock") as other:
        assert other is None
        assert json.loads((tmp_path / "lock").read_text())["pid"] == os.getpid()


def test_a_lock_of_another_version_holds_and_names_its_file(tmp_path):
    (tmp_path / "lock").write_text('{"process": 1}')
    with claim(tmp_path / "lock") as other:
        assert str(tmp_path / "lock") in str(other)


@pytest.mark.parametrize("call", ["fsync", "link"])
def test_a_full_disk_leaves_no_lock_behind(tmp_path, monkeypatch, call):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        if call == "link":  # then there are no hard links, and the file is moved
            with claim(tmp_path / "lock") as other:
                assert other is None
        else:
            with pytest.raises(OSError, match="No space"), claim(tmp_path / "lock"):
                pass
    assert [path.name for path in tmp_path.iterdir()] == [".guard"]
    with claim(tmp_path / "lock") as other:
        assert other is None


def test_of_many_who_find_a_dead_owner_one_takes_the_lock(tmp_path):
    lock = tmp_path / "lock"
    for _ in range(20):
        write_lock(lock, born="long ago")
        start, over, winners = threading.Barrier(8), threading.Barrier(8), []

        def race(start=start, over=over, winners=winners):
            start.wait()
            with claim(lock) as other:
                winners.append(other is None)
                over.wait()

        threads = [threading.Thread(target=race) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(winners) == [False] * 7 + [True]
