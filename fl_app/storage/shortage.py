"""Errors of a process or a machine that has run out of memory, disk, open files or a working disk."""

from __future__ import annotations

import errno

_WORDS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "a file has reached the largest size allowed",
    errno.EMFILE: "this process has too many open files",
    errno.ENFILE: "this machine has too many open files",
    errno.ENOMEM: "out of memory",
    errno.EAGAIN: "no further process or thread can be started",
    errno.EIO: "the disk does not work (input/output error)",
    errno.EROFS: "the disk is read-only",
    errno.ESTALE: "a network disk has lost a file (stale handle)",
    errno.ENODEV: "a device is gone",
    errno.ENXIO: "a device is gone",
}
_MEMORY = "out of memory"
_SAYINGS = {
    # torch: one type for GPUs, and on the CPU a plain RuntimeError
    "can't allocate memory": _MEMORY,
    "not enough memory": _MEMORY,
    "out of memory": _MEMORY,
    "bad_alloc": _MEMORY,
    "cannot allocate memory": _MEMORY,
    "unable to mmap": _MEMORY,
    # the loader of libraries
    "failed to map segment": _MEMORY,
    "can't start new thread": "no further thread can be started",
    # torch's and safetensors' writers
    "no space left on device": "the disk is full",
    "disk quota exceeded": "the disk quota is used up",
    "too many open files": "this process has too many open files",
    "input/output error": "the disk does not work (input/output error)",
    "read-only file system": "the disk is read-only",
}


def shortage(error: BaseException) -> str | None:
    """Return what ran out, in words; None if ``error`` has another cause.

    An error that was raised from a shortage is one too, unless it is an OSError of its own: its author knew
    the cause and decided.
    """
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, MemoryError):
            return _MEMORY
        if isinstance(current, OSError):
            return None if current.errno is None else _WORDS.get(current.errno)
        # by their text: safetensors' and torch's writers have types of their own, which say no number
        if isinstance(current, RuntimeError | ImportError) or type(current).__name__ == "SafetensorError":
            text = str(current).lower()
            found = next((words for saying, words in _SAYINGS.items() if saying in text), None)
            if found is not None:
                return found
        current = current.__cause__
    return None
