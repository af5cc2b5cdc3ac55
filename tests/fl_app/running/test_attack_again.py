"""A finished run is attacked again: what was seen is on disk, and nothing is trained."""

import json
import logging

import pytest
import torch
from federations import SMALL
from safetensors.torch import load_file, save_file
from signed_files import write_facts

from fl_app.adversary.sightings import FOLDER, load_sightings
from fl_app.cli.new_attack import attack_again
from fl_app.client_app import app
from fl_app.config.compose import ConfigError
from fl_app.flower import InlineGrid
from fl_app.report.data.scores import PSNR, mean_score, worst_score
from fl_app.report.data.update_kinds import as_sent
from fl_app.results import load_run
from fl_app.running.federation import run_federation

QUICK = "attack.steps=3"


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


def finished_run(folder, overrides=""):
    text = f"{SMALL} attack=ig {QUICK} rounds=2 attack.clients=[1,3] attack.rounds=[1,2] {overrides}"
    text += f" run_dir={folder}"
    run_federation(InlineGrid(app, 5, run_config={"overrides": text}), text)
    return folder


def attacks(folder):
    return json.loads((folder / "result.json").read_text())["attacks"]


def without_time(entries):
    # a finished run has no other people's images at hand, among which to pick the right one
    left_out = {"seconds", "identified", "identified_share", "identified_by", "candidates"}
    return [{key: value for key, value in entry.items() if key not in left_out} for entry in entries]


@pytest.mark.parametrize("defense", ["dgp", "adgp", pytest.param("ats", marks=pytest.mark.slow), "none"])
def test_the_same_attack_finds_the_same_again(tmp_path, defense):
    folder = finished_run(tmp_path, f"defense={defense}")
    first = attacks(folder)
    assert len(first) == (4 if defense == "none" else 12)
    attack_again(folder, ["attack=ig", QUICK])
    assert without_time(attacks(folder)) == without_time(first)


def test_another_attack_is_added_and_the_rest_stays(tmp_path):
    folder = finished_run(tmp_path, "defense=dgp attack.adaptive=false")
    before = json.loads((folder / "result.json").read_text())
    attack_again(folder, ["attack.adaptive=false", QUICK, "attack.grant.labels=false"])
    after = json.loads((folder / "result.json").read_text())
    assert without_time(after["attacks"][:8]) == without_time(before["attacks"])
    assert {entry["labels_from"] for entry in after["attacks"][8:]} == {"inferred"}
    assert len({entry["images"] for entry in after["attacks"]}) == 16
    assert all((folder / entry["images"]).is_file() for entry in after["attacks"])
    assert after["rounds"] == before["rounds"]
    assert after["config"] == before["config"]


def test_a_weaker_attack_stands_beside_the_stronger_one_with_its_settings(tmp_path):
    folder = finished_run(tmp_path, "defense=none attack.steps=40")
    before = attacks(folder)
    attack_again(folder, [QUICK])
    after = attacks(folder)
    assert without_time(after[: len(before)]) == without_time(before)
    assert [entry["settings"]["steps"] for entry in after] == [40] * len(before) + [3] * len(before)
    assert len({entry["images"] for entry in after}) == len(after)
    run = load_run(folder)
    best = max(value for entry in before for value in entry["psnr"])
    assert worst_score(PSNR, as_sent(run)) == best
    assert mean_score(PSNR, run.attacks) == mean_score(PSNR, run.attacks[: len(before)])
    page = (folder / "report.html").read_text()
    assert page.count('data-fact="attack-settings"') == len(after)
    attack_again(folder, [QUICK])
    assert without_time(attacks(folder)) == without_time(after)


def test_a_run_keeps_each_model_once_and_only_plain_tensors(tmp_path):
    folder = finished_run(tmp_path, "defense=dgp") / FOLDER
    assert sorted(path.name for path in folder.iterdir()) == [
        "public.json",
        "r1-c1.safetensors",
        "r1-c3.safetensors",
        "r1-model.safetensors",
        "r2-c1.safetensors",
        "r2-c3.safetensors",
        "r2-model.safetensors",
    ]
    sightings, spec, public = load_sightings(tmp_path)
    assert [(s.order.round, s.order.client) for s in sightings] == [(1, 1), (1, 3), (2, 1), (2, 3)]
    assert list(sightings[0].update) == list(sightings[0].weights)
    assert sightings[0].weights is sightings[1].weights
    assert spec.target == "fl_app.models.lenet_zhu"
    assert public.input_shape == (3, 32, 32)


def test_nothing_is_kept_if_that_is_not_wanted_and_the_command_says_so(tmp_path):
    folder = finished_run(tmp_path, "audit.store=false")
    assert not (folder / FOLDER).exists()
    with pytest.raises(ValueError, match=r"audit\.store=false"):
        attack_again(folder, [QUICK])


def test_a_finished_run_is_not_trained_in_another_way(tmp_path):
    with pytest.raises(ValueError, match="rounds=3: a finished run can be attacked in another way"):
        attack_again(tmp_path, ["rounds=3"])
    folder = finished_run(tmp_path)
    with pytest.raises(ConfigError, match="attack=none attacks nothing"):
        attack_again(folder, ["attack=none"])


def test_a_file_that_was_damaged_or_made_up_is_named(tmp_path):
    folder = finished_run(tmp_path) / FOLDER
    file = folder / "r1-c1.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:200])
    with pytest.raises(ValueError, match=r"r1-c1\.safetensors: cannot be read"):
        load_sightings(tmp_path)
    save_file({"update/w": torch.ones(2)}, file)
    with pytest.raises(ValueError, match=r"r1-c1\.safetensors: .*has no checksum"):
        load_sightings(tmp_path)
    file.write_bytes(content)
    public = folder / "public.json"
    facts = json.loads(public.read_text())
    write_facts(public, facts | {"version": 9})
    with pytest.raises(ValueError, match=r"public\.json: cannot be read: version must be 3, got 9"):
        load_sightings(tmp_path)


def test_a_model_that_only_the_folder_names_is_not_built(tmp_path):
    folder = finished_run(tmp_path)
    public = folder / FOLDER / "public.json"
    facts = json.loads(public.read_text())
    facts["model"] = facts["model"].replace("fl_app.models.lenet_zhu", "os.system")
    write_facts(public, facts)
    with pytest.raises(ConfigError, match="target must be one of"):
        attack_again(folder, [QUICK])


def test_the_truth_in_the_files_is_what_was_audited(tmp_path):
    folder = finished_run(tmp_path, "defense=ats")
    stored = load_file(folder / FOLDER / "r1-c1.safetensors")
    assert {name for name in stored if name.startswith("truth/")} == {
        "truth/inputs",
        "truth/labels",
        "truth/trained",
    }
