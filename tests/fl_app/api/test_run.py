"""`fl_app.run` in this process, and its result as an object."""

from __future__ import annotations

import logging

import pandas as pd
import pytest
from parsed_page import ParsedPage

import fl_app
from fl_app.config.compose import CONF_DIR, ConfigError

SMALL = {
    "clients": 3,
    "rounds": 2,
    "evaluate_every": 1,
    "threads": 1,
    "data": {"train_per_class": 4, "test_per_class": 2},
    "attack": {"steps": 2, "adaptive": False},
}


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> fl_app.Run:
    return fl_app.run("defense=topk", run_dir=tmp_path_factory.mktemp("run") / "it's one", **SMALL)


def test_the_result_is_typed_and_lies_in_the_folder_that_was_asked_for(result):
    assert isinstance(result, fl_app.Run)
    assert result.status == "finished"
    assert result.choice("defense") == "topk"
    assert result.folder.name == "it's one"
    assert result.report.is_file()
    assert not (result.folder / "baseline").exists()
    assert [row.round for row in result.rounds] == [1, 2]
    assert result.summary.accuracy == result.rounds[-1].accuracy


def test_pandas_takes_the_rounds_and_the_attacks(result):
    rounds = pd.DataFrame(result.rounds)
    assert rounds["round"].tolist() == [1, 2]
    assert rounds["uplink_bytes"].tolist() == [row.uplink_bytes for row in result.rounds]
    attacks = pd.DataFrame(result.attacks)
    assert attacks["update"].tolist() == ["defended", "undefended"]
    assert attacks["psnr"].tolist() == [attack.psnr[0] for attack in result.attacks]


def test_a_notebook_shows_the_gallery_and_loads_nothing(result, tmp_path):
    (tmp_path / "cell.html").write_text(result._repr_html_(), encoding="utf-8")
    page = ParsedPage(tmp_path / "cell.html")
    (picture,) = page.named("img")
    assert picture["src"].startswith("data:image/png;base64,")
    assert not page.unbalanced
    assert not {tag for tag, _ in page.elements} & {"link", "script", "style"}


def test_the_folder_gives_the_same_result_again(result):
    again = fl_app.load_run(str(result.folder))
    assert again == result
    assert again._repr_html_() == result._repr_html_()


def test_the_same_settings_give_the_same_numbers_as_overrides(result, tmp_path):
    overrides = ["clients=3", "rounds=2", "evaluate_every=1", "threads=1", "defense=topk"]
    overrides += [
        "data.train_per_class=4",
        "data.test_per_class=2",
        "attack.steps=2",
        "attack.adaptive=false",
    ]
    other = fl_app.run(*overrides, run_dir=tmp_path / "other")
    assert [row.train_loss for row in other.rounds] == [row.train_loss for row in result.rounds]
    assert other.attacks[0].psnr == result.attacks[0].psnr


@pytest.mark.slow
@pytest.mark.parametrize("defense", sorted(path.stem for path in (CONF_DIR / "defense").glob("*.yaml")))
def test_no_update_of_a_run_is_doubted_whatever_its_defense(defense, tmp_path, monkeypatch):
    seen: list[str | None] = []
    check = fl_app.Observation.likely_mistake
    monkeypatch.setattr(fl_app.Observation, "likely_mistake", lambda obs: seen.append(check(obs)) or seen[-1])
    small = SMALL | {"attack": {"steps": 1, "rounds": [2], "clients": "all"}}
    more = {"custom": {"defense._target_": "fl_app.transforms.identity"}}.get(defense, {})
    fl_app.run(defense=defense, run_dir=tmp_path / "run", **small, **more)
    assert seen
    assert set(seen) == {None}


def test_the_baseline_is_trained_when_asked_for(tmp_path):
    small = SMALL | {"attack": "none", "rounds": 1}
    found = fl_app.run(run_dir=tmp_path / "run", baseline=True, **small)
    assert fl_app.load_run(found.folder / "baseline").choice("defense") == "none"


def test_mistakes_are_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for wrong in (["defense=none,topk"], ["defence=dgp"], ["dgp"], ["defense=dpg"]):
        with pytest.raises(ConfigError):
            fl_app.run(*wrong)
    assert not list(tmp_path.iterdir())


def test_flowers_logger_is_left_as_it_was(result):
    assert logging.getLogger("flwr").level != logging.WARNING
