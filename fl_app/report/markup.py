"""HTML that is escaped by construction: only what `element` made goes into a page unescaped."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterable, Sequence
from html import escape, unescape
from pathlib import Path
from urllib.parse import quote

from fl_app.report.script import SCRIPT
from fl_app.report.style import STYLE

_VOID = frozenset({"br", "img", "meta", "source"})


class Html(str):
    """Finished markup. Any other string is text and gets escaped."""

    __slots__ = ()


Child = str | Iterable["Child"] | None


def element(tag: str, /, *children: Child, **attributes: str | bool | None) -> Html:
    """Make one element; `class_` and `data_value` become `class` and `data-value`, None leaves out."""
    opening = tag + "".join(_attribute(key, value) for key, value in attributes.items())
    return Html(f"<{opening}>" if tag in _VOID else f"<{opening}>{join(children)}</{tag}>")


def join(children: Child) -> Html:
    """Put parts one after the other, escaping those that are plain text."""
    if children is None:
        return Html()
    if isinstance(children, str):
        return children if isinstance(children, Html) else Html(escape(children))
    return Html("".join(join(child) for child in children))


def table(
    header: Sequence[Child], rows: Iterable[Sequence[Child]], *, words: int = 1, caption: str | None = None
) -> Html:
    """Make a table that scrolls sideways on a narrow screen; after ``words`` columns come numbers."""

    names = [text_of(title) for title in header]

    def cell(tag: str, index: int, content: Child, **more: str | None) -> Html:
        return element(tag, content, class_=None if index < words else "number", **more)

    def label(index: int) -> str | None:
        return (names[index] or None) if index < len(names) else None

    head = element("tr", [cell("th", i, title, scope="col") for i, title in enumerate(header)])
    body = element(
        "tbody",
        [element("tr", [cell("td", i, c, data_label=label(i)) for i, c in enumerate(row)]) for row in rows],
    )
    return scrolled(element("caption", caption) if caption else None, element("thead", head), body)


def text_of(title: Child) -> str:
    """Return the words of a heading, which name its cells where a phone shows a row as a list."""
    return unescape(re.sub(r"<[^>]*>", "", join(title)))


def scrolled(*children: Child) -> Html:
    """Make a table of ``children`` that the keyboard can scroll sideways."""
    return element(
        "div", element("table", *children), class_="scroll", tabindex="0", role="region", aria_label="table"
    )


def details(title: str, *children: Child, id_: str | None = None) -> Html:
    """Make a part that is folded away until asked for."""
    return element("details", element("summary", title), *children, id_=id_)


def relative_link(target: Path, base: Path) -> str:
    """Return what leads from a page in the folder ``base`` to a file."""
    return quote(Path(os.path.relpath(target, base)).as_posix())


def page(title: str, body: Child, *, wide: bool = False) -> Html:
    """Make a whole document that can load nothing: its policy allows only what the file itself holds."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Html(STYLE)),
    )
    scripts = element("script", Html(SCRIPT))
    return Html(
        "<!doctype html>\n"
        + element(
            "html",
            head,
            element("body", element("main", body, class_="wide" if wide else None), scripts),
            lang="en",
        )
        + "\n"
    )


def _attribute(key: str, value: str | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(value)}"'
