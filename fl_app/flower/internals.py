"""Private names of Flower that this project needs, in one place.

Flower moves inner modules between minor versions. `tests/fl_app/flower/test_internals.py`
names the moved name and its use.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict

# one serialisation, so that counted bytes are what the deployment engine would send
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto

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
    twin = copy(reply)
    twin.__dict__.update(_content=None, _error=Error(code=CLIENT_APP_RAISED, reason=reason))
    return twin


def pack_records(content: RecordDict) -> bytes:
    """Return records as Flower serialises them."""
    return bytes(recorddict_to_proto(content).SerializeToString())


def unpack_records(packed: bytes) -> RecordDict:
    """Return the records in bytes; any error is a ValueError."""
    from flwr.proto.recorddict_pb2 import RecordDict as Packed

    try:
        return recorddict_from_proto(Packed.FromString(packed))
    except Exception as error:  # of protobuf and of the records' constructors
        raise ValueError(f"these bytes are no records: {type(error).__name__}") from error


def pack_call(message: Message, context: Context) -> tuple[bytes, bytes]:
    """Return a message and a context as bytes, with the message's id."""
    from flwr.common.serde import context_to_proto, message_to_proto

    return message_to_proto(message).SerializeToString(), context_to_proto(context).SerializeToString()


def unpack_call(message: bytes, context: bytes) -> tuple[Message, Context]:
    """Return the message and the context in bytes, and identify this process as the context's node."""
    from flwr.common.serde import context_from_proto, message_from_proto
    from flwr.proto.message_pb2 import Context as PackedContext
    from flwr.proto.message_pb2 import Message as PackedMessage

    read = context_from_proto(PackedContext.FromString(context))
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, read.run_id, read.node_id
    return message_from_proto(PackedMessage.FromString(message)), read


def load_client_app(app_id: str, version: str, bundle: str) -> Callable[[Message, Context], Message]:
    """Return the ClientApp of an installed bundle; its modules run in this process."""
    from flwr.clientapp.utils import get_load_client_app_fn

    load = get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
    return load(app_id, version, bundle)


Answer = Callable[[Message, Context], Message]


def run_client_task(
    address: str,
    token: str,
    certificates: bytes | None,
    parent: int,
    answer: Callable[[str, str, str], Answer],
) -> None:
    """Answer one message of a SuperNode as ``flwr-clientapp`` does, but by ``answer``.

    ``answer(app_id, version, bundle)`` takes the place of the loaded ClientApp. ``bundle`` is the SHA-256 of
    the bundle's content, computed here: the SuperLink may name another. No code of the app is loaded.
    """
    from flwr.supernode.runtime import run_clientapp as flower

    own: dict[str, Any] = vars(flower)
    install, bundles = own["install_from_fab"], list[str]()

    def installed(content: bytes, **more: Any) -> Any:
        bundles.append(hashlib.sha256(content).hexdigest())
        return install(content, **more)

    def load(app_id: str, version: str, _claimed: str) -> Answer:
        return answer(app_id, version, bundles[-1])

    own["install_from_fab"] = installed
    own["get_load_client_app_fn"] = lambda **_: load
    flower.run_clientapp(address, token, certificates is None, certificates, parent)


def read_certificates(path: str | None) -> bytes | None:
    """Return the certificates in a file; None without one."""
    return None if path is None else Path(path).read_bytes()


def forbid_inspection() -> None:
    """Forbid other processes of the same user to read this one's memory."""
    from flwr.supercore.utils import disable_process_dumping

    disable_process_dumping(strict=False)


def run_superexec(command: list[str]) -> None:
    """Run ``flower-superexec`` with another command for client apps; it gets the task's token on its input.

    Other kinds of tasks are refused: a node that enforces a policy runs client apps alone.
    """
    from flwr.supercore.cli.flower_superexec import flower_superexec
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
    from flwr.supercore.superexec.executor.types import LaunchResult

    def capacity(self: object, supported: set[TaskType], **_: Any) -> tuple[set[TaskType], set[str]]:
        return supported & {TaskType.CLIENT_APP}, set()

    def launch(self: object, spec: Any) -> LaunchResult:
        if spec.task_type != TaskType.CLIENT_APP:
            return LaunchResult.failed("this node runs client apps alone")
        certificates = [] if spec.insecure else ["--root-certificates", spec.root_certificates_path]
        where = ["--runtime-api-address", spec.runtime_api_address, "--parent-pid", str(spec.parent_pid)]
        process = subprocess.Popen([*command, *where, *certificates], stdin=subprocess.PIPE)
        if process.stdin is not None:
            process.stdin.write(spec.token.encode())
            process.stdin.close()
        return LaunchResult.accepted()

    for name, method in {"get_eligible_capacity": capacity, "launch": launch}.items():
        setattr(SubprocessExecutor, name, method)
    flower_superexec()


def run_supernode() -> None:
    """Run ``flower-supernode`` with the arguments of this process."""
    from flwr.supernode.cli import flower_supernode

    flower_supernode()


def legacy_server() -> tuple[type, type]:
    """Return the classes of the legacy API that wait for clients and that hold the number of rounds."""
    from flwr.server import ServerConfig, SimpleClientManager

    return SimpleClientManager, ServerConfig


def privacy_parts() -> dict[str, type]:
    """Return Flower's classes that state a privacy mechanism in their constructor, by kind and name."""
    from flwr.clientapp.mod import LocalDpMod
    from flwr.server import strategy as legacy
    from flwr.server.workflow import SecAggPlusWorkflow, SecAggWorkflow
    from flwr.serverapp import strategy

    prefix = "DifferentialPrivacy"
    found = {
        f"{module.__name__}.{name}": getattr(module, name)
        for module in (strategy, legacy)
        for name in module.__all__
        if name.startswith(prefix)
    }
    own = (LocalDpMod, SecAggPlusWorkflow, SecAggWorkflow)
    return found | {f"{part.__module__}.{part.__name__}": part for part in own}
