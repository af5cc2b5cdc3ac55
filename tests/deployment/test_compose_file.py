"""docker-compose.yml as Compose reads it, and as the harness does; and what must hold of it."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from compose_file import read_compose, read_image
from compose_harness import ComposeError, Harness, Rewriting

from fl_app.deploy.lock import APART, lines_of, requirements_of

NODE = {"SUPERLINK": "federation.example:8000", "PARTITION": "1", "PARTITIONS": "3"}
PRIVATE = {"ca", "server", "operator", "node-0", "node-1", "node-2"}
FILES = [
    ("docker-compose.yml",),
    ("docker-compose.yml", "docker-compose.gpu.yml"),
    ("docker-compose.node.yml",),
]


def compose_command() -> list[str] | None:
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    if (
        shutil.which("docker")
        and subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0
    ):
        return ["docker", "compose"]
    return None


@pytest.mark.parametrize("files", FILES, ids=lambda files: files[-1])
def test_compose_itself_accepts_the_files(files, repository):
    command = compose_command()
    if command is None:
        pytest.skip("neither docker-compose nor docker compose is installed")
    for file in files:
        command += ["--file", str(repository / file)]
    done = subprocess.run([*command, "config"], env=os.environ | NODE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = read_compose(repository / files[0], NODE)
    resolved = yaml.safe_load(done.stdout)["services"]
    for name, service in resolved.items():
        assert [word.replace("$$", "$") for word in service.get("command") or []] == expected[name].command


def test_a_private_key_is_mounted_where_it_belongs_and_nowhere_else(repository):
    services = read_compose(repository / "docker-compose.yml", {})
    seen = {name: PRIVATE & set(service.mounts.values()) for name, service in services.items()}
    # who has the authority's key sees no node's
    assert seen.pop("certificates") == {"ca", "server", "operator"}
    assert seen.pop("node-keys") == {"node-0", "node-1", "node-2"}
    assert seen == {
        "superlink": {"server"},
        "proxy": {"server"},
        "register": {"operator"},
        "supernode-0": {"node-0"},
        "supernode-1": {"node-1"},
        "supernode-2": {"node-2"},
        "runner": {"operator"},
    }
    for name, service in services.items():
        secrets = {target for target in service.mounts if target.startswith("/app/secrets")}
        assert name in ("certificates", "node-keys") or secrets <= service.read_only


@pytest.mark.parametrize("file", ["docker-compose.yml", "docker-compose.node.yml"])
def test_every_service_is_read_only_and_limited(file, repository):
    for name, service in yaml.safe_load((repository / file).read_text())["services"].items():
        assert service["read_only"] is True, name
        assert {"mem_limit", "pids_limit", "cpus", "tmpfs"} <= service.keys(), name


def test_nodes_reach_the_proxy_and_nothing_else(repository):
    content = yaml.safe_load((repository / "docker-compose.yml").read_text())
    services = content["services"]
    assert {name for name, service in services.items() if service.get("ports")} == {"superlink"}
    for i in range(3):
        assert services[f"supernode-{i}"]["networks"] == ["fleet"]
    assert services["register"]["networks"] == services["runner"]["networks"] == ["operators"]
    for name in ("certificates", "node-keys"):
        assert services[name]["network_mode"] == "none"
    for network in ("fleet", "operators"):
        assert content["networks"][network]["internal"] is True
    # the SuperLink itself is on the loopback address that it shares with the proxy
    assert "--host=127.0.0.1" in services["superlink"]["command"]
    assert services["proxy"]["network_mode"] == "service:superlink"


def test_nodes_come_back_and_keep_what_they_remember(repository):
    services = read_compose(repository / "docker-compose.yml", {})
    states = [services[f"supernode-{i}"].mounts["/app/state"] for i in range(3)]
    assert len(set(states)) == 3
    for name in ("superlink", "proxy", "supernode-0", "supernode-1", "supernode-2"):
        assert services[name].restart == "unless-stopped"
        assert services[name].check is not None
    for name in ("certificates", "node-keys", "register", "runner"):
        assert services[name].restart == "no"
    assert services["superlink"].mounts["/app/runs"] == "runs"


def test_what_the_user_sets_gets_through(repository):
    variables = {"FL_NODE_1_DATA": "./clinic", "FL_NODE_CONFIG": 'data-root="/app/data"', "FL_RUNS": "./runs"}
    services = read_compose(repository / "docker-compose.yml", variables)
    assert services["supernode-1"].mounts["/app/data"] == "./clinic"
    assert services["supernode-0"].mounts["/app/data"] == "no-data"
    assert services["supernode-2"].command == ['partition-id=2 num-partitions=3 data-root="/app/data"']
    assert services["superlink"].mounts["/app/runs"] == "./runs"


def test_the_image_is_not_for_root_and_has_every_folder_that_a_volume_takes_its_owner_from(repository):
    text = (repository / "Dockerfile").read_text()
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["app"]
    folders = {
        f"/app/{name}"
        for name in re.search(r"for folder in (.*?);", text, re.DOTALL)[1].split()
        if name != "\\"
    }
    for service in read_compose(repository / "docker-compose.yml", {}).values():
        assert service.mounts.keys() <= folders


def test_dependencies_are_installed_before_the_code_is_copied(repository):
    text = (repository / "Dockerfile").read_text()
    assert text.index("pip install") < text.index("COPY fl_app /app/project")
    copied = set(re.findall(r"^COPY (?:--from=\S+ )?(\S+)", text, re.MULTILINE))
    allowed = {
        line[1:] for line in (repository / ".dockerignore").read_text().split() if line.startswith("!")
    }
    ours = {name.split("/")[0] for name in copied if not name.startswith("/")}
    assert ours <= allowed
    assert all((repository / name).exists() for name in allowed)


def test_the_stage_of_the_weights_has_all_that_it_imports(repository, tmp_path):
    (stage,) = re.findall(
        r"^FROM dependencies AS weights\n(.*?)^FROM", (repository / "Dockerfile").read_text(), re.M | re.S
    )
    for *sources, target in (line.split()[1:] for line in stage.splitlines() if line.startswith("COPY")):
        for source in sources:
            place = tmp_path / target / (Path(source).name if target.endswith("/") else "")
            place.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (repository / source).is_dir() else shutil.copy
            copy(repository / source, place)
    (module,) = re.findall(r"python -m (\S+)", stage)
    code = f"import {module} as m; print(m.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))


def test_the_environment_of_the_image_is_that_of_its_last_stage(repository):
    image = read_image(repository / "Dockerfile")
    assert image.folder == "/app"
    assert image.environment["PYTHONPATH"] == "/app/project"
    assert "PIP_NO_CACHE_DIR" not in image.environment


def write(folder: Path, text: str) -> Path:
    (folder / "docker-compose.yml").write_text(text)
    return folder / "docker-compose.yml"


def test_anchors_variables_and_dollars_are_read_as_compose_does(tmp_path):
    file = write(
        tmp_path,
        """
