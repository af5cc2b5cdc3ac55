"""The page of all settings is made from ``conf/``, whole and up to date."""

from pathlib import Path

import pytest

from fl_app.config.compose import CONF_DIR, compose
from fl_app.config.reference import description, reference, settings


def test_the_page_in_the_repository_is_up_to_date(repository):
    page = (repository / "docs" / "reference.md").read_text(encoding="utf-8")
    assert page == reference(), "run: python -m fl_app.config.reference docs/reference.md"


def test_every_choice_has_a_row_and_a_description():
    page = reference()
    for file in CONF_DIR.glob("*/*.yaml"):
        assert description(file), file
        section = page.split(f"## `{file.parent.name}=`\n")[1].split("\n## ")[0]
        assert f"\n| `{file.stem}`" in section


def test_settings_of_the_main_file_are_keys_of_the_composed_config():
    config = compose("")
    for setting in settings(CONF_DIR / "config.yaml"):
        node = config
        for part in setting.key.split("."):
            assert part in node, setting.key
            node = node[part]


def test_a_file_gives_its_first_comment_and_its_own_values(tmp_path, monkeypatch):
    monkeypatch.setattr("fl_app.config.conf_files.CONF_DIR", tmp_path)
    file = tmp_path / "defense" / "mine.yaml"
    file.parent.mkdir()
    file.write_text(
        "# @package _global_\n# Mine:\n# for images of <class>.\n#   fl-app defense=mine\n"
        "defense:\n  _target_: my.f\n  k: 0.5  # share | part\n  lr: ${lr}\n  root: ${oc.env:A,b}\n"
        "  deep:\n    x: [1, 2]\n"
    )
    assert description(file) == "Mine: for images of &lt;class>."
    assert [tuple(setting) for setting in settings(file)] == [
        ("defense.k", "0.5", "share | part"),
        ("defense.root", "${oc.env:A,b}", ""),
        ("defense.deep.x", "[1, 2]", ""),
    ]


def test_settings_of_base_files_count_unless_the_file_has_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr("fl_app.config.conf_files.CONF_DIR", tmp_path)
    (tmp_path / "attack" / "base").mkdir(parents=True)
    (tmp_path / "attack" / "base" / "search.yaml").write_text(
        "# @package attack\nsteps: 1  # how many\ntrace: 0  # snapshots\n"
    )
    file = tmp_path / "attack" / "mine.yaml"
    file.write_text("# Mine\ndefaults:\n  - base/search\n  - _self_\nname: mine\nsteps: 7\n")
    assert [tuple(setting) for setting in settings(file)] == [
        ("attack.steps", "7", "how many"),
        ("attack.trace", "0", "snapshots"),
    ]


@pytest.mark.parametrize("name", ["attack/ig.yaml", "defense/dgp.yaml", "strategy/fed_avg.yaml"])
def test_callables_and_references_are_no_settings(name: str):
    file: Path = CONF_DIR / name
    found = settings(file)
    assert found
    assert not [one for one in found if one.default.startswith("${") or "_target_" in one.key]
