"""Commands ``fl-app-supernode`` and ``fl-app-superexec``: Flower's own, with apps behind a policy."""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
from pathlib import Path

from fl_app.client.node import POLICY
from fl_app.enforcement.enforcer import mods_of
from fl_app.flower import parse_pairs
from fl_app.flower.internals import forbid_inspection, run_superexec, run_supernode
from fl_app.policy import Refusal, load_policy

_PROGRAM = "fl_app.enforcement"
_LOCAL = "127.0.0.1"


def supernode() -> None:
    """Run ``flower-supernode`` with the same arguments; apps run as `superexec` runs them.

    The SuperNode and its SuperExec share a secret that no file holds: an app cannot fetch tasks itself.
    """
    arguments = sys.argv[1:]
    if {"-h", "--help", "-V", "--version"} & set(arguments):
        run_supernode()
        return
    parser = argparse.ArgumentParser(prog="fl-app-supernode", add_help=False, allow_abbrev=False)
    parser.add_argument("--node-config", default="")
    parser.add_argument("--host", default=_LOCAL)
    parser.add_argument("--port", default="9094")
    for name in ("--isolation", "--ssl-certfile", "--superexec-auth-secret-file"):
        parser.add_argument(name)
    install = "--allow-runtime-dependency-installation"
    parser.add_argument(install, action="store_true")
    given, _ = parser.parse_known_args(arguments)
    if given.isolation not in (None, "subprocess") or given.superexec_auth_secret_file:
        parser.error("runs its own SuperExec: for separate ones, use flower-supernode and fl-app-superexec")
    if given.ssl_certfile:
        parser.error("serves its own SuperExec without TLS: for separate ones, use fl-app-superexec")
    if given.allow_runtime_dependency_installation:
        parser.error(f"{install} would install what an app asks for: install it on the node yourself")
    try:
        _check_policy(str(parse_pairs(given.node_config).get(POLICY, os.environ.get("FL_APP_POLICY", ""))))
    except (ValueError, Refusal) as error:
        parser.error(error.detail if isinstance(error, Refusal) else str(error))
    forbid_inspection()
    secret = secrets.token_hex(32).encode()
    host = _LOCAL if given.host == "0.0.0.0" else given.host
    where = ["--insecure", "--runtime-api-address", f"{host}:{given.port}", "--parent-pid", str(os.getpid())]
    theirs = _pipe_with(secret)
    command = [sys.executable, "-P", "-m", f"{_PROGRAM}.superexec", *where]
    subprocess.Popen([*command, "--superexec-auth-secret-file", f"/dev/fd/{theirs}"], pass_fds=(theirs,))
    os.close(theirs)
    ours = ["--superexec-auth-secret-file", f"/dev/fd/{_pipe_with(secret)}"]
    sys.argv = ["flower-supernode", *arguments, "--isolation", "process", *ours]
    run_supernode()


def superexec() -> None:
    """Run ``flower-superexec`` with the same arguments; apps run behind the policy of their node-config."""
    run_superexec([sys.executable, "-P", "-m", f"{_PROGRAM}.clientapp"])


def _check_policy(file: str) -> None:
    if not file:
        raise ValueError('needs a policy: name one in --node-config (policy="/etc/fl-app/policy.toml")')
    mods_of(load_policy(Path(file)))


def _pipe_with(secret: bytes) -> int:
    """Return the reading end of a pipe that holds ``secret`` and ends."""
    reading, writing = os.pipe()
    os.write(writing, secret)
    os.close(writing)
    return reading
