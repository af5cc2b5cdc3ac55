"""Register the nodes' public keys in a folder, ``*.pub``, with a SuperLink."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fl_app.deploy.flower_command import FlowerCommand, add_superlink, reach_superlink

_ALREADY = "Public key already in use"
"""Answer of a SuperLink for a key that it knows."""


class RegistrationError(RuntimeError):
    """A key was not registered, for another reason than that it is already."""


def register(flower: FlowerCommand, key: Path) -> bool:
    """Register a public key; False if it was registered before."""
    done = flower.run("supernode", "register", str(key))
    said = done.stdout + done.stderr
    if done.returncode == 0:
        return True
    if _ALREADY in " ".join(said.split()):  # it is told in lines of the terminal's width
        return False
    raise RegistrationError(f"register: {key.name} was not registered: {said.strip()}")


def main() -> None:
    """Register all keys of a folder; one that cannot be is the end."""
    parser = argparse.ArgumentParser(prog="fl_app.deploy.register", description=__doc__)
    parser.add_argument("folder", type=Path, help="the folder with public keys, *.pub")
    add_superlink(parser)
    args = parser.parse_args()
    keys = sorted(args.folder.glob("*.pub"))
    if not keys:
        sys.exit(f"register: no *.pub in {args.folder}")
    with reach_superlink(args) as flower:
        for key in keys:
            try:
                new = register(flower, key)
            except RegistrationError as error:
                sys.exit(str(error))
            print(f"{key.name}: {'registered' if new else 'was registered before'}", flush=True)


if __name__ == "__main__":
    main()
