"""A Flower mod around any transform: the update that an app returns is rewritten before it leaves."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Literal

import torch
from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from torch import Tensor

from fl_app.flower.copies import copy_message
from fl_app.flower.internals import CLIENT_APP_RAISED, next_mods
from fl_app.mods.arrays import Unreadable, check_counters, is_buffer, read_arrays, widened
from fl_app.mods.fingerprint import fingerprint
from fl_app.mods.memory import Memory, Shelf, layout_of
from fl_app.mods.packed import as_sent, pack_update, rebuilt, record_of
from fl_app.mods.records import (
    FORMS,
    Returns,
    check_beside,
    check_shapes,
    find_pair,
    form_of,
    round_of,
    trains,
)
from fl_app.privacy.draws import OwnDraws
from fl_app.seeding import generator_for
from fl_app.transforms import State, Transform
from fl_app.types import RoundContext, Update

logger = logging.getLogger(__name__)

CallNext = Callable[[Message, Context], Message]
HIDES = frozenset({"secagg_mod", "secaggplus_mod"})
"""Flower's mods whose replies are masked: nothing behind them can read an update."""
CLIPS = frozenset({"fixedclipping_mod", "adaptiveclipping_mod"})
"""Flower's mods that bound an update: a bound must be the last that happens to it."""
_OUTPUT = ".bias"


class TransformMod:
    """Mod that applies one transform; see `transform_mod`."""

    def __init__(
        self,
        transform: Transform,
        *,
        name: str = "transform_mod",
        returns: Returns = "auto",
        buffers: Collection[str] | None = None,
        send_buffers: bool | None = None,
        packed: bool = False,
        seed: int | None = None,
    ) -> None:
        if not isinstance(transform, Transform):
            raise TypeError(f"{name}: expected a Transform, got {type(transform).__name__}")
        if transform.located is not None:
            raise ValueError(f"{name}: this transform needs locations, which strategy ADGP alone sends")
        if returns not in FORMS:
            raise ValueError(f"{name}: returns must be one of {list(FORMS)}, got {returns!r}")
        if isinstance(buffers, str):
            raise TypeError(f"{name}: buffers must be several names, got the text {buffers!r}")
        self.__name__ = name
        self.transform = transform
        self.returns: Returns = returns
        self.packed = packed
        self._buffers = None if buffers is None else frozenset(buffers)
        self._send_buffers = not transform.released if send_buffers is None else send_buffers
        self._seed = seed
        settings = (returns, self._buffers and sorted(self._buffers), self._send_buffers, seed)
        self.defense = f"{fingerprint(transform)} {settings!r}"
        """The exact defense: a memory of another one is not used."""

    def __repr__(self) -> str:
        """Return the mod's name and form."""
        return f"{self.__name__}(returns={self.returns!r}, packed={self.packed})"

    def __call__(self, message: Message, context: Context, call_next: CallNext) -> Message:
        """Answer a message; all but replies to training pass untouched."""
        if not trains(message):
            return call_next(message, context)
        try:
            self._check_order(call_next)
            # the app may empty the records that it is given, and mods before this one read them, too
            reply = call_next(copy_message(message), context)
            if reply.has_error():
                return reply
            content = self.rewrite(
                message.content, reply.content, context, round_of(message), _place(call_next)
            )
        except Unreadable as error:
            logger.warning("%s: nothing leaves: %s", self.__name__, error)
            reason = f"{self.__name__}: nothing left this node: {error}"
            return Message(Error(code=CLIENT_APP_RAISED, reason=reason), reply_to=message)
        reply.content = content
        return reply

    def rewrite(
        self, asked: RecordDict, reply: RecordDict, context: Context, round: int | None, place: int = 0
    ) -> RecordDict:
        """Return the records that may leave; raise `Unreadable` if the update cannot be found in them."""
        check_beside(asked, reply)
        pair = find_pair(asked, reply)
        if pair is None:
            return reply
        record, sent = asked[pair.base], reply[pair.name]
        if not isinstance(record, ArrayRecord) or not isinstance(sent, ArrayRecord):
            raise Unreadable(f"expected arrays under {pair.base!r} and {pair.name!r}")
        base, after = read_arrays(record, "message"), read_arrays(sent, "reply")
        check_shapes(base, after)
        for tensors, where in ((base, "message"), (after, "reply")):
            check_counters({name: tensors[name] for name in after}, self._buffers, where)
        # in the message's order, so that a reply's order tells nothing
        after = {name: after[name] for name in base if name in after}
        buffers = {name: t for name, t in after.items() if is_buffer(name, t, base[name], self._buffers)}
        moved = {name: widened(t) for name, t in after.items() if name not in buffers}
        _check_finite(buffers)
        if not self.transform.released:
            _check_finite(moved)
        start = {name: widened(base[name]) for name in moved}
        shelf = Shelf(context.state, context.run_id, self.defense, place)
        layout = layout_of(moved)
        memory = shelf.load(layout)
        form = self._form(start, moved, memory)
        change = {name: t - start[name] for name, t in moved.items()} if form == "weights" else moved
        number = memory.round + 1 if round is None else round
        change, state = self._apply(change, start, memory, context, number)
        shelf.save(layout, Memory(number, "" if form is None else form, state))
        out = reply.copy()
        if self.packed:
            shown = as_sent(base, buffers) if self._send_buffers else {}
            draw = self.transform.drawn
            drawn = None if draw is None else draw(change, number)
            pack_update(out, pair, change, shown, added=form != "delta", drawn=drawn)
            return out
        arrays = as_sent(base, change) if form == "delta" else rebuilt(base, change)
        if self._send_buffers:
            arrays |= as_sent(base, buffers)
        elif form != "delta":
            arrays |= {name: base[name] for name in buffers}
        else:
            arrays |= {name: torch.zeros_like(t) for name, t in buffers.items()}
        out[pair.name] = record_of(record, {name: arrays[name] for name in after})
        return out

    def _form(self, start: Update, moved: Update, memory: Memory) -> Literal["weights", "delta"] | None:
        if self.returns != "auto":
            return "weights" if self.returns == "weights" else "delta"
        if self.transform.released:
            moved = {name: torch.nan_to_num(tensor) for name, tensor in moved.items()}
        found = form_of(start, moved)
        if found is not None and memory.form and found != memory.form:
            raise Unreadable(
                f"the reply looks like {found}, and earlier ones like {memory.form}: state it by returns="
            )
        return found or (None if not memory.form else "weights" if memory.form == "weights" else "delta")

    def _apply(
        self, change: Update, start: Update, memory: Memory, context: Context, round: int
    ) -> tuple[Update, State]:
        known = _known_names(change)
        named = {known[name]: tensor for name, tensor in change.items()}
        weights = {known[name]: tensor for name, tensor in start.items()}
        client = _client(context)
        generator = (
            OwnDraws() if self._seed is None else generator_for(self._seed, round, client, "transform")
        )
        ctx = RoundContext(round, client, generator, weights)
        state = memory.state or self.transform.init(named)
        try:
            defended, after = self.transform.apply(named, state, ctx)
        except (ValueError, KeyError) as error:
            raise Unreadable(str(error)) from error
        if defended.keys() != named.keys():
            raise Unreadable("the transform dropped or added arrays")
        return {name: defended[known[name]] for name in change}, after

    def _check_order(self, call_next: CallNext) -> None:
        inner = next_mods(call_next)
        names = [getattr(mod, "__name__", type(mod).__name__) for mod in inner]
        for name, mod in zip(names, inner, strict=True):
            if name in HIDES or getattr(mod, "hides", False):
                raise Unreadable(f"{name} must stand before {self.__name__} in mods=: it masks what it sends")
            if isinstance(mod, TransformMod) and mod.packed:
                raise Unreadable(f"{name} with packed=True must be the first of mods=")
            if name in CLIPS:
                raise Unreadable(
                    f"{name} must stand before {self.__name__} in mods=: what leaves after it would exceed "
                    "its bound"
                )


