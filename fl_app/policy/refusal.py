"""A node's refusals: a code and a fixed text for the server, details for the node's own log."""

from __future__ import annotations

from collections.abc import Mapping

TEXTS: Mapping[str, str] = {
    "app": "this node does not run this app",
    "audit": "this node does not consent to this audit",
    "batch": "this node does not answer for so few samples",
    "budget": "this node's privacy budget is spent",
    "buffers": "this node does not send statistics of layers in such a run",
    "bytes": "this node does not send so much",
    "cohort": "this node does not take part in such a cohort",
    "config": "this node cannot use the run's configuration",
    "data": "this node cannot use its data for this run",
    "defense": "this node takes part with another defense only",
    "dp": "this node takes part with more noise only",
    "internal": "this node could not answer",
    "keep": "this node could not keep what it must remember",
    "locate": "this node names no positions in such a run",
    "message": "this node cannot use the message",
    "metrics": "this node tells no numbers measured on its data",
    "model": "this node does not train this model",
    "moved": "this node does not follow a model that moves so far",
    "node": "this node is not set up for this run",
    "order": "this node has answered this round, or it is none of the run's",
    "orders": "this node has given all answers that it gives",
    "records": "this node sends other records only",
    "run": "this node knows this run by another name",
    "secagg": "this node takes part in secure aggregation only",
    "steps": "this node does not take so many local steps",
    "time": "this node did not wait longer for the app",
    "unreadable": "this node does not send what it cannot read",
}
"""All texts that a node may send to a server besides its answers, by code."""


class Refusal(Exception):
    """A refusal; its text is one of `TEXTS`, and ``detail`` is for the node's own log."""

    def __init__(self, code: str, detail: str = "") -> None:
        super().__init__(f"[{code}] {TEXTS[code]}")
        self.code = code
        self.detail = detail
