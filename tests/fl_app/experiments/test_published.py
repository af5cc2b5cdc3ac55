"""The results that the repository publishes: their files agree with each other, and a rerun with them."""

import json
from pathlib import Path

import pytest

from fl_app.experiments.verification import verify
from fl_app.results.study import STUDY, load_study
from fl_app.results.units import read_units

REPOSITORY = Path(__file__).parents[3]
PUBLISHED = sorted(path.parent for path in (REPOSITORY / "docs" / "results").glob(f"*/{STUDY}"))
DATA = REPOSITORY.parent / "shared" / "data"


def test_something_is_published():
    assert PUBLISHED


@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: folder.name)
def test_the_files_agree_and_name_no_place_of_a_machine(folder):
    study, units = load_study(folder / STUDY), read_units(folder)
    assert folder.name == f"{study.name}-{study.scale}"
    assert {unit.cell for unit in units} == {cell.name for cell in study.cells if cell.status == "finished"}
    assert all(unit.sample and unit.model for unit in units if unit.kind == "image")
    assert all(cell.config and cell.origin and cell.versions for cell in study.cells)
    assert json.loads((folder / "claims.json").read_text()) == [claim.as_json() for claim in study.claims]
    texts = [path.read_text() for path in folder.iterdir()]
    assert not any(place in text for text in texts for place in ("/tmp/", "/home/", "/root/"))


@pytest.mark.slow
@pytest.mark.parametrize("folder", PUBLISHED, ids=lambda folder: folder.name)
def test_a_published_cell_can_be_rerun(folder, tmp_path, monkeypatch):
    if not DATA.is_dir():
        pytest.skip(f"{DATA} is not there")
    monkeypatch.setenv("FL_APP_DATA", str(DATA))
    cell = next(cell.name for cell in load_study(folder / STUDY).cells if cell.status == "finished")
    found = verify(folder, cell, tmp_path, lambda _: None, 1)
    assert found.agrees, (found.failed, found.compared)
