"""The example notebooks run from top to bottom: shortened by default, as they are in the slow set."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
SHORT = {
    "attack_your_model": "STEPS = 2",
    "choose_a_defense": "DEFENSES = ('none', 'dgp'); ROUNDS = 1; SAMPLES = 4; STEPS = 2",
}


def execute(name: str, folder: Path, parameters: str | None = None) -> nbformat.NotebookNode:
    """Run a notebook in ``folder``; ``parameters`` take the place of the cell with that tag."""
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    cell.source = parameters or cell.source
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}})
    return client.execute()


@pytest.fixture(autouse=True)
def _beside_the_packages(monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(repository))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def outputs(notebook: nbformat.NotebookNode, kind: str) -> list[str]:
    """Return all outputs of one MIME type."""
    data = [output.data for cell in notebook.cells for output in cell.get("outputs", []) if "data" in output]
    return [found[kind] for found in data if kind in found]


def printed(notebook: nbformat.NotebookNode, stream: str = "stdout") -> str:
    cells = (output for cell in notebook.cells for output in cell.get("outputs", []))
    return "".join(output.text for output in cells if output.get("name") == stream)


def test_every_notebook_is_run_here():
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} == SHORT.keys()


@pytest.mark.parametrize("name", SHORT)
def test_a_notebook_is_stored_without_outputs(name):
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)


def check_attack(notebook: nbformat.NotebookNode) -> None:
    assert printed(notebook).count("label: [3]") == 2
    assert "from_weights" in printed(notebook)
    assert len(outputs(notebook, "image/png")) == 2


def check_choice(notebook: nbformat.NotebookNode, folder: Path, *defenses: str) -> None:
    shown = outputs(notebook, "text/html")
    assert len(shown) == 4
    assert shown[0].count("data:image/png;base64,") == 1
    assert all(defense in shown[-1] for defense in defenses)
    assert all((folder / line).is_file() for line in printed(notebook).splitlines())
    assert len(printed(notebook).splitlines()) == len(defenses)


def test_attack_your_model_runs_shortened(tmp_path):
    check_attack(execute("attack_your_model", tmp_path, SHORT["attack_your_model"]))


def test_choose_a_defense_runs_shortened(tmp_path):
    check_choice(execute("choose_a_defense", tmp_path, SHORT["choose_a_defense"]), tmp_path, "none", "dgp")


@pytest.mark.slow
def test_attack_your_model_recovers_the_picture(tmp_path):
    notebook = execute("attack_your_model", tmp_path)
    check_attack(notebook)
    (error,) = [line for line in printed(notebook).splitlines() if line.startswith("mean squared error")]
    assert float(error.rpartition(" ")[2]) < 0.01


@pytest.mark.slow
def test_choose_a_defense_runs_as_it_is(tmp_path):
    check_choice(execute("choose_a_defense", tmp_path), tmp_path, "none", "topk", "dgp")
