"""The environments of the table of versions: Flower as named, other packages at an end of their range."""

import re

import pytest

from benchmarks.versions import AUDITED, CORE, requirements


@pytest.mark.parametrize("oldest", [True, False])
def test_environments_are_at_an_end_of_each_range(repository, oldest):
    found = requirements(repository / "pyproject.toml", "1.40", oldest=oldest)
    assert "flwr[simulation]==1.40.*" in found
    others = [line for line in found if not line.startswith("flwr")]
    assert all(re.fullmatch(r"[\w\-]+==[\d.]+", line) for line in others) is oldest


def test_no_dependency_is_pinned_to_one_version(repository):
    for line in requirements(repository / "pyproject.toml", "1.41", oldest=False):
        assert line.startswith("flwr") or "==" not in line


def test_what_runs_is_there(repository):
    assert all((repository / name).exists() for name in (*CORE, AUDITED))


def test_the_makefile_tries_every_minor_version_of_the_range(repository):
    from fl_app.flower.supported import BEFORE, OLDEST

    named = re.search(r"^VERSIONS \?= (.*)$", (repository / "Makefile").read_text(), re.M)[1].split()
    assert named == [f"{OLDEST[0]}.{minor}" for minor in range(OLDEST[1], BEFORE[1])]
