"""Supported versions: an environment for each Flower, in which the core of the tests and an audit run.

python -m benchmarks.versions 1.40 1.41    environments are kept in .cache/versions

The environment of the oldest Flower has the oldest version of every other dependency that pyproject.toml
allows, and the others the newest.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path

from fl_app.flower.supported import OLDEST

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / ".cache" / "versions"
TOOLS = ("pytest>=8", "hypothesis>=6.120", "jsonschema>=4.20", "pandas>=2.2")
CORE = (
    "tests/fl_app/flower",
    "tests/fl_app/mods",
    "tests/fl_app/client/test_library.py",
    "tests/fl_app/client/test_flower_parts.py",
    "tests/fl_app/strategies/test_persistence.py",
    "tests/fl_app/wire",
    "tests/fl_app/audit/test_claims.py",
)
"""Tests of everything that touches Flower, and of the main formats."""
AUDITED = "tests/apps/tabular"
SHOWN = ("flwr", "torch", "numpy", "opacus", "hydra-core", "safetensors")


def requirements(project: Path, flower: str, *, oldest: bool) -> list[str]:
    """Return the packages to install: Flower at ``flower``, all others at an end of their ranges."""
    found = []
    for line in tomllib.loads(project.read_text())["project"]["dependencies"]:
        name, bounds = re.fullmatch(r"([A-Za-z0-9_\-]+(?:\[[a-z,]+\])?)(.*)", line).groups()  # type: ignore[union-attr]
        if name.startswith("flwr"):
            found.append(f"{name}=={flower}.*")
            continue
        least = re.match(r">=([^,]+)", bounds)
        found.append(f"{name}=={least[1]}" if oldest and least else line)
    return found


def environment(flower: str) -> Path:
    """Return the Python of the environment for a version of Flower; it is made if it is not there."""
    place = PLACE / f"flwr-{flower}"
    python, ready = place / "bin" / "python", place / ".ready"
    oldest = flower == ".".join(map(str, OLDEST))
    wanted = requirements(ROOT / "pyproject.toml", flower, oldest=oldest)
    if ready.is_file() and ready.read_text().splitlines() == wanted:
        return python
    venv.create(place, with_pip=True, clear=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    torch = [line for line in wanted if line.startswith("torch")]
    # torch first: no other package may pull another build of it
    for packages in (torch[:1], [*wanted, *TOOLS], ["--no-deps", "--editable", str(ROOT)]):
        subprocess.run([*install, *packages], check=True)
    ready.write_text("\n".join(wanted) + "\n")
    return python


def tried(python: Path) -> tuple[str, str, str]:
    """Return the installed versions, and what the core of the tests and an audit say."""
    quiet = os.environ | {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    shown = (
        f"from importlib.metadata import version; print(', '.join(f'{{n}} {{version(n)}}' for n in {SHOWN}))"
    )
    versions = _run([str(python), "-c", shown], quiet).stdout.strip()
    tests = _run([str(python), "-m", "pytest", "-p", "no:cacheprovider", *CORE], quiet)
    lines = tests.stdout.strip().splitlines()
    with tempfile.TemporaryDirectory() as out:
        command = [str(python.parent / "fl-app-audit"), "--app", AUDITED, "--no-exits", "--out", out]
        audit = _run([*command, "--attack-seconds", "5"], quiet)
    said = audit.stdout.strip().splitlines()
    return (
        versions,
        ("passed: " if tests.returncode == 0 else "FAILED: ")
        + (lines[-1].strip("= ") if lines else tests.stderr),
        ("done: " + said[0]) if audit.returncode == 0 and said else "FAILED: " + audit.stderr.strip()[-300:],
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Try every version that is named; the exit code is 1 if one fails."""
    parser = argparse.ArgumentParser(prog="benchmarks.versions", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("versions", nargs="+", metavar="FLWR")
    failed = False
    print("| environment | tests | audit |\n|---|---|---|")
    for flower in parser.parse_args(arguments).versions:
        versions, tests, audit = tried(environment(flower))
        failed |= "FAILED" in tests + audit
        print(f"| {versions} | {tests} | {audit} |", flush=True)
    return int(failed)


def _run(command: list[str], settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
