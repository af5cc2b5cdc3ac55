"""Two networks of their own with one cable between them, which can be cut.

They are Linux network namespaces with a pair of virtual devices: nothing in them is seen from, or
reaches, the machine's own network. Making them needs rights that not every machine gives.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


class NotAllowed(RuntimeError):
    """Namespaces cannot be made here."""


@dataclass(frozen=True)
class Cable:
    """What joins the namespaces ``near`` and ``far``."""

    near: str
    far: str
    device: str
    address: str
    """The near end's; the far end can reach no other."""

    def within(self, namespace: str) -> list[str]:
        """Return the first words of a command that is to run in a namespace."""
        return [_ip(), "netns", "exec", namespace]

    def cut(self) -> None:
        """Let no packet through, as if the cable were pulled out."""
        _run("-netns", self.near, "link", "set", self.device, "down")

    def mend(self) -> None:
        """Plug it in again."""
        _run("-netns", self.near, "link", "set", self.device, "up")


@contextmanager
def two_networks() -> Iterator[Cable]:
    """Make two namespaces with a cable between them; they are gone afterwards."""
    name = f"fl{os.getpid()}x{random.randrange(1000)}"
    near, far = f"{name}a", f"{name}b"
    # a block that is set aside for tests of networks (RFC 2544)
    third = f"198.18.{random.randrange(256)}"
    made = []
    try:
        for namespace in (near, far):
            _run("netns", "add", namespace)
            made.append(namespace)
            _run("-netns", namespace, "link", "set", "lo", "up")
        ends = {near: (f"{name}0"[:15], 1), far: (f"{name}1"[:15], 2)}
        _run(
            *("link", "add", ends[near][0], "netns", near, "type", "veth"),
            *("peer", "name", ends[far][0], "netns", far),
        )
        for namespace, (device, number) in ends.items():
            _run("-netns", namespace, "address", "add", f"{third}.{number}/30", "dev", device)
            _run("-netns", namespace, "link", "set", device, "up")
        yield Cable(near, far, ends[near][0], f"{third}.1")
    finally:
        for namespace in made:
            _run("netns", "delete", namespace)


def _ip() -> str:
    found = shutil.which("ip", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if found is None:
        raise NotAllowed("there is no command ip")
    return found


def _run(*words: str) -> None:
    done = subprocess.run([_ip(), *words], capture_output=True, text=True)
    if done.returncode:
        raise NotAllowed(f"ip {' '.join(words)}: {done.stderr.strip()}")
