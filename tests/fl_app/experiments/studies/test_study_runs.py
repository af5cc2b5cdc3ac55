"""Studies that are really run, for two rounds: interrupted, gone on with, failing, in several processes."""

import json
import shlex
import shutil

import pytest
from cut_runs import strike_defense
from federations import SMALL

from fl_app.config import compose as overrides
from fl_app.config.compose import ConfigError
from fl_app.experiments.studies import StudyOrder, run_study

ACCURACY = {"metric": "accuracy"}
RAW = {
    "paper": "dgp",
    "what": "Table 1",
    "title": "Two defenses",
    "scale": {"cpu": shlex.split(SMALL)},
    "parts": {
        "accuracy": {"sweep": {"defense": ["none", "topk"]}},
        "private": {"sweep": {"defense": ["sign"]}},
    },
    "table": {
        "columns": {"none": {"defense": "none"}, "top-k": {"defense": "topk"}},
        "rows": [{"name": "Accuracy", "select": {"part": "accuracy", **ACCURACY}, "better": "higher"}],
    },
    "claims": [
        {
            "name": "a",
            "text": "top-k sends less",
            "less": {"defense": "topk", "metric": "uplink_bytes"},
            "than": {"defense": "none", "metric": "uplink_bytes"},
        }
    ],
    "figures": [{"kind": "lines", "title": "Curves", "x": "round", "y": "accuracy", "series": "defense"}],
}


def run(root, name="quick", **more):
    lines = []
    order = StudyOrder(name=name, raw=RAW, command="fl-app -m", root=root, **more)
    return run_study(order, lines.append), lines


def written(root, name="quick"):
    """Return all that is the same whenever the cells are the same."""
    folder = root / name / "cpu"
    content = json.loads((folder / "study.json").read_text())
    files = {
        name: (folder / name).read_bytes() for name in ("table.md", "table.csv", "claims.json", "figure1.svg")
    }
    return content, files


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    end, lines = run(folder)
    assert [line.split(" finished")[0] for line in lines] == [
        "cell 1 of 3: accuracy: defense=none:",
        "cell 2 of 3: accuracy: defense=topk:",
        "cell 3 of 3: private: defense=sign:",
    ]
    return folder, end


def test_a_study_ends_with_its_table_and_its_verdicts(whole):
    folder, end = whole
    assert end.page == folder / "quick" / "cpu" / "study.html"
    assert [place.mean is not None for place in end.found.lines[0].ours] == [True, True]
    assert [verdict.verdict for verdict in end.found.verdicts] == ["holds"]
    content, _ = written(folder)
    assert content["finished"]
    assert all((end.page.parent / cell["folder"] / "result.json").is_file() for cell in content["cells"])


def test_an_interrupted_study_says_what_it_has_and_goes_on_to_the_same_table(tmp_path, monkeypatch, whole):
    with monkeypatch.context() as patch:
        strike_defense(patch, KeyboardInterrupt(), defense="topk")
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path)
    half, _ = written(tmp_path)
    assert [cell["status"] for cell in half["cells"]] == ["finished", "missing", "missing"]
    assert not half["finished"]
    _, lines = run(tmp_path)
    assert "skipped" in lines[0]
    assert written(tmp_path) == written(whole[0])


def test_a_failed_cell_is_missing_with_its_reason(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        strike_defense(patch, RuntimeError("out of memory"), defense="topk")
        end, _ = run(tmp_path)
    assert end.failed == ["accuracy: defense=topk"]
    assert "RuntimeError: out of memory" in end.found.lines[0].ours[1].missing
    assert end.found.verdicts[0].verdict == "not measured"
    assert end.found.cells[2].run is not None


def test_other_overrides_have_a_table_of_their_own_and_share_the_cells(whole):
    folder, end = whole
    before = written(folder)
    other, lines = run(folder, parts=("accuracy",), overrides=("defense=none",))
    assert lines == ["cell 1 of 1: accuracy: defense=none: skipped, finished already"]
    assert other.page.parent.parent == end.page.parent
    assert other.page.parent.name.startswith("variant-")
    assert other.found.lines[0].ours[0].mean == end.found.lines[0].ours[0].mean
    assert other.found.lines[0].ours[1].missing == "not among the cells of this command"
    assert written(folder) == before


def test_another_study_with_the_same_cells_runs_none_of_them_again(whole, tmp_path, monkeypatch):
    folder, _ = whole
    conf = shutil.copytree(overrides.CONF_DIR, tmp_path / "conf")
    shutil.copy(conf / "experiment/quick.yaml", conf / "experiment/second.yaml")
    monkeypatch.setattr(overrides, "CONF_DIR", conf)
    _, lines = run(folder, name="second")
    assert all("skipped, finished already" in line for line in lines)
    mine, theirs = written(folder, "second"), written(folder)
    assert mine[1] == theirs[1]
    assert [cell["folder"] for cell in mine[0]["cells"]] == [cell["folder"] for cell in theirs[0]["cells"]]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"scale": "paper"}, "scale: quick has cpu, got 'paper'"),
        ({"parts": ("accurcy",)}, "parts: quick has accuracy, private, got 'accurcy' .did you mean accuracy"),
        ({"overrides": ("roundz=1",)}, "accuracy: defense=none: roundz: unknown key"),
    ],
)
def test_a_wrong_command_is_refused_before_anything_runs(tmp_path, more, words):
    with pytest.raises(ConfigError, match=words):
        run(tmp_path, **more)
    assert not list(tmp_path.iterdir())


def test_two_processes_give_the_same_table(tmp_path, whole):
    _, lines = run(tmp_path, jobs=2)
    assert sorted(line[:11] for line in lines) == ["cell 1 of 3", "cell 2 of 3", "cell 3 of 3"]
    assert written(tmp_path) == written(whole[0])
    assert not list(tmp_path.rglob("*.lock"))
