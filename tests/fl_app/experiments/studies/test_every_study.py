"""Every experiment that is a study can be read, planned and begun, at each of its scales."""

import shlex

import pytest
from federations import SMALL
from tone_corpus import write_corpus

from fl_app.config import compose as overrides
from fl_app.config.compose import compose, join_overrides, key_of, study_of
from fl_app.experiments.job import run_job
from fl_app.experiments.studies import check_selectors, check_settings, plan_cells, read_study, scales_of
from fl_app.results import load_run

EXPERIMENTS = sorted(path.stem for path in (overrides.CONF_DIR / "experiment").glob("*.yaml"))
STUDIES = [
    name for name in EXPERIMENTS if "\nstudy:" in (overrides.CONF_DIR / f"experiment/{name}.yaml").read_text()
]
SCALES = [(name, scale) for name in STUDIES for scale in scales_of(name, study_of(name))]


def test_there_are_studies_and_other_experiments():
    assert "dgp_table1" in STUDIES
    assert study_of("quick") is None


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_a_study_is_planned_and_asks_for_what_its_cells_are(name, scale):
    study = read_study(name, study_of(name), scale)
    cells = plan_cells(study)
    check_selectors(study, cells)
    check_settings(cells)
    assert study.rows or study.figures
    assert study.claims or study.paper == "own"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_every_cell_of_a_study_has_a_config(name, scale):
    for cell in plan_cells(read_study(name, study_of(name), scale)):
        compose(join_overrides(cell.overrides))


def small_data(kind, folder) -> list[str]:
    """Return little data of the kind that a study has, and the model where that depends on it."""
    if kind == "text":
        return ["data=text"]
    if kind == "random":
        return ["data=random", "data.shape=[3,32,32]", "data.train=40", "data.test=4", "model=lenet"]
    if kind == "speech":
        return [
            *("data=speech", f"data.root={write_corpus(folder / 'corpus')}", "data.mels=12"),
            *("data.pieces=null", "data.vocabulary=null", "data.max_characters=50", "data.max_seconds=4"),
            *("model=las", *(f"model.{size}=8" for size in ("encoder", "embedding", "attention"))),
            *("model.decoder=64", "attack.clients=[0,1]"),
        ]
    photographs = ["data=photos", *(o for o in shlex.split(SMALL) if o.startswith("data."))]
    return [*photographs, "public=held_out", "public.samples=10", "balance=false"]


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_a_small_version_of_the_first_cell_of_every_part_runs(name, tmp_path):
    cells = plan_cells(read_study(name, study_of(name)))
    for cell in {cell.part: cell for cell in reversed(cells)}.values():
        config = cell.config
        kind = config["choices"]["data"]
        replaced = ("partition", "public") if kind == "text" else ("data", "partition", "public")
        kept = [o for o in cell.overrides if key_of(o).split(".")[0] not in replaced]
        dealt = (
            ["partition=fixed", "partition.samples=4"]
            if "samples" in config["partition"]
            else ["partition=iid"]
        )
        small = [*small_data(kind, tmp_path), *dealt, "fraction=1", "validation=0", "rounds=1"]
        small += [o for o in shlex.split(SMALL) if not o.startswith(("attack=", "data.", "rounds="))]
        small += [f"attack.{key}=2" for key in ("steps", "bins") if key in config["attack"]]
        small += ["attack.rounds=[1]"] if "rounds" in config["attack"] else []
        folder = run_job([*kept, *small], folder=tmp_path / cell.part, sweep=True)
        assert load_run(folder).status == "finished"
