"""In-process grid for Flower client apps: no polling, no pickling, no start-up.

The embedded default. Any Flower strategy runs on it unchanged by
``strategy.start(grid=InlineGrid(client_app, 10), …)``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack

from flwr.app import Context, Error, Message, RecordDict, UserConfigValue
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fl_app.console.progress import Advance, track
from fl_app.flower.copies import copy_message, copy_records
from fl_app.flower.internals import CLIENT_APP_RAISED, Run, assign_message_id, empty_run, identify_process
from fl_app.flower.own_nodes import OWN_NODE
from fl_app.storage.shortage import shortage

logger = logging.getLogger(__name__)

_FIRST_NODE_ID = 1000
_BAR_AFTER_SECONDS = 2.0


class InlineGrid(Grid):
    """A grid whose nodes are contexts in memory.

    As in Flower: an exception in a client app becomes an error reply and the
    app's changes of its context are dropped; a change of the run config is an error; a
    late reply is lost (``timeout`` is honoured between clients). Clients run in
    the order of the messages, one at a time: sums and random draws repeat.
    Contexts are made when first used, so that thousands of nodes cost nothing.

    Memory, disk and file descriptors belong to the whole process: an error for lack of them is raised to the
    caller, since it is not one client's failure.
    """

    def __init__(
        self,
        client_app: ClientApp,
        num_supernodes: int,
        *,
        run_config: Mapping[str, UserConfigValue] | None = None,
        node_config: Mapping[str, UserConfigValue] | None = None,
        run_id: int = 1,
    ) -> None:
        if num_supernodes < 1:
            raise ValueError(f"InlineGrid: num_supernodes must be at least 1, got {num_supernodes}")
        self._client_app = client_app
        self._nodes = range(_FIRST_NODE_ID, _FIRST_NODE_ID + num_supernodes)
        self._run_config = dict(run_config or {})
        self._node_config = dict(OWN_NODE) | dict(node_config or {})
        self._contexts: dict[int, Context] = {}
        self._replies: dict[str, Message] = {}
        self._run = empty_run(run_id)
        identify_process(run_id)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Run every message's client and return the replies that came in time."""
        return self.pull_messages(self._process(list(messages), timeout))

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run every message's client at once; the replies wait to be pulled."""
        return self._process(list(messages), None)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to the messages with these ids, once."""
        return [self._replies.pop(message_id) for message_id in message_ids if message_id in self._replies]

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of all nodes."""
        return list(self._nodes)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Make a message."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def set_run(self, run: Run) -> None:
        """Set the run; messages made from now on belong to it."""
        self._run = run
        identify_process(run.run_id)

    @property
    def run(self) -> Run:
        """The run."""
        return self._run

    def context(self, node_id: int) -> Context:
        """Return the context of a node."""
        if node_id not in self._nodes:
            raise ValueError(
                f"InlineGrid: node ids go from {self._nodes[0]} to {self._nodes[-1]}, got {node_id}"
            )
        if node_id not in self._contexts:
            partition = {"partition-id": node_id - _FIRST_NODE_ID, "num-partitions": len(self._nodes)}
            self._contexts[node_id] = Context(
                run_id=self._run.run_id,
                node_id=node_id,
                node_config=partition | self._node_config,
                state=RecordDict(),
                run_config=dict(self._run_config),
            )
        return self._contexts[node_id]

    def memories(self) -> dict[int, RecordDict]:
        """Return the state of all clients that were called, by partition id."""
        return {node - _FIRST_NODE_ID: context.state for node, context in self._contexts.items()}

    def restore(self, memories: Mapping[int, RecordDict]) -> None:
        """Give clients the memories that `memories` returned."""
        for client, memory in memories.items():
            self.context(_FIRST_NODE_ID + client).state = memory

    def _process(self, messages: list[Message], timeout: float | None) -> list[str]:
        """Run the clients; show a bar if that takes long."""
        start = time.monotonic()
        ids: list[str] = []
        advance: Advance | None = None
        with ExitStack() as stack:
            for message in messages:
                elapsed = time.monotonic() - start
                if timeout is not None and elapsed > timeout:
                    break
                if advance is None and elapsed > _BAR_AFTER_SECONDS:
                    advance = stack.enter_context(track("clients", len(messages)))
                ids.append(self._deliver(message))
                if advance is not None:
                    advance(len(ids), "")
        return ids

    def _deliver(self, message: Message) -> str:
        message_id = assign_message_id(message)
        reply = self._call(copy_message(message))
        assign_message_id(reply)
        self._replies[message_id] = reply
        return message_id

    def _call(self, message: Message) -> Message:
        node_id = message.metadata.dst_node_id
        context = self.context(node_id)
        trial = Context(
            run_id=context.run_id,
            node_id=node_id,
            node_config=dict(context.node_config),
            state=copy_records(context.state),
            run_config=dict(context.run_config),
        )
        try:
            reply = self._client_app(message, trial)
            if trial.run_config != context.run_config:
                raise ValueError("the client app changed its run config, which is the same for the whole run")
        except (
            Exception,
            SystemExit,
        ) as error:  # as Flower does: it is the client's failure
            if (reason := shortage(error)) is not None:
                error.add_note(f"while client {node_id - _FIRST_NODE_ID} was at work: {reason}")
                raise
            logger.debug("node %d raised", node_id, exc_info=True)
            reason = f"{type(error)}:<'{error}'>"
            return Message(Error(code=CLIENT_APP_RAISED, reason=reason), reply_to=message)
        self._contexts[node_id].state = trial.state
        return reply
