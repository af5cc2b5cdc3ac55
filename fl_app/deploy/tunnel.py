"""A way to a SuperLink that asks for a client certificate, for commands that cannot show one.

Flower's own command takes no client certificate. It talks to a port of this process on the loopback address,
and what it says goes on over TLS, with the operator's certificate. The port lives as long as the command.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

_PIECE = 1 << 16


@contextmanager
def tunnel(superlink: str, root_certificates: Path, certificate: Path, key: Path) -> Iterator[str]:
    """Give an address, as host:port, whose connections end at ``superlink`` with the certificate shown."""
    context = ssl.create_default_context(cafile=root_certificates)
    context.load_cert_chain(certificate, key)
    host, port = superlink.rsplit(":", 1)
    connect = partial(asyncio.open_connection, host, int(port), ssl=context)
    loop = asyncio.new_event_loop()

    async def pipe(near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            far, out = await connect()
        except OSError:
            back.close()
            return
        await asyncio.gather(_pass_on(near, out), _pass_on(far, back))

    server = loop.run_until_complete(asyncio.start_server(pipe, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, name="tunnel", daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        server.close()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


async def _pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while piece := await source.read(_PIECE):
            sink.write(piece)
            await sink.drain()
    sink.close()
