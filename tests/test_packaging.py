"""What leaves the repository: a wheel that works anywhere, and a Flower app bundle with nothing too much."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from pathlib import Path

import pytest
from documents import code_blocks


def test_the_project_rewrites_no_configuration_of_flower(repository):
    assert "federations" not in tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["flwr"]


def test_one_version_stands_in_all_files(repository):
    version = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (repository / "CITATION.cff").read_text()
    assert f"\n## {version}\n" in (repository / "CHANGELOG.md").read_text()


def committed(repository: Path, target: Path) -> Path:
    """Copy what git tracks: no cache and no run folder comes along."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=repository, capture_output=True, check=True, text=True
    ).stdout.split("\0")
    for name in filter(None, names):
        source = repository / name
        if source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(source.read_bytes())
    return target


def test_the_flower_bundle_holds_what_its_apps_need_and_nothing_else(repository, tmp_path):
    app = committed(repository, tmp_path / "fl-app")
    environment = os.environ | {"FLWR_HOME": str(tmp_path / "flwr")}
    flwr = Path(sys.executable).parent / "flwr"
    subprocess.run(
        [str(flwr), "build", "--app", str(app)], cwd=tmp_path, env=environment, check=True, timeout=120
    )
    (bundle,) = tmp_path.glob("*.fab")
    names = zipfile.ZipFile(bundle).namelist()
    roots = {name.split("/")[0] for name in names}
    assert roots - {".info"} == {"fl_app", "attacks", "conf", "pyproject.toml", "README.md", "LICENSE"}
    assert not [name for name in names if name.startswith(("fl_app/experiments/", "fl_app/cli/"))]
    assert sorted(name for name in names if name.startswith("conf/experiment/")) == [
        f"conf/experiment/{name}.yaml" for name in ("demo", "quick")
    ]
    assert {"conf/config.yaml", "fl_app/client_app.py", "attacks/score.py"} <= set(names)
    assert {"conf/data/text.yaml", "fl_app/text/english.json"} <= set(names)
    zipfile.ZipFile(bundle).extractall(tmp_path / "unpacked")
    load = "import fl_app.server_app, fl_app.client_app; print(fl_app.__file__)"
    found = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path[:0] = ['.']; {load}"],
        cwd=tmp_path / "unpacked",
        capture_output=True,
        check=True,
        text=True,
        timeout=300,
    )
    assert "/unpacked/" in found.stdout


def built(repository: Path, tmp_path: Path) -> Path:
    """Return the wheel of what git tracks."""
    app = committed(repository, tmp_path / "fl-app")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path), str(app)],
        check=True,
        timeout=300,
    )
    shutil.rmtree(app)  # nothing of it may stand in for the wheel
    (wheel,) = tmp_path.glob("fl_app-*.whl")
    return wheel


def test_the_wheel_holds_both_packages_and_the_configuration(repository, tmp_path):
    wheel = built(repository, tmp_path)
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"fl_app/conf/config.yaml", "fl_app/conf/defense/dgp.yaml", "attacks/score.py"} <= names
    assert {"fl_app/conf/data/text.yaml", "fl_app/text/english.json"} <= names
    assert {"fl_app/py.typed", "attacks/py.typed"} <= names
    assert [name for name in names if name.endswith("dist-info/licenses/LICENSE")]
    assert {name.split("/")[0] for name in names if not name.split("/")[0].endswith("dist-info")} == {
        "fl_app",
        "attacks",
    }


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment_from_any_folder(repository, tmp_path):
    wheel = built(repository, tmp_path)
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=120)
    install = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*install, "torch==2.13.0"], check=True, timeout=1200)
    subprocess.run([*install, str(wheel)], check=True, timeout=1200)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    quick = ["data.train_per_class=8", "data.test_per_class=4", "clients=3", "rounds=2", "attack.steps=5"]
    done = subprocess.run(
        [str(venv / "bin" / "fl-app"), *quick], cwd=elsewhere, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert list(elsewhere.glob("runs/*/*/report.html"))
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    found = subprocess.run(
        [sys.executable, "-c", "import torchvision, sys; print(sys.modules['fl_app'].__file__)"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        check=True,
        text=True,
        timeout=300,
    )
    assert "/installed/" in found.stdout  # torch itself called the hook


@pytest.mark.slow
def test_an_app_of_a_user_runs_with_the_wheel_in_a_folder_of_its_own(repository, tmp_path):
    wheel = built(repository, tmp_path)
    venv, folder = tmp_path / "venv", tmp_path / "app"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=120)
    python = venv / "bin" / "python"
    # the packages that are here, behind those of the environment: no project but the wheel
    packages = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        check=True,
        text=True,
    ).stdout.strip()
    (Path(packages) / "here.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*install, "--force-reinstall", str(wheel)], check=True, timeout=300)
    text = (repository / "docs" / "library.md").read_text()
    folder.mkdir()
    (folder / "my_app.py").write_text(code_blocks(text, "python")[0])
    (folder / "pyproject.toml").write_text(code_blocks(text, "toml")[0])
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(
        [str(python), "-c", "import fl_app; print(fl_app.__file__)"],
        cwd=folder,
        env=environment,
        capture_output=True,
        check=True,
        text=True,
        timeout=300,
    ).stdout.strip()
    assert Path(found).is_relative_to(venv)
    done = subprocess.run(
        [str(venv / "bin" / "flower-simulation"), "--app", ".", "--num-supernodes", "4"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "[ROUND 5/5]" in said