def transform_mod(
    transform: Transform,
    *,
    name: str = "transform_mod",
    returns: Returns = "auto",
    buffers: Collection[str] | None = None,
    send_buffers: bool | None = None,
    packed: bool = False,
    seed: int | None = None,
) -> TransformMod:
    """Make a mod that applies ``transform`` to the update in every reply to training.

    ``returns`` says what the app's arrays are; by default they are compared with the message's. ``buffers``
    names the arrays that are statistics, not parameters; by default those of BatchNorm. They leave as they
    are unless ``send_buffers`` is False (the default under clipping and noise). ``packed`` sends the change
    alone, in our codec, to `fl_app.strategies.Unpacked`. Random numbers are the operating system's unless
    ``seed`` is given, which is for simulations: whoever knows it can take the noise off.
    """
    return TransformMod(
        transform,
        name=name,
        returns=returns,
        buffers=buffers,
        send_buffers=send_buffers,
        packed=packed,
        seed=seed,
    )


def _place(call_next: CallNext) -> int:
    """Return the number of our mods behind this one: two of the same defense have a memory each."""
    return sum(isinstance(mod, TransformMod) for mod in next_mods(call_next))


def _client(context: Context) -> int:
    value = context.node_config.get("partition-id", context.node_id)
    return int(value) if isinstance(value, int | str) and str(value).lstrip("-").isdigit() else 0


def _known_names(change: Update) -> dict[str, str]:
    """Return the name of each array that transforms are given.

    Pruning withholds the largest entries of the output layer's bias, however small the layer, and finds it by
    its name. Arrays without names end with it if the last one has a single dimension.
    """
    known = {name: name for name in change}
    last = next(reversed(change), None)
    if last is not None and change[last].ndim == 1 and not last.endswith("bias"):
        known[last] = last + _OUTPUT
    return known


def _check_finite(tensors: dict[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise Unreadable(f"{name!r} holds NaN or infinity")
