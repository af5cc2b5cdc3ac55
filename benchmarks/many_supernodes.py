"""``python -m benchmarks.many_supernodes --nodes 20 --minutes 60``: run after run on many SuperNodes.

The services of docker-compose.yml run as processes, with as many clients as asked for. After the first run
one SuperNode is upgraded (with ``--old-flower``: from that release of Flower), after the second the server's
certificate is renewed. Memory, open files and disk are printed after each run; the exit code is 1 if a run
failed.
"""

from __future__ import annotations

import argparse
import os
import re
import ssl
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compose_harness import Harness

_ROOT = Path(__file__).resolve().parents[1]
_UPGRADED = "supernode-1"
_OF_ONE_RUN = ("flwr-serverapp", "flwr-clientapp", "fl_app.deploy.health")
_MEGABYTES = 0.2
"""Bound on the folders of runs: a few of the smallest runs."""


def compose_text(text: str, nodes: int) -> str:
    """Return docker-compose.yml with another number of clients, made as docs/deployment.md says."""
    (block,) = re.findall(r"^  supernode-2:\n(?:    .*\n| *\n)+", text, re.MULTILINE)
    more = range(3, nodes)
    text = text.replace(block, block + "".join(_renumbered(block, i) for i in more))
    text = text.replace('[--nodes, "3"]', f'[--nodes, "{nodes}"]').replace("clients=3", f"clients={nodes}")
    text = text.replace("num-partitions=3", f"num-partitions={nodes}")
    key = "      - node-2:/app/secrets/node-2\n"
    text = text.replace(key, key + "".join(f"      - node-{i}:/app/secrets/node-{i}\n" for i in more))
    return text + "".join(f"  node-{i}:\n  node-{i}-state:\n" for i in more)


def _renumbered(block: str, number: int) -> str:
    names = (("supernode-2:", f"supernode-{number}:"), ("node-2", f"node-{number}"))
    names += (("partition-id=2", f"partition-id={number}"), ("FL_NODE_2_DATA", f"FL_NODE_{number}_DATA"))
    for old, new in names:
        block = block.replace(old, new)
    return block


def main() -> int:
    """Start the federation and let it work; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.many_supernodes", description=__doc__)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--overrides", default="rounds=2 fraction=0.2 defense=dgp attack=none")
    parser.add_argument("--old-flower", default="", help="a folder with another release of Flower")
    args = parser.parse_args()
    sys.path.insert(0, str(_ROOT / "tests" / "deployment"))
    from compose_harness import Harness
    from deployed import SMALL

    with tempfile.TemporaryDirectory(prefix="many-") as home:
        file = Path(home) / "docker-compose.yml"
        file.write_text(compose_text((_ROOT / "docker-compose.yml").read_text(), args.nodes))
        (Path(home) / "Dockerfile").write_text((_ROOT / "Dockerfile").read_text())
        federation = Harness(
            file,
            Path(home) / "federation",
            variables={"FL_APP_RUNS_MEGABYTES": str(_MEGABYTES)},
            content={
                "/app/project": _ROOT,
                "/app/cache": Path(os.environ.get("FL_APP_CACHE", _ROOT / ".cache")),
            },
        )
        old = {"PYTHONPATH": f"{args.old_flower}:/app/project"} if args.old_flower else {}
        federation.services[_UPGRADED].environment.update(old)
        with federation:
            began = time.monotonic()
            federation.up()
            print(f"{args.nodes} SuperNodes, {time.monotonic() - began:.0f} s to start", flush=True)
            return _work(federation, f"{SMALL} model=mlp model.hidden=[8] {args.overrides}", args.minutes)


def _work(federation: Harness, overrides: str, minutes: float) -> int:
    print("| run | minute | exit | SuperLink MB, files | SuperNodes MB, files (most) | runs MB |", flush=True)
    print("|---|---|---|---|---|---|", flush=True)
    began, number, failed = time.monotonic(), 0, 0
    while time.monotonic() - began < 60 * minutes:
        number += 1
        done = federation.run("runner", f'overrides="{overrides} seed={number}"', timeout=3000)
        failed += done.returncode != 0
        if done.returncode:
            print(done.stdout[-1500:], done.stderr[-1500:], flush=True)
        minute = (time.monotonic() - began) / 60
        print(f"| {number} | {minute:.1f} | {done.returncode} | {_held(federation)} |", flush=True)
        if number == 1:
            federation.services[_UPGRADED].environment.pop("PYTHONPATH", None)
            federation.restart(_UPGRADED)
            print(f"{_UPGRADED} upgraded: started {federation.starts(_UPGRADED)} times", flush=True)
        if number == 2:
            print(f"certificate renewed: {_renew(federation)}", flush=True)
    return 1 if failed else 0


def _held(federation: Harness) -> str:
    """Return memory and open files of the lasting processes, and the space that runs take."""
    each = {name: _sizes(federation, name) for name in federation.services if name.startswith("super")}
    link = each.pop("superlink")
    runs = sum(path.stat().st_size for path in federation.volume("runs").rglob("*") if path.is_file())
    mb, files = (max(sizes[i] for sizes in each.values()) for i in (0, 1))
    return f"{link[0]:.0f}, {link[1]} | {mb:.0f}, {files} | {runs / 2**20:.2f}"


def _sizes(federation: Harness, name: str) -> tuple[float, int]:
    kilobytes = files = 0
    for pid in federation.processes(name):
        process = Path(f"/proc/{pid}")
        with suppress(OSError, StopIteration):
            if any(word in (process / "cmdline").read_text() for word in _OF_ONE_RUN):
                continue
            status = (process / "status").read_text().splitlines()
            kilobytes += int(next(line for line in status if line.startswith("VmRSS")).split()[1])
            files += len(list((process / "fd").iterdir()))
    return kilobytes / 1024, files


def _renew(federation: Harness) -> bool:
    """Renew the server's certificate as docs/deployment.md says; return whether another one is shown."""
    address = (federation.address("superlink"), 8000)
    before = ssl.get_server_certificate(address)
    for name in ("server.pem", "server.key"):
        (federation.volume("server") / name).unlink()
    federation.run("certificates")
    for name in ("superlink", "proxy"):
        federation.restart(name)
        federation.wait_for_health(name)
    return ssl.get_server_certificate(address) != before


if __name__ == "__main__":
    sys.exit(main())
