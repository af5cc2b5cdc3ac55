"""Words of strangers: cut, and without anything that a terminal or a page would obey.

Everything that a server keeps of what a client says passes `foreign`, and every text of a run's folder passes
`printable`: control characters move cursors, retitle windows and forge lines of a log, and directional marks
reorder what a reader sees.
"""

from __future__ import annotations

import re

LONGEST = 500
"""Characters that are kept of one text."""
_LINES = "\n\t"
_HIDDEN = re.compile(
    "[\x00-\x1f\x7f-\x9f\u00ad\u061c\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)


def foreign(said: object) -> str:
    """Return what a stranger said in one printable line of at most `LONGEST` characters."""
    text = str(said)
    shown = printable(text[:LONGEST])
    return shown if len(text) <= LONGEST and len(shown) <= LONGEST else f"{shown[: LONGEST - 1]}…"


def printable(text: str, *, lines: bool = False) -> str:
    """Return ``text`` with its control characters spelled out; ``lines`` keeps line ends and tabs."""

    def spell(match: re.Match[str]) -> str:
        if lines and match[0] in _LINES:
            return match[0]
        code = ord(match[0])
        return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

    return _HIDDEN.sub(spell, text)
