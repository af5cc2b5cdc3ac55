"""docs/deployment.md names what is there, and its commands for doing without Docker are run."""

import os
import re
import shutil
import signal
import subprocess

import pytest
from compose_file import read_compose
from deployed import BIN, SMALL, needs_flower

FILES = ("docker-compose.yml", "docker-compose.node.yml", "docker-compose.gpu.yml")
OF_COMPOSE = {"SUPERLINK": "a:8000", "PARTITION": "0", "PARTITIONS": "3"}


@pytest.fixture
def page(repository) -> str:
    return (repository / "docs" / "deployment.md").read_text()


def blocks(page: str) -> list[str]:
    return re.findall(r"^```\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def commands(page: str) -> list[list[str]]:
    """The words of all lines that call docker compose, without what is set before it."""
    lines = "\n".join(blocks(page)).replace("\\\n", " ").splitlines()
    called = [line.split("docker compose", 1)[1] for line in lines if "docker compose" in line]
    return [re.findall(r'(?:[^\s"]|"[^"]*")+', words) for words in called]


def test_every_service_and_file_in_a_documented_command_is_there(page, repository):
    found = commands(page)
    assert len(found) >= 8
    for words in found:
        files = [words[i + 1] for i, word in enumerate(words) if word == "-f"] or ["docker-compose.yml"]
        assert all((repository / file).is_file() for file in files), words
        services = read_compose(repository / files[0], OF_COMPOSE)
        plain = [word for word in words if not word.startswith("-") and word not in files]
        verb, *rest = plain
        assert verb in ("up", "run", "cp", "build", "down"), words
        if verb == "run":
            volume = [word for word in rest if word.startswith('"$PWD')]
            assert next(word for word in rest if word not in volume) in services, words
        if verb == "cp":
            assert rest[0].split(":")[0] in services, words
        if verb == "up":
            assert set(rest) <= services.keys(), words


def test_the_page_names_every_variable_of_the_files_and_no_other(page, repository):
    used = {name for file in FILES for name in re.findall(r"\$\{(\w+)", (repository / file).read_text())}
    numbered = {"FL_NODE_1_DATA", "FL_NODE_2_DATA"}  # the table has the first and the last number
    assert {name for name in used - numbered if name not in page} == set()
    named = set(re.findall(r"\b(?:FL_[A-Z_0-9]+[A-Z]|TORCH_INDEX|SUPERLINK|PARTITIONS?)\b", page))
    assert named - used - {"FL_APP_STATE"} == set()


@needs_flower
@pytest.mark.slow
def test_the_commands_without_docker_train(page, repository, tmp_path):
    """In a network of its own, so that the ports are free; the run itself is made short."""
    enter = ["unshare", "--net", "--", "bash", "-euc"]
    if subprocess.run([*enter, "ip link set lo up"], capture_output=True).returncode:
        pytest.skip("no network namespaces here")
    section = page.split("## Without Docker", 1)[1]
    script = blocks(section)[0]
    assert "rounds=3" in script
    script = script.replace("rounds=3", f"rounds=1 attack=none {SMALL}")
    # what health checks and restarts are for in a container: waiting until the SuperLink answers
    asks = next(line for line in script.splitlines() if "fl_app.deploy.health" in line)
    script = script.replace(asks, f"until {asks}; do sleep 1; done")
    for name in ("fl_app", "attacks", "conf"):
        shutil.copytree(repository / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(repository / "pyproject.toml", tmp_path)
    environment = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}:/usr/sbin",
        "PYTHONPATH": str(tmp_path),
        "FLWR_HOME": str(tmp_path / "flwr"),
    }
    said = tmp_path / "said"
    with said.open("w") as log:
        process = subprocess.Popen(
            [*enter, f"ip link set lo up\n{script}"],
            cwd=tmp_path,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(1500)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert code == 0, said.read_text()
    (result,) = (tmp_path / "runs").glob("*/*/result.json")
    assert '"status": "finished"' in result.read_text()
