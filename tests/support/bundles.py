"""Bundles that Flower builds of the small apps."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

APPS = Path(__file__).parents[1] / "apps"


def bundle_of(name: str, place: Path) -> Path:
    """Build the app ``name`` of `tests/apps` into ``place``; names of bundles have no underscore."""
    dashed = name.replace("_", "-")
    app = Path(shutil.copytree(APPS / name, place / dashed, ignore=shutil.ignore_patterns("__pycache__")))
    project = app / "pyproject.toml"
    project.write_text(project.read_text().replace(f'name = "{name}"', f'name = "{dashed}"'))
    flwr = Path(sys.executable).parent / "flwr"
    environment = os.environ | {"FLWR_HOME": str(place / "flwr")}
    subprocess.run(
        [str(flwr), "build", "--app", str(app)], cwd=place, env=environment, check=True, timeout=120
    )
    (bundle,) = place.glob("*.fab")
    return bundle
