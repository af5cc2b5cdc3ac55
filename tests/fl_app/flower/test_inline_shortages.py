"""Memory, disk and file descriptors belong to the whole process, not to the client that met their end."""

import errno
import os

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fl_app.flower import InlineGrid


def grid_raising(error: BaseException) -> InlineGrid:
    client = ClientApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        context.state["memory"] = ConfigRecord({"calls": 1})
        raise error

    return InlineGrid(client, 2)


def ask(grid: InlineGrid) -> Message:
    (reply,) = grid.send_and_receive([Message(RecordDict(), list(grid.get_node_ids())[1], "train")])
    return reply


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
        OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
        OSError(errno.EIO, os.strerror(errno.EIO)),
        KeyboardInterrupt(),
    ],
)
def test_the_error_reaches_the_caller_and_the_client_has_not_changed(error):
    grid = grid_raising(error)
    with pytest.raises(type(error)):
        ask(grid)
    assert not grid.memories()[1]


@pytest.mark.parametrize(
    "error", [ValueError("x"), RuntimeError("shapes"), SystemExit(0), OSError("kept no memory")]
)
def test_any_other_error_is_the_clients_own(error):
    reply = ask(grid_raising(error))
    assert reply.has_error()
    assert type(error).__name__ in reply.error.reason
