"""Pin all packages of the image by their hashes: ``make lock``.

pip decides which archives it would install, and says their hashes; nothing is installed. torch and
torchvision are left out: which build of them is right depends on the machine (the Dockerfile's TORCH_INDEX).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

APART = ("torch", "torchvision")
"""Packages with several builds of one version, and what they alone need."""
_ALONE = ("nvidia-", "triton", "cuda-")
_SOURCE = "antlr4-python3-runtime"
"""The one package of which there is no wheel: Hydra's parser."""


def requirements_of(project: Path) -> list[str]:
    """Return the dependencies of a pyproject.toml, without Ray: in a deployment clients are containers."""
    declared: list[str] = tomllib.loads(project.read_text())["project"]["dependencies"]
    return [line.replace("[simulation]", "") for line in declared]


def lines_of(report: dict[str, Any]) -> list[str]:
    """Return a line with a hash for every package of pip's report that is to be locked."""
    lines = []
    for entry in report["install"]:
        name, version = entry["metadata"]["name"], entry["metadata"]["version"]
        if name.lower() in APART or name.lower().startswith(_ALONE):
            continue
        digest = entry["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256")
        if digest is None:
            raise ValueError(f"lock: pip says no hash of {name} {version}")
        lines.append(f"{name}=={version} --hash=sha256:{digest}")
    return sorted(lines, key=str.lower)


def resolve(requirements: list[str], constraints: Path) -> dict[str, Any]:
    """Ask pip what it would install: wheels, since a source package runs its set-up, but for one."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += [
            "--only-binary=:all:",
            f"--no-binary={_SOURCE}",
            "--constraint",
            str(constraints),
            "--report",
            str(report),
        ]
        done = subprocess.run([*command, *requirements], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(f"lock: pip: {done.stderr.strip()[-1000:]}")
        answer: dict[str, Any] = json.loads(report.read_text())
    return answer


def main() -> None:
    """Print the lock."""
    parser = argparse.ArgumentParser(prog="fl_app.deploy.lock", description=__doc__.splitlines()[0])
    parser.add_argument("project", type=Path)
    parser.add_argument("constraints", type=Path)
    args = parser.parse_args()
    try:
        lines = lines_of(resolve(requirements_of(args.project), args.constraints))
    except (OSError, ValueError) as error:
        sys.exit(f"{error}")
    print("# made by make lock: pip installs these archives and no other (--require-hashes)")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
