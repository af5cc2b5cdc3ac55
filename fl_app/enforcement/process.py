"""An app in a process of its own, started for one message and killed with its process group."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

from flwr.app import Context, Message

from fl_app.enforcement.enforcer import AppIdentity, AppReply, CallApp
from fl_app.enforcement.frames import CHUNK, LENGTH, join_frames, read_frames
from fl_app.flower.internals import pack_call
from fl_app.policy import Policy, Refusal

_MOST_STATE = 1 << 30
"""Most bytes of an app's memory between rounds."""
_SECRETS = ("FL_APP_POLICY", "FL_APP_POLICY_LOG", "FL_APP_STATE")
"""Variables that are no affair of an app's."""


def in_process(app: AppIdentity) -> CallApp:
    """Return a function that lets an app answer in a process of its own."""

    def call(message: Message, context: Context, policy: Policy, limit: int) -> AppReply:
        request = join_frames(pack_call(message, context))
        ours, theirs = os.pipe()
        command = [sys.executable, "-P", "-m", "fl_app.enforcement.child", str(theirs)]
        identity = [app.id, app.version, app.bundle]
        keeps = app.bundle in policy.apps.trusted
        environment = {n: v for n, v in os.environ.items() if keeps or n not in _SECRETS}
        try:
            process = subprocess.Popen(
                [*policy.apps.sandbox, *command, *identity],
                stdin=subprocess.PIPE,
                pass_fds=(theirs,),
                start_new_session=True,
                env=environment,
            )
        except OSError:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        feeder = threading.Thread(target=_feed, args=(process, request), daemon=True)
        feeder.start()
        try:
            failure, content, state = _receive(ours, 3, limit + _MOST_STATE, policy.apps.seconds)
        finally:
            os.close(ours)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            feeder.join(timeout=10)
        if failure:
            return AppReply(None, detail=failure.decode(errors="replace"))
        return AppReply(content, state)

    return call


def _feed(process: subprocess.Popen[bytes], request: bytes) -> None:
    if process.stdin is None:
        return
    with suppress(BrokenPipeError), process.stdin:
        process.stdin.write(request)


def _receive(descriptor: int, count: int, most: int, seconds: float) -> list[bytes]:
    """Return frames of at most ``most`` bytes together; refuse more, and a writer that is late or gone."""
    deadline = time.monotonic() + seconds
    came, header = bytearray(), count * LENGTH.size
    while len(came) < header or len(came) < header + _total(came, count, most):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            raise Refusal("time", f"no answer within {seconds:g} seconds")
        chunk = os.read(descriptor, CHUNK)
        if not chunk:
            raise Refusal("internal", "the app's process ended without an answer")
        came += chunk
    return read_frames(bytes(came), count)


def _total(came: bytearray, count: int, most: int) -> int:
    total = sum(int(length) for (length,) in LENGTH.iter_unpack(came[: count * LENGTH.size]))
    if total > most:
        raise Refusal("bytes", f"the app answers with {total} bytes, at most {most} are read")
    return total
