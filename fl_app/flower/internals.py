"""Private names of Flower that this project needs, in one place.

Flower moves inner modules between minor versions. `tests/fl_app/flower/test_internals.py`
names the moved name and its use.
"""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

from flwr.app import Error, Message, RecordDict

# one serialisation, so that counted bytes are what the deployment engine would send
from flwr.common.serde import recorddict_to_proto

# `Grid.run` must give one of these; the legacy workflows read `grid.run.run_id`
from flwr.supercore.run import Run as Run  # re-exported

# `Message(content, dst_node_id, type)` raises unless a task identity is set in the process
from flwr.supercore.task_identity import TaskIdentity

SUPERLINK_NODE_ID = 1
"""The sender of every message of a server app."""

CLIENT_APP_RAISED = 2
"""Flower's error code for an exception inside a client app."""


def identify_process(run_id: int) -> None:
    """Say who sends the messages that this process makes. Process-wide: one live grid a process."""
    TaskIdentity.task_id = 1
    TaskIdentity.run_id = run_id
    TaskIdentity.node_id = SUPERLINK_NODE_ID


def empty_run(run_id: int) -> Run:
    """Return the description of a run that no SuperLink knows."""
    return Run.create_empty(run_id=run_id)


def assign_message_id(message: Message) -> str:
    """Give ``message`` the id that a SuperLink would give it (there is no public setter)."""
    message_id = str(uuid4())
    message.metadata.__dict__["_message_id"] = message_id
    return message_id


def serialised_size(content: RecordDict) -> int:
    """Return the length in bytes of the serialised content of a message."""
    return int(recorddict_to_proto(content).ByteSize())


def name_sender(message: Message, node_id: int) -> None:
    """Say which node ``message`` is about (there is no public setter)."""
    message.metadata.__dict__["_src_node_id"] = node_id


def next_mods(call_next: Callable[..., object]) -> list[object]:
    """Return the mods that run behind ``call_next``, outermost first.

    Flower wraps each mod in a function that closes over ``_mod`` and ``_ffn``; no mod is told of others.
    """
    code = getattr(call_next, "__code__", None)
    cells = getattr(call_next, "__closure__", None) or ()
    held = {} if code is None else dict(zip(code.co_freevars, cells, strict=True))
    if held.keys() != {"_mod", "_ffn"}:
        return []
    return [held["_mod"].cell_contents, *next_mods(held["_ffn"].cell_contents)]


def turn_into_error(reply: Message, reason: str) -> Message:
    """Return an error reply from the same node to the same message."""
    return Message(Error(code=CLIENT_APP_RAISED, reason=reason), metadata=reply.metadata)
