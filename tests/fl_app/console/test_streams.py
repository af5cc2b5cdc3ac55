"""Standard output that is closed, full, unread or too narrow for our signs, on the frame of every command."""

import errno
import os
import subprocess
import sys

import pytest

from fl_app.cli.guard import FAILED, READER_GONE

HEAD = "import sys; from fl_app.cli.guard import guarded; from fl_app.console.streams import say\n"
WORK = (
    HEAD + "def work():\n say('ε 3 ≤ 4 ÷ 2'); say('more')\n open(sys.argv[1], 'w').write('done')\n"
    "guarded('x', work)"
)
PLAIN = HEAD + "guarded('x', lambda: [print('line', flush=True) for _ in range(9)])"


def shell(code: str, more: str, tmp_path, **environment: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(code, encoding="utf-8")
    return subprocess.run(
        [
            "bash",
            "-c",
            f"{sys.executable} {script} {tmp_path / 'out'} {more}; exit ${{PIPESTATUS[0]}}",
        ],
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
        env=os.environ | environment,
    )


@pytest.mark.parametrize(
    "streams", [">&-", ">&- 2>&- <&-", "> /dev/full", "> /dev/full 2> /dev/full", "| true"]
)
def test_work_goes_on_without_a_reader(streams, tmp_path):
    for unbuffered in ("", "1"):
        done = shell(WORK, streams, tmp_path, PYTHONUNBUFFERED=unbuffered)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "out").read_text() == "done"
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_signs_that_a_locale_lacks_are_spelled(encoding, tmp_path):
    done = shell(WORK, "", tmp_path, PYTHONIOENCODING=encoding, LC_ALL="C", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2
    assert (tmp_path / "out").exists()


def test_a_file_of_a_run_never_gets_the_number_of_a_closed_stream(tmp_path):
    code = HEAD + "guarded('x', lambda: open(sys.argv[1], 'w').write(str(open(sys.argv[1]).fileno() > 2)))"
    assert shell(code, ">&- 2>&- <&-", tmp_path).returncode == 0
    assert (tmp_path / "out").read_text() == "True"


def test_a_command_that_only_prints_ends_as_a_pipe_does(tmp_path):
    done = shell(PLAIN, "| true", tmp_path)
    assert done.returncode in (0, READER_GONE)
    assert done.stderr == ""


@pytest.mark.parametrize(
    "raised",
    [
        "MemoryError()",
        "RuntimeError('DefaultCPUAllocator: can\\'t allocate memory: you tried 9 bytes')",
        *(f"OSError({number}, 'words')" for number in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.EIO)),
        f"OSError({errno.ENETDOWN}, 'words')",
        "OSError('no source has the weights')",
    ],
)
def test_what_the_machine_lacks_is_one_sentence(raised, tmp_path):
    code = HEAD + f"def work():\n raise {raised}\nguarded('x', work)"
    done = shell(code, "", tmp_path)
    assert done.returncode == FAILED
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_a_defect_is_still_shown_whole(tmp_path):
    done = shell(HEAD + "def work():\n raise KeyError('x')\nguarded('x', work)", "", tmp_path)
    assert "Traceback" in done.stderr


@pytest.mark.parametrize(("error", "told"), [("MemoryError()", 0), ("KeyError(1)", 1)])
def test_a_callback_without_memory_is_no_traceback_and_a_defect_is_one(error, told, tmp_path):
    code = (
        HEAD
        + f"class Dying:\n def __del__(self): raise {error}\n"
        + "def work():\n Dying()\n raise MemoryError\nguarded('x', work)"
    )
    done = shell(code, "", tmp_path)
    assert done.returncode == FAILED
    assert done.stderr.count("Traceback") == told
    assert "x: out of memory" in done.stderr
