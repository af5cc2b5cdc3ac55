"""Mod that answers under secure aggregation: the server gets the sum of all replies and no single one."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict

from fl_app.client.node import folder_of
from fl_app.client.secure import SecureMember, SecureSettings
from fl_app.flower.copies import copy_message
from fl_app.flower.internals import CLIENT_APP_RAISED, next_mods
from fl_app.mods.arrays import Unreadable
from fl_app.mods.records import trains
from fl_app.mods.secure_job import BLOB, CLIENT, EXCHANGE, MASK, RECORD, Summed, read_job
from fl_app.mods.transform_mod import CallNext, TransformMod
from fl_app.secagg import ProtocolError
from fl_app.wire.messages import OFFER, SHARE, UNMASK, MessageError

logger = logging.getLogger(__name__)

_EXCHANGES = (OFFER, SHARE, UNMASK)
_NUMBER = "fl_app.secure.number"


class SecureMod:
    """See `secure_mod`."""

    hides = True
    """Its replies are masked: mods that read updates stand behind it."""

    def __init__(self, settings: SecureSettings, summed: Summed) -> None:
        self.__name__ = "secure_mod"
        self.settings = settings
        self.summed = summed

    def __call__(self, message: Message, context: Context, call_next: CallNext) -> Message:
        """Answer an exchange of the protocol; a training message without one is refused."""
        if not trains(message):
            return call_next(message, context)
        try:
            packed = [m for m in next_mods(call_next) if isinstance(m, TransformMod) and m.packed]
            if packed:
                raise Unreadable("a mod behind secure_mod must not have packed=True: sums need whole arrays")
            exchange, number, blob = _read(message.content)
            member = SecureMember(
                self.settings, self._own(number, context), context.state, folder_of(context)
            )
            if exchange in _EXCHANGES:
                return _reply(message, member.answer(exchange, blob))
            job = read_job(message.content, self.summed)
            member.check_job(job.digest)
            order = copy_message(message)
            del order.content[RECORD]
            reply = call_next(order, context)
            if reply.has_error():
                return reply
            return _reply(message, member.mask(blob, job.vector(reply.content), job.digest))
        except (Unreadable, ProtocolError, MessageError) as error:
            logger.warning("secure_mod: nothing leaves: %s", error)
            reason = f"secure_mod: nothing left this node: {error}"
            return Message(Error(code=CLIENT_APP_RAISED, reason=reason), reply_to=message)

    def _own(self, number: int, context: Context) -> int:
        """Return the client's number; refuse a second one in the same run."""
        known = context.state.get(_NUMBER)
        if isinstance(known, ConfigRecord) and known.get("run") == context.run_id:
            if known.get(CLIENT) != number:
                raise Unreadable("the server calls this client by another number than before")
        else:
            for name in ("secure", _NUMBER):
                context.state.pop(name, None)
            context.state[_NUMBER] = ConfigRecord({"run": context.run_id, CLIENT: number})
        return number


def secure_mod(
    *,
    max_weight: float,
    min_clients: int = 3,
    min_difference: int = 0,
    weight: str = "num-examples",
    metrics: Sequence[str] = (),
    returns: Literal["weights", "delta"] = "weights",
) -> SecureMod:
    """Make a mod that answers `fl_app.strategies.SecureAggregation.wrap` of any strategy that takes a mean.

    ``max_weight``, ``weight``, ``metrics`` and ``returns`` must be those of the server: a client refuses a
    round with others. A client with more than ``max_weight`` samples counts as one with that many. It refuses
    rounds of fewer than ``min_clients``, and every training message that comes without masks.
    """
    settings = SecureSettings(min_clients=min_clients, min_difference=min_difference)
    return SecureMod(settings, Summed(weight, float(max_weight), tuple(metrics), returns))


def _read(content: RecordDict) -> tuple[str, int, bytes]:
    record = content.get(RECORD)
    fields = dict(record.items()) if isinstance(record, ConfigRecord) else {}
    exchange, number, blob = fields.get(EXCHANGE), fields.get(CLIENT), fields.get(BLOB)
    if not isinstance(record, ConfigRecord):
        raise Unreadable("this client answers under secure aggregation only: wrap the server's strategy")
    if exchange not in (*_EXCHANGES, MASK) or not isinstance(exchange, str):
        raise Unreadable("the message is of an unknown exchange of secure aggregation")
    if not isinstance(number, int) or isinstance(number, bool) or not isinstance(blob, bytes):
        raise Unreadable("the message of secure aggregation lacks its number or its bytes")
    return exchange, number, blob


def _reply(message: Message, blob: bytes) -> Message:
    return Message(RecordDict({RECORD: ConfigRecord({BLOB: blob})}), reply_to=message)
