"""Program that runs one app for one message, in a process of its own: bytes in, bytes out.

It holds no token of the node and no address of it. What it writes is read as the app's word, because the
app's code shares this process.
"""

from __future__ import annotations

import os
import sys

from fl_app.enforcement.frames import read_frames, write_frames
from fl_app.flower.internals import load_client_app, pack_records, unpack_call


def main() -> None:
    """Answer the call on standard input; write to the file descriptor that the first argument names."""
    descriptor, app_id, version, bundle = int(sys.argv[1]), *sys.argv[2:5]
    os.set_inheritable(descriptor, False)
    message, context = unpack_call(*read_frames(sys.stdin.buffer.read(), 2))
    try:
        reply = load_client_app(app_id, version, bundle)(message, context)
        failure = str(reply.error.reason) if reply.has_error() else None
        frames = (b"", pack_records(reply.content), pack_records(context.state)) if failure is None else None
    except BaseException as error:
        failure, frames = f"{type(error).__name__}: {error}", None
    write_frames(descriptor, frames or ((failure or "failed").encode()[:4000] or b"failed", b"", b""))
    sys.stdout.flush()
    os._exit(0)  # threads that the app left do not keep the process


if __name__ == "__main__":
    main()
