"""Program in the place of ``flwr-clientapp``: it holds the task's token and never loads the app's code."""

from __future__ import annotations

import argparse
import sys

from fl_app.flower.internals import Answer, forbid_inspection, read_certificates, run_client_task


def main() -> None:
    """Answer one message of a SuperNode; the token comes on standard input."""
    forbid_inspection()
    parser = argparse.ArgumentParser(prog="fl_app.enforcement.clientapp")
    parser.add_argument("--runtime-api-address", required=True)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--root-certificates")
    given = parser.parse_args()
    run_client_task(
        given.runtime_api_address,
        sys.stdin.read().strip(),
        read_certificates(given.root_certificates),
        given.parent_pid,
        _answer_for,
    )


def _answer_for(app_id: str, version: str, bundle: str) -> Answer:
    # imported late: a SuperNode gives a task up unless its heartbeat begins in time
    from fl_app.enforcement.enforcer import AppIdentity, Enforcer
    from fl_app.enforcement.process import in_process

    app = AppIdentity(app_id, version, bundle)
    return Enforcer(app, in_process(app))


if __name__ == "__main__":
    main()
