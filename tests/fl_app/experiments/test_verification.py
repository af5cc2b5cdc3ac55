"""Published results are rerun and compared; a changed score, sample or setting is found."""

import json
import shlex
import shutil

import pytest
from federations import SMALL

from fl_app.cli import verify as command
from fl_app.experiments.studies import StudyOrder, run_study
from fl_app.experiments.verification import find_published, verify
from fl_app.results import load_run
from fl_app.results.units import read_units, write_units

ATTACKED = "attack=ig attack.steps=3 attack.clients=[0,1] attack.adaptive=both"
RAW = {
    "paper": "dgp",
    "what": "Table 1",
    "title": "A small one",
    "scale": {"cpu": shlex.split(SMALL)},
    "parts": {"ig": {"set": shlex.split(ATTACKED), "sweep": {"defense": ["none", "topk"]}}},
    "claims": [
        {
            "name": "a",
            "text": "top-k leaks less",
            "less": {"defense": "topk", "metric": "ssim"},
            "than": {"defense": "none", "metric": "ssim"},
        }
    ],
}
CELL = "ig: defense=topk"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    root = tmp_path_factory.mktemp("published")
    run_study(StudyOrder(name="quick", raw=RAW, command="fl-app -m", root=root), lambda _: None)
    return root


@pytest.fixture
def published(whole, tmp_path):
    """Return a copy of the study's own files, without its runs."""
    folder = tmp_path / "quick-cpu"
    folder.mkdir()
    for name in ("study.json", "units.csv"):
        shutil.copyfile(whole / "quick" / "cpu" / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def work(tmp_path_factory, whole):
    """Return a folder with the reruns, so that not every test trains."""
    folder = tmp_path_factory.mktemp("work")
    assert verify(whole / "quick" / "cpu", None, folder, lambda _: None, 1).agrees
    return folder


def change_unit(folder, change, metric="ssim"):
    units = read_units(folder)
    place = next(n for n, unit in enumerate(units) if unit.cell == CELL and unit.metric == metric)
    before, units[place] = units[place], change(units[place])
    write_units(units, folder)
    return before


def change_cell(folder, **fields):
    content = json.loads((folder / "study.json").read_text())
    cell = next(cell for cell in content["cells"] if cell["name"] == CELL)
    for name, value in fields.items():
        cell[name] = cell[name] | value if isinstance(value, dict) else value
    (folder / "study.json").write_text(json.dumps(content))


def again(folder, work, cell=CELL):
    found = verify(folder, cell, work, lambda _: None, 1)
    return found, (found.compared[0] if found.compared else None)


def test_a_rerun_agrees_bit_by_bit(whole, tmp_path):
    found = verify(whole / "quick" / "cpu", CELL, tmp_path, lambda _: None, 1)
    assert found.agrees
    assert found.compared[0].exact
    assert found.compared[0].compared > 20


def test_units_name_their_samples_and_models(whole):
    units = read_units(whole / "quick" / "cpu")
    images = [unit for unit in units if unit.kind == "image"]
    by_client = {unit.client: unit.sample for unit in images}
    assert len(set(by_client.values())) == 2
    assert len({unit.model for unit in images}) == 1
    assert all(len(unit.sample) == len(unit.model) == 16 for unit in images)
    assert {unit.form for unit in images if unit.cell == CELL} == {"plain", "adaptive"}


def test_each_cell_says_where_its_numbers_come_from(whole):
    content = json.loads((whole / "quick" / "cpu" / "study.json").read_text())
    for cell in content["cells"]:
        run = load_run((whole / "quick" / "cpu" / cell["folder"]).resolve())
        assert cell["config"] == run.config_hash
        assert cell["origin"]["test_data"]
        assert cell["origin"]["threads"] >= 1
        assert cell["versions"]["torch"]


def test_the_last_bit_of_a_score_is_found(published, work):
    before = change_unit(published, lambda unit: unit._replace(value=unit.value * (1 + 2**-52)))
    found, one = again(published, work)
    assert not found.agrees
    assert len(one.differences) == 1
    assert one.differences[0].startswith(before.in_words)
    assert one.differences[0].endswith(repr(before.value))


def test_another_sample_is_found_whatever_the_machine(published, work):
    change_cell(published, origin={"processor": "another"})
    change_unit(published, lambda unit: unit._replace(sample="0" * 16))
    found, one = again(published, work)
    assert not found.agrees
    assert not one.exact
    assert "of sample 0000000000000000" in one.differences[0]


def test_on_another_processor_means_are_compared_within_a_tolerance(published, work):
    change_cell(published, origin={"processor": "another"})
    change_unit(published, lambda unit: unit._replace(value=unit.value + 0.01))
    found, one = again(published, work)
    assert found.agrees
    assert any("published another" in note for note in one.notes)
    change_unit(published, lambda unit: unit._replace(value=unit.value + 0.5))
    found, one = again(published, work)
    assert not found.agrees
    assert "mean" in one.differences[0]


def test_units_that_only_one_side_has_are_found(published, work):
    units = read_units(published)
    write_units(units[:-1], published)
    found, one = again(published, work)
    assert not found.agrees
    assert "not published" in one.differences[0]
    extra = units[-1]._replace(client="7")
    write_units([*units, extra], published)
    _, one = again(published, work)
    assert "missing in the rerun" in one.differences[0]


def test_changed_settings_are_named(published, work):
    change_cell(published, config="0" * 64)
    found, one = again(published, work)
    assert one is None
    assert "conf/ has changed" in found.failed[CELL]


def test_a_cell_that_fails_is_no_agreement(published, tmp_path):
    change_cell(published, overrides=["defense=nothing"])
    found, _ = again(published, tmp_path / "new")
    assert not found.agrees
    assert "nothing" in found.failed[CELL]


def test_unknown_names_list_what_there_is(whole, published, work):
    with pytest.raises(ValueError, match="ig: defense=topk"):
        again(published, work, cell="ig: defense=tokp")
    with pytest.raises(FileNotFoundError, match="quick"):
        find_published("qick", (whole,))
    assert find_published("quick", (published.parent,)) == published
    assert find_published("quick", (whole,)) == whole / "quick" / "cpu"
    assert find_published(str(published), ()) == published


@pytest.mark.parametrize("broken", [False, True])
def test_the_command_exits_by_the_outcome(published, work, capsys, broken):
    arguments = [f"{published}/{CELL}", "--folder", str(work)]
    if broken:
        change_unit(published, lambda unit: unit._replace(value=0.0))
        with pytest.raises(SystemExit) as caught:
            command.main(arguments)
        assert caught.value.code == 1
    else:
        command.main(arguments)
    assert f"verified: {0 if broken else 1} of 1 cells agree" in capsys.readouterr().out
