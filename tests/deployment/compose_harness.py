"""Run a docker-compose.yml's services as processes, each with a loopback address and a folder of its own.

For machines without a Docker engine. Commands, environment, health checks, the order of starting and the
restart policies are those of the file. What is changed on the way is all in `Rewriting`; what means nothing
for a process is listed in `compose_file.NOT_OF_PROCESSES`. Read-only mounts are not enforced.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from compose_file import Service, read_compose, read_image

_MARK = "COMPOSE_HARNESS"
_GRACE_SECONDS = 15.0
_LONGEST_WAIT = 600.0
"""So long a service that runs once may take, on a machine that is busy."""
_FIRST_DELAY, _LONGEST_DELAY, _STEADY_SECONDS = 0.1, 60.0, 10.0
"""Docker waits 0.1 s before it restarts, twice as long each time, and starts over after 10 s of running."""


class ComposeError(RuntimeError):
    """A service did not do what another one waits for."""


@dataclass(frozen=True)
class Rewriting:
    """All that differs between a service's command and the process: paths and addresses."""

    root: Path
    """What stands for the service's file system: /app and /run lie in it."""
    own: str
    """The service's address, where it says localhost, 127.0.0.1 or 0.0.0.0."""
    others: Mapping[str, str]
    """The addresses of services, where they are named."""

    def __call__(self, text: str) -> str:
        text = re.sub(r"(?<![\w/.-])/(app|run)(?![\w.-])", lambda match: f"{self.root}/{match[1]}", text)
        text = re.sub(r"\b(localhost|127\.0\.0\.1|0\.0\.0\.0)\b", self.own, text)
        for name, address in self.others.items():
            text = re.sub(rf"(?<![\w/.-]){re.escape(name)}(?![\w/.-])", address, text)
        return text


