"""Small damage to what was valid: of bytes, and of trees of values such as JSON and Flower's records."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

NUMBERS = (0, 1, 2, 127, 128, 255, 256, 65_535, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)
"""Numbers at which lengths and counts break."""
VALUES: tuple[Any, ...] = (
    *(True, -1, 0, 1, 2**31, 2**62, -(2**62), 0.5, -1.0, 1e308, float("nan"), float("inf")),
    *("", "x", "../../x", "9" * 40, "\0", "é", b"", b"\0", b"FWU", [], [1], [0.5], ["x"]),
)
"""Values that a record of Flower's may hold."""
JSON_VALUES: tuple[Any, ...] = (
    *(value for value in VALUES if not isinstance(value, bytes)),
    *(None, {}, {"x": 1}, [[]], 10**30, 10**400, [None], [["x"]], {"_target_": "os.system"}),
)
DEEPEST = 5000
"""Brackets within brackets: more than Python's stack has."""
LONGEST = 1 << 16
"""Bytes; damage must not make an input grow without end."""


def damage_bytes(blob: bytes, others: Sequence[bytes], draw: random.Random) -> bytes:
    """Return ``blob`` after one to four changes; ``others`` are valid, too, and lend their parts."""
    out = bytearray(blob)
    for _ in range(draw.randint(1, 4)):
        draw.choice(_CHANGES)(out, others, draw)
    return bytes(out[:LONGEST])


def damage_tree(tree: Any, values: Sequence[Any], draw: random.Random) -> Any:
    """Return a copy of nested dictionaries and lists after one to three changes."""
    tree = _copied(tree)
    for _ in range(draw.randint(1, 3)):
        _change_node(tree, values, draw)
    return tree


def _flip(out: bytearray, others: Sequence[bytes], draw: random.Random) -> None:
    if out:
        out[draw.randrange(len(out))] ^= 1 << draw.randrange(8)


def _replace(out: bytearray, others: Sequence[bytes], draw: random.Random) -> None:
    if out:
        out[draw.randrange(len(out))] = draw.randrange(256)


def _write_number(out: bytearray, others: Sequence[bytes], draw: random.Random) -> None:
    size, letter = draw.choice(((1, "B"), (2, "H"), (4, "I"), (8, "Q")))
    if len(out) >= size:
        at = draw.randrange(len(out) - size + 1)
        number = draw.choice(NUMBERS) & ((1 << 8 * size) - 1)
        out[at : at + size] = struct.pack(draw.choice("<>") + letter, number)


def _cut_end(out: bytearray, others: Sequence[bytes], draw: random.Random) -> None:
    del out[draw.randrange(len(out) + 1) :]


def _cut_out(out: bytearray, others: Sequence[bytes], draw: random.Random) -> None:
    start, end = sorted(draw.randrange(len(out) + 1) for _ in range(2))
    del out[start : min(end, start + 64)]


def _repeat(out: bytearray, others: Sequence[bytes], draw: random.Random) -> None:
    start, end = sorted(draw.randrange(len(out) + 1) for _ in range(2))
    out[start:start] = out[start:end] * draw.choice((1, 2, 16))


def _insert(out: bytearray, others: Sequence[bytes], draw: random.Random) -> None:
    at = draw.randrange(len(out) + 1)
    out[at:at] = draw.randbytes(draw.randint(1, 8))


def _nest(out: bytearray, others: Sequence[bytes], draw: random.Random) -> None:
    at = draw.randrange(len(out) + 1)
    out[at:at] = draw.choice((b"[", b'{"":', b"{a: ", b"- ")) * DEEPEST


def _splice(out: bytearray, others: Sequence[bytes], draw: random.Random) -> None:
    other = draw.choice(others)
    out[draw.randrange(len(out) + 1) :] = other[draw.randrange(len(other) + 1) :]


_CHANGES: tuple[Callable[[bytearray, Sequence[bytes], random.Random], None], ...] = (
    *(_flip, _flip, _replace, _replace, _write_number, _write_number),
    *(_cut_end, _cut_out, _repeat, _insert, _nest, _splice),
)


def _change_node(tree: Any, values: Sequence[Any], draw: random.Random) -> None:
    """Put another value somewhere, take a key away, give it another name, or damage the text there."""
    branches = [tree]
    for branch in branches:
        children = branch.values() if isinstance(branch, dict) else branch
        branches += [child for child in children if isinstance(child, dict | list)]
    branch = draw.choice(branches)
    keys = list(branch) if isinstance(branch, dict) else list(range(len(branch)))
    if not keys:
        return
    key, kind = draw.choice(keys), draw.randrange(6)
    if kind == 0:
        del branch[key]
    elif kind == 1 and isinstance(branch, dict):
        branch[f"{key}x"[draw.randrange(2) :]] = branch.pop(key)
    elif kind == 2 and isinstance(branch[key], bytes):
        branch[key] = damage_bytes(branch[key], [branch[key]], draw)
    elif kind == 3 and isinstance(branch[key], str):
        branch[key] = damage_bytes(branch[key].encode(), [b"x"], draw).decode(errors="replace")
    else:
        branch[key] = _copied(draw.choice(values))  # the next change may be within it


def _copied(tree: Any) -> Any:
    """Return new dictionaries and lists around the same leaves; `copy.deepcopy` is slow."""
    if isinstance(tree, dict):
        return {key: _copied(value) for key, value in tree.items()}
    return [_copied(value) for value in tree] if isinstance(tree, list) else tree
