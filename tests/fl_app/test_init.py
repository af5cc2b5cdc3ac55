"""The names that `import fl_app` offers, and their price."""

import subprocess
import sys
import tomllib

import pytest

import fl_app

HEAVY = {"torch", "flwr", "hydra", "omegaconf", "pydantic", "numpy", "matplotlib", "ray"}


def imported_by(line: str) -> set[str]:
    code = f"{line}\nimport sys\nprint(*{{name.split('.')[0] for name in sys.modules}})"
    return set(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.split()
    )


@pytest.mark.parametrize(
    "line", ["import fl_app", "import fl_app; fl_app.__version__", "import fl_app; dir(fl_app)"]
)
def test_importing_the_package_imports_nothing_heavy(line):
    assert not imported_by(line) & HEAVY


def test_a_name_brings_what_it_needs():
    assert "torch" in imported_by("from fl_app import Observation")
    assert "flwr" not in imported_by("from fl_app import Observation")


def test_every_name_that_is_promised_is_there():
    promised = {"run", "attack", "load_run", "Run", "Observation", "Truth", "Update", "__version__"}
    assert set(fl_app.__all__) == promised
    assert all(getattr(fl_app, name) is not None for name in promised)
    assert promised <= set(dir(fl_app))
    assert callable(fl_app.run)
    assert callable(fl_app.attack)


def test_the_version_is_that_of_the_project(repository):
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    assert fl_app.__version__ == project["version"]


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing"):
        fl_app.nothing  # noqa: B018
