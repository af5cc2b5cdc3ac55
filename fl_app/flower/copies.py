"""Copies of Flower messages and records: own containers around shared, immutable payloads.

Flower's strategies send one RecordDict object to all nodes. In one process a
client that empties its copy would empty the model of all; a tap that edits a
reply would edit the client's state.
"""

from __future__ import annotations

from copy import copy
from typing import Any

from flwr.app import Context, Message, RecordDict


def copy_message(message: Message) -> Message:
    """Return a message with containers of its own; payloads are immutable and shared."""
    twin = copy(message)
    if message.has_content():
        twin.content = copy_records(message.content)
    return twin


def copy_records(content: RecordDict) -> RecordDict:
    """Return records with containers of their own around the same payloads."""
    twin = content.copy()
    for name, record in content.items():
        own: Any = record.copy()
        for key, value in record.items():
            if isinstance(value, list):
                own[key] = list(value)
        twin[name] = own
    return twin


def copy_context(context: Context) -> Context:
    """Return a context of a client's own with the same content."""
    return Context(
        run_id=context.run_id,
        node_id=context.node_id,
        node_config=dict(context.node_config),
        state=copy_records(context.state),
        run_config=dict(context.run_config),
    )