x-a: &a {restart: always, environment: {A: "${A:-x}", B: "$${A}", C: "${NONE}"}}
services: {one: {<<: *a, entrypoint: run it, command: ["$$HOME", "${A}"]}}
""",
    )
    service = read_compose(file, {"A": "7"})["one"]
    assert service.environment == {"A": "7", "B": "${A}", "C": ""}
    assert (service.entrypoint, service.command, service.restart) == (["run", "it"], ["$HOME", "7"], "always")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("services: {one: {network_mode: host}}", "does not know"),
        ("services: {one: {restart: sometimes}}", "restart must be one of"),
        ("services: {one: {volumes: ['a:/b']}}", "no volume 'a'"),
        ("services: {one: {depends_on: [two]}}", "which are no services"),
        ("services: {one: {command: ['${A:?say it}']}}", "A must be set: say it"),
    ],
)
def test_what_the_harness_cannot_do_is_refused(text, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        read_compose(write(tmp_path, text), {})


def test_all_that_is_rewritten_is_paths_and_addresses():
    rewrite = Rewriting(Path("/t/superlink"), "127.9.9.1", {"superlink": "127.9.9.2"})
    for before, after in {
        "--superlink=superlink:8000": "--superlink=127.9.9.2:8000",
        "--ssl-keyfile=/app/secrets/server.key": "--ssl-keyfile=/t/superlink/app/secrets/server.key",
        "https://localhost:8000/health": "https://127.9.9.1:8000/health",
        "--host=0.0.0.0": "--host=127.9.9.1",
        'partition-id=0 data-root="/app/data"': 'partition-id=0 data-root="/t/superlink/app/data"',
        "flower-superlink": "flower-superlink",
        "superlink localhost 127.0.0.1": "127.9.9.2 127.9.9.1 127.9.9.1",
        "/application/run": "/application/run",
        "defense=adgp rounds=5": "defense=adgp rounds=5",
    }.items():
        assert rewrite(before) == after


def test_a_command_that_does_not_end_is_ended_with_its_children(tmp_path):
    file = write(tmp_path, "services: {one: {entrypoint: [sh, -c], command: ['sleep 60 & sleep 60']}}")
    (tmp_path / "Dockerfile").write_text("FROM some\nENV A=1\nWORKDIR /app\n")
    with Harness(file, tmp_path / "folder") as services:
        start = time.monotonic()
        with pytest.raises(ComposeError, match="one did not end"):
            services.run("one", timeout=1)
        assert time.monotonic() - start < 50
        assert services.run("one", "echo $A").stdout == "1\n"


def test_every_package_of_the_image_has_a_hash(repository):
    lines = [line for line in (repository / "requirements.lock").read_text().splitlines() if line[0] != "#"]
    assert all(re.fullmatch(r"[\w.-]+==\S+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)
    locked = {canonical(line.split("==")[0]) for line in lines}
    declared = {
        canonical(re.split(r"[\[<>=~!; ]", line)[0])
        for line in requirements_of(repository / "pyproject.toml")
    }
    assert declared - set(APART) <= locked
    assert "--require-hashes" in (repository / "Dockerfile").read_text()


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_a_package_without_a_hash_is_not_locked():
    def entry(name, **info):
        return {"metadata": {"name": name, "version": "1"}, "download_info": info}

    known = {"archive_info": {"hashes": {"sha256": "ab"}}}
    report = {"install": [entry("b", **known), entry("A", **known), entry("torch"), entry("nvidia-x")]}
    assert lines_of(report) == ["A==1 --hash=sha256:ab", "b==1 --hash=sha256:ab"]
    with pytest.raises(ValueError, match="no hash of c"):
        lines_of({"install": [entry("c")]})
