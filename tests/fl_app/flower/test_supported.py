"""An unsupported Flower is refused by a sentence, wherever the import begins."""

import subprocess
import sys
import tomllib

import pytest

from fl_app.flower import supported

FAKE = (
    "import importlib.metadata as m; real = m.version; "
    "m.version = lambda name: {found!r} if name == 'flwr' else real(name); {begin}"
)


@pytest.mark.parametrize(
    "begin",
    [
        "import fl_app; fl_app.run",
        "import fl_app.client",
        "import fl_app.strategies",
        "import fl_app.mods",
        "import fl_app.client_app",
        "import fl_app.server_app",
        "import fl_app.audit",
    ],
)
def test_every_way_in_ends_with_the_sentence(begin):
    done = subprocess.run(
        [sys.executable, "-c", FAKE.format(found="1.36.0", begin=begin)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: fl-app works with Flower from 1.40")
    assert "1.36.0 is installed" in last


@pytest.mark.parametrize(
    ("found", "fits"),
    [
        ("1.40.0", True),
        ("1.41.2", True),
        ("1.39.9", False),
        ("1.42.0", False),
        ("2.0.0", False),
        ("dev", False),
    ],
)
def test_the_range_holds_its_versions(monkeypatch, found, fits):
    monkeypatch.setattr(supported, "version", lambda name: found)
    if fits:
        supported.refuse_unsupported()
    else:
        with pytest.raises(ImportError, match=r"Flower from 1\.40"):
            supported.refuse_unsupported()


def test_a_missing_flower_is_named(monkeypatch):
    def missing(name):
        raise supported.PackageNotFoundError(name)

    monkeypatch.setattr(supported, "version", missing)
    with pytest.raises(ImportError, match="not installed"):
        supported.refuse_unsupported()


def test_the_range_is_that_of_the_package(repository):
    project = tomllib.loads((repository / "pyproject.toml").read_text())
    oldest, before = (".".join(map(str, numbers)) for numbers in (supported.OLDEST, supported.BEFORE))
    assert f"flwr[simulation]>={oldest},<{before}" in project["project"]["dependencies"]