class Harness:
    """The services of one file. Use it as a context manager: leaving it ends every process."""

    def __init__(
        self,
        file: Path,
        folder: Path,
        *,
        variables: Mapping[str, str] | None = None,
        content: Mapping[str, Path] | None = None,
        addresses: Mapping[str, str] | None = None,
        within: Callable[[str], list[str]] = lambda name: [],
    ) -> None:
        """``folder`` holds file systems and volumes; ``content`` is what the image has at some paths.

        ``addresses`` are those of services that have others than loopback addresses. ``within(service)`` are
        the first words of its commands, such as those that enter a network namespace.
        """
        self.services = read_compose(file, variables or {})
        self._addresses, self._within = dict(addresses or {}), within
        self.image = read_image(file.parent / "Dockerfile")
        self.folder = folder
        self._base = file.parent
        self._content = dict(content or {})
        self._mark = f"{os.getpid()}-{random.randrange(2**32):08x}"
        self._network = _free_network()
        self._running: dict[str, _Running] = {}

    def __enter__(self) -> Harness:
        return self

    def __exit__(self, *error: object) -> None:
        for running in self._running.values():
            running.ask_to_stop()
        for running in self._running.values():
            running.join()
        self._sweep(self._mark)

    def address(self, name: str) -> str:
        """Return the address of a service, on the loopback device unless another was given."""
        name = self.services[name].shares or name
        if name in self._addresses:
            return self._addresses[name]
        return f"{self._network}.{10 + list(self.services).index(name)}"

    def volume(self, name: str) -> Path:
        """Return the folder that stands for a volume."""
        folder = self.folder / "volumes" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def up(self, *names: str) -> None:
        """Start services, else all without a profile, after what they need, as ``docker compose up`` does."""
        for name in names or [name for name, service in self.services.items() if not service.profiles]:
            self._start(name)

    def run(self, name: str, *command: str, timeout: float = 600.0) -> subprocess.CompletedProcess[str]:
        """Run a service once with another command, as ``docker compose run`` does."""
        service = self.services[name]
        self._await_dependencies(service)
        root, environment = self._prepare(service)
        argv = self._rewriting(service)
        words = [argv(word) for word in [*service.entrypoint, *(command or service.command)]]
        words = [*self._within(name), *words]
        process = subprocess.Popen(
            words,
            env=environment,
            cwd=root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        try:
            said, complained = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill(name)  # its children, too: they hold the pipes
            said, complained = process.communicate()
            raise ComposeError(f"{name} did not end in {timeout} s\n{said}{complained}") from None
        return subprocess.CompletedProcess(words, process.returncode, said, complained)

    def kill(self, name: str) -> None:
        """End all processes of a service at once, as a power cut does; its restart policy then decides."""
        self._sweep(f"{self._mark}/{name}")

    def restart(self, name: str) -> None:
        """Let a service end as ``docker compose stop`` does, and start it with its environment of today."""
        self._running[name].ask_to_stop()
        self._running[name].join()
        starts = self._running.pop(name).starts
        self._start(name)
        self._running[name].starts += starts

    def wait_for_health(self, name: str) -> None:
        """Wait until the health check of a service succeeds."""
        if not self._running[name].wait_for_health():
            raise ComposeError(f"{name} is not healthy\n{self.log(name)}")

    def processes(self, name: str, command: str = "") -> set[int]:
        """Return the ids of a service's processes, or of those of one command."""
        return {pid for pid, argv in self._processes(f"{self._mark}/{name}") if command in argv}

    def starts(self, name: str) -> int:
        """Return how often a service was started."""
        return self._running[name].starts

    def log(self, name: str) -> str:
        """Return what a service wrote, over all its starts."""
        path = self.folder / "logs" / name
        return path.read_text(errors="replace") if path.exists() else ""

    def _start(self, name: str) -> None:
        if name in self._running:
            return
        service = self.services[name]
        self._await_dependencies(service)
        root, environment = self._prepare(service)
        rewrite = self._rewriting(service)
        (self.folder / "logs").mkdir(exist_ok=True)
        check = service.check
        self._running[name] = _Running(
            service=replace(
                service,
                entrypoint=[*self._within(name), *(rewrite(word) for word in service.entrypoint)],
                command=[rewrite(word) for word in service.command],
                check=check
                and replace(check, command=[*self._within(name), *(rewrite(word) for word in check.command)]),
            ),
            environment=environment,
            folder=root,
            log=self.folder / "logs" / name,
            sweep=lambda: self.kill(name),
        )

    def _await_dependencies(self, service: Service) -> None:
        for name, condition in service.depends_on.items():
            self._start(name)
            running = self._running[name]
            if condition == "service_completed_successfully":
                code = running.wait_for_end()
                if code != 0:
                    raise ComposeError(f"{service.name}: {name} ended with {code}\n{self.log(name)}")
            elif condition == "service_healthy" and not running.wait_for_health():
                raise ComposeError(f"{service.name}: {name} is not healthy\n{self.log(name)}")

    def _prepare(self, service: Service) -> tuple[Path, dict[str, str]]:
        """Lay out a service's file system; return its working folder and the environment."""
        root = self.folder / "containers" / service.name
        working = root / self.image.folder.lstrip("/")
        working.mkdir(parents=True, exist_ok=True)
        mounts = {path: str(source) for path, source in self._content.items()} | service.mounts
        for target, source in mounts.items():
            place = root / target.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            if not place.is_symlink():
                named = source[0] not in "./~"
                place.symlink_to(self.volume(source) if named else (self._base / source).resolve())
        rewrite = self._rewriting(service)
        settings = {
            key: rewrite(value) for key, value in (self.image.environment | service.environment).items()
        }
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        mark = {_MARK: f"{self._mark}/{service.name}"}
        return working, {"PATH": path, "HOME": str(working)} | settings | mark

    def _rewriting(self, service: Service) -> Rewriting:
        root = self.folder / "containers" / service.name
        return Rewriting(
            root, self.address(service.name), {name: self.address(name) for name in self.services}
        )

    def _sweep(self, mark: str) -> None:
        """Kill the processes that this harness started and that bear ``mark``, and their children."""
        for pid, _ in self._processes(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _processes(self, mark: str) -> Iterator[tuple[int, str]]:
        """Give the ids and commands of the processes that bear ``mark``."""
        whole, part_of = f"{_MARK}={mark}".encode(), f"{_MARK}={mark}/".encode()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                settings = (entry / "environ").read_bytes().split(b"\0")
                if any(setting == whole or setting.startswith(part_of) for setting in settings):
                    yield int(entry.name), (entry / "cmdline").read_bytes().decode(errors="replace")
            except (OSError, ProcessLookupError):
                continue  # another user's, or gone by now


class _Running:
    """One service under its restart policy, watched by a thread."""

    def __init__(
        self,
        service: Service,
        environment: dict[str, str],
        folder: Path,
        log: Path,
        sweep: Callable[[], None],
    ) -> None:
        self.service, self.starts = service, 0
        self._environment, self._folder, self._log, self._sweep = environment, folder, log, sweep
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._code: int | None = None
        self._thread = threading.Thread(target=self._supervise, name=service.name, daemon=True)
        self._thread.start()

    def wait_for_end(self) -> int | None:
        """Return the exit code of a service that is not restarted; None if it does not end."""
        return self._code if self._ended.wait(_LONGEST_WAIT) else None

    def wait_for_health(self) -> bool:
        """Run the health check until it succeeds, or until it failed as often as it may."""
        check = self.service.check
        if check is None:
            raise ValueError(f"{self.service.name}: has no health check")
        begin, failed = time.monotonic(), 0
        while failed < check.retries and not self._ended.is_set():
            if self._is_well():
                return True
            failed += time.monotonic() - begin > check.start_period
            time.sleep(min(check.interval, 1.0))  # more often than in a container: nothing waits for seconds
        return False

    def ask_to_stop(self) -> None:
        """Ask the process to end, as ``docker compose stop`` does."""
        self._stopping.set()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def join(self) -> None:
        """Wait for the end, and make it one."""
        self._thread.join(_GRACE_SECONDS)
        self._sweep()
        self._thread.join(_GRACE_SECONDS)

    def _is_well(self) -> bool:
        check = self.service.check
        try:
            done = subprocess.run(
                check.command,  # type: ignore[union-attr]
                env=self._environment,
                cwd=self._folder,
                capture_output=True,
                timeout=check.timeout,  # type: ignore[union-attr]
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def _supervise(self) -> None:
        delay = _FIRST_DELAY
        while not self._stopping.is_set():
            began = time.monotonic()
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [*self.service.entrypoint, *self.service.command],
                    env=self._environment,
                    cwd=self._folder,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
                self.starts += 1
                self._code = self._process.wait()
            self._sweep()  # a container ends with its first process
            restarts = self.service.restart in ("always", "unless-stopped")
            if not restarts and not (self.service.restart == "on-failure" and self._code):
                break
            delay = _FIRST_DELAY if time.monotonic() - began > _STEADY_SECONDS else delay
            self._stopping.wait(delay)
            delay = min(2 * delay, _LONGEST_DELAY)
        self._ended.set()


def _free_network() -> str:
    """Return the first three numbers of loopback addresses that nobody listens at."""
    for _ in range(100):
        network = f"127.{random.randrange(64, 250)}.{random.randrange(1, 250)}"
        with socket.socket() as probe:
            try:
                probe.bind((f"{network}.12", 8000))
            except OSError:
                continue
        return network
    raise ComposeError("no free address in 127.0.0.0/8: is there none but 127.0.0.1 on this system?")
