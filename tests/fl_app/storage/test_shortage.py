"""Errors of the machine are told from those of a program, whatever raised them."""

import errno
import os
import resource
import subprocess
import sys

import pytest
import torch

from fl_app.storage.shortage import shortage

CPU = (
    "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
    "allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError(CPU),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("can't start new thread"),
        *(
            OSError(number, os.strerror(number))
            for number in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EIO, errno.EROFS)
        ),
    ],
)
def test_what_ran_out_is_said(error):
    assert shortage(error)
    second = ValueError("while building a model")
    second.__cause__ = error
    assert shortage(second) == shortage(error)


def test_a_real_refusal_of_the_allocator_is_one():
    code = (
        "import resource, torch; from fl_app.storage.shortage import shortage\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({4 * 2**30}, {resource.RLIM_INFINITY}))\n"
        "try: torch.empty(2**33)\n"
        "except Exception as error: print(shortage(error))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == shortage(MemoryError())


@pytest.mark.parametrize(
    "error",
    [
        ValueError("out of memory"),
        RuntimeError("shape mismatch"),
        OSError("client 3: cannot write its memory"),
        FileNotFoundError(errno.ENOENT, "no such file"),
        ConnectionResetError(errno.ECONNRESET, "gone"),
        KeyError("x"),
    ],
)
def test_other_errors_are_none(error):
    assert shortage(error) is None


def test_who_knows_the_cause_and_says_so_decides():
    second = OSError("client 3 does not answer")
    second.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert shortage(second) is None
