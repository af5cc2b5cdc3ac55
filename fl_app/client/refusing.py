"""Errors of a node that does not trust its runs: the server gets codes, the node's log the details."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence

from flwr.app import Context, Message

from fl_app.client.node import kind_and_round, note
from fl_app.policy import Refusal

logger = logging.getLogger(__name__)

Handler = Callable[[Message, Context], Message]
Codes = Sequence[tuple[type[Exception], str]]
"""Error types with their codes; the first match applies."""
CODES: Codes = ((PermissionError, "model"), (OSError, "keep"), (ValueError, "message"))


def refuse_in_codes(trusts: Callable[[Context], bool], codes: Codes = CODES) -> Callable[[Handler], Handler]:
    """Return a decorator of handlers: unless a node ``trusts`` its runs, the server learns codes alone."""

    def decorate(handler: Handler) -> Handler:
        @functools.wraps(handler)
        def handle(message: Message, context: Context) -> Message:
            try:
                return handler(message, context)
            except Exception as error:
                if trusts(context):
                    raise
                code = error.code if isinstance(error, Refusal) else _code_of(error, codes)
                if isinstance(error, Refusal):
                    logger.warning("run %d: refused [%s]: %s", context.run_id, code, error.detail)
                else:
                    logger.warning("run %d: failed [%s]", context.run_id, code, exc_info=error)
                refusal = Refusal(code)
            try:
                note(context, kind_and_round(message), size=0, allowed=False, decision=refusal.code)
            except OSError as error:  # the error text names files of the node
                logger.error("run %d: the refusal cannot be noted: %s", context.run_id, error)
            raise refusal

        return handle

    return decorate


def _code_of(error: Exception, codes: Codes) -> str:
    return next((code for kind, code in codes if isinstance(error, kind)), "internal")
