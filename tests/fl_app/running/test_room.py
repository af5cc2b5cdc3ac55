"""The bound on run folders: the oldest finished runs go, all others stay."""

import json
import os
from pathlib import Path

import pytest

from fl_app.config.compose import ConfigError
from fl_app.running.ownership import claim
from fl_app.running.room import MOST, make_room


def made(root: Path, name: str, age: int, status: str = "finished", kilobytes: int = 100) -> Path:
    folder = root / "2026-11-18" / name
    (folder / "baseline").mkdir(parents=True)
    for where in (folder, folder / "baseline"):
        (where / "result.json").write_text(json.dumps({"status": status, "rounds": []}))
    (folder / "model.safetensors").write_bytes(bytes(1024 * kilobytes))
    os.utime(folder / "result.json", (10**9 - age, 10**9 - age))
    return folder


def test_the_oldest_finished_runs_go_until_the_rest_fits(tmp_path, monkeypatch):
    monkeypatch.setenv(MOST, "0.3")
    old, failed, running, newer, newest = (
        made(tmp_path, "old", 5),
        made(tmp_path, "failed", 4, "failed"),
        made(tmp_path, "running", 3, "running"),
        made(tmp_path, "newer", 2),
        made(tmp_path, "newest", 1),
    )
    assert make_room(tmp_path) == [old, newer]
    assert all(path.exists() for path in (failed, running, newest))


def test_what_fits_stays_and_so_does_everything_without_a_bound(tmp_path, monkeypatch):
    folder = made(tmp_path, "one", 1)
    assert make_room(tmp_path) == []
    monkeypatch.setenv(MOST, "1")
    assert make_room(tmp_path) == []
    monkeypatch.setenv(MOST, "0.01")
    with claim(folder):
        assert make_room(tmp_path) == []
    assert make_room(tmp_path) == [folder]


@pytest.mark.parametrize("wrong", ["much", "-1", "0", "nan"])
def test_a_bound_that_is_none_is_refused(wrong, tmp_path, monkeypatch):
    monkeypatch.setenv(MOST, wrong)
    with pytest.raises(ConfigError, match="megabytes"):
        make_room(tmp_path)
