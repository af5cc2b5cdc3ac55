"""Read a docker-compose.yml and a Dockerfile as far as this project's use them, and refuse the rest.

A key that is not known here is an error: what the harness does not do is not silently left out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

NOT_OF_PROCESSES = {
    "image": "there are no images: the command runs in this environment",
    "build": "as image",
    "init": "processes are swept up by their mark",
    "cap_drop": "a process has what the user has",
    "security_opt": "as cap_drop",
    "ports": "every service has a loopback address of its own",
    "user": "processes run as the user of the tests",
    "deploy": "there are no GPUs to reserve",
    "networks": "all loopback addresses reach each other",
    "read_only": "a process may write what the user may",
    "tmpfs": "a folder of the service's own stands there",
    "mem_limit": "a process has what the machine has",
    "pids_limit": "as mem_limit",
    "cpus": "as mem_limit",
}
"""Keys of a service that mean nothing without containers, and why."""
CONDITIONS = ("service_started", "service_healthy", "service_completed_successfully")
RESTARTS = ("no", "on-failure", "always", "unless-stopped")
_VARIABLE = re.compile(r"\$(?:(\$)|\{(\w+)(?:(:-|:\?)([^}]*))?\})")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Check:
    """A health check."""

    command: list[str]
    interval: float
    timeout: float
    retries: int
    start_period: float


@dataclass(frozen=True)
class Service:
    """What of a service a process can be."""

    name: str
    entrypoint: list[str]
    command: list[str]
    environment: dict[str, str]
    mounts: dict[str, str]
    """By the path in the container: the name of a volume, or a path on the host (begins with / or .)."""
    read_only: frozenset[str]
    depends_on: dict[str, str]
    check: Check | None
    restart: str
    profiles: list[str]
    shares: str | None = None
    """The service whose network, and so whose address, it has."""


@dataclass(frozen=True)
class Image:
    """What of a Dockerfile's last stage a process can have."""

    environment: dict[str, str]
    folder: str


def read_compose(file: Path, variables: Mapping[str, str]) -> dict[str, Service]:
    """Return the services of ``file`` with ``variables`` put in."""
    content = _interpolate(yaml.safe_load(file.read_text()), variables)
    volumes = set(content.get("volumes") or {})
    secrets = {
        name: str(file.parent / entry["file"]) for name, entry in (content.get("secrets") or {}).items()
    }
    services = {name: _service(name, entry, volumes, secrets) for name, entry in content["services"].items()}
    for service in services.values():
        unknown = service.depends_on.keys() - services.keys()
        if unknown:
            raise ValueError(
                f"{file.name}: {service.name} depends on {sorted(unknown)}, which are no services"
            )
    return services


def read_image(file: Path) -> Image:
    """Return the environment and the folder that the Dockerfile's last stage sets."""
    text = file.read_text().replace("\\\n", " ")
    stage = re.split(r"^FROM .*$", text, flags=re.MULTILINE)[-1]
    environment: dict[str, str] = {}
    for line in re.findall(r"^ENV (.*)$", stage, flags=re.MULTILINE):
        environment |= dict(pair.split("=", 1) for pair in shlex.split(line))
    return Image(environment, re.findall(r"^WORKDIR (.*)$", stage, flags=re.MULTILINE)[-1])


def _interpolate(node: Any, variables: Mapping[str, str]) -> Any:
    if isinstance(node, dict):
        return {key: _interpolate(value, variables) for key, value in node.items()}
    if isinstance(node, list):
        return [_interpolate(value, variables) for value in node]
    if not isinstance(node, str):
        return node

    def fill(match: re.Match[str]) -> str:
        dollar, name, sign, rest = match.groups()
        if dollar:
            return "$"
        value = variables.get(name, "")
        if value:
            return value
        if sign == ":?":
            raise ValueError(f"{name} must be set: {rest}")
        return rest or ""

    return _VARIABLE.sub(fill, node)


def _service(name: str, entry: dict[str, Any], volumes: set[str], secrets: dict[str, str]) -> Service:
    entry = {key: value for key, value in entry.items() if key not in NOT_OF_PROCESSES}
    service = Service(
        name=name,
        entrypoint=_words(entry.pop("entrypoint", [])),
        command=_words(entry.pop("command", [])),
        environment={key: str(value) for key, value in entry.pop("environment", {}).items()},
        depends_on=_conditions(name, entry.pop("depends_on", {})),
        check=_check(entry.pop("healthcheck", None)),
        restart=str(entry.pop("restart", "no")),
        profiles=entry.pop("profiles", []),
        shares=_shared(name, entry.pop("network_mode", "none")),
        **_mounts(
            name, entry.pop("volumes", []), volumes, [(s, secrets[s]) for s in entry.pop("secrets", [])]
        ),
    )
    if entry:
        raise ValueError(f"{name}: the harness does not know {sorted(entry)}")
    if service.restart not in RESTARTS:
        raise ValueError(f"{name}: restart must be one of {RESTARTS}, got {service.restart}")
    return service


def _shared(name: str, mode: str) -> str | None:
    kind, _, other = mode.partition(":")
    if mode != "none" and (kind != "service" or not other):
        raise ValueError(f"{name}: the harness does not know network_mode {mode!r}")
    return other or None


def _words(value: str | list[str]) -> list[str]:
    return shlex.split(value) if isinstance(value, str) else [str(word) for word in value]


def _conditions(name: str, value: dict[str, Any] | list[str]) -> dict[str, str]:
    if isinstance(value, list):
        return dict.fromkeys(value, CONDITIONS[0])
    conditions = {other: entry["condition"] for other, entry in value.items()}
    for condition in conditions.values():
        if condition not in CONDITIONS:
            raise ValueError(f"{name}: a condition must be one of {CONDITIONS}, got {condition}")
    return conditions


def _check(entry: dict[str, Any] | None) -> Check | None:
    if entry is None:
        return None
    how, *command = entry["test"]
    if how != "CMD":
        raise ValueError(f"a health check must be [CMD, …], got {entry['test']}")
    return Check(
        command=command,
        interval=_seconds(entry["interval"]),
        timeout=_seconds(entry["timeout"]),
        retries=int(entry["retries"]),
        start_period=_seconds(entry.get("start_period", "0s")),
    )


def _seconds(text: str) -> float:
    number, unit = re.fullmatch(r"([0-9.]+)(ms|s|m|h)", text).groups()  # type: ignore[union-attr]
    return float(number) * _UNITS[unit]


def _mounts(
    name: str, entries: list[str], volumes: set[str], secrets: list[tuple[str, str]]
) -> dict[str, Any]:
    mounts: dict[str, str] = {}
    read_only = set()
    for entry in entries:
        source, target, *options = entry.split(":")
        if source[0] not in "./~" and source not in volumes:
            raise ValueError(f"{name}: there is no volume {source!r}")
        mounts[target] = source
        read_only |= {target} if options == ["ro"] else set()
    for secret, file in secrets:
        mounts[f"/run/secrets/{secret}"] = file
        read_only.add(f"/run/secrets/{secret}")
    return {"mounts": mounts, "read_only": frozenset(read_only)}
