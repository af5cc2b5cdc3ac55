"""Read a page back with the standard library's parser, which shares no code with the report."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

_VOID = {"br", "img", "meta", "source"}


class ParsedPage(HTMLParser):
    """Elements, visible text and tables of a page; `unbalanced` lists tags that do not match.

    `facts` and `values` have the text and the `data-value` of elements by their `data-fact`.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.tables: list[list[list[str]]] = []
        self.cards: dict[str, str] = {}
        self.facts: dict[str, str] = {}
        self.values: dict[str, str] = {}
        self.unbalanced: list[str] = []
        self._words: list[str] = []
        self._open: list[str] = []
        self._telling: list[str | None] = []
        self._card: list[str] | None = None
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        self.unbalanced += self._open
        self.facts = {fact: " ".join(words.split()) for fact, words in self.facts.items()}

    @property
    def text(self) -> str:
        """Everything a reader sees, in one line."""
        return " ".join(" ".join(self._words).split())

    @property
    def foreign_scripts(self) -> int:
        """Number of scripts beside the one that every page has."""
        return len(self.named("script")) - 1

    def named(self, tag: str) -> list[dict[str, str]]:
        """Return the attributes of all elements of one kind."""
        return [attributes for name, attributes in self.elements if name == tag]

    def with_fact(self, name: str) -> list[dict[str, str]]:
        """Return the attributes of all elements with this `data-fact`."""
        return [attributes for _, attributes in self.elements if attributes.get("data-fact") == name]

    def table_with(self, title: str) -> list[dict[str, str]]:
        """Return the rows of the first table that has a column ``title``, by column."""
        for table in self.tables:
            if title in table[0]:
                return [dict(zip(table[0], row, strict=True)) for row in table[1:]]
        raise AssertionError(f"no table has a column {title!r}")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        attributes = dict(attrs)
        fact = attributes.get("data-fact")
        if fact is not None:
            self.facts.setdefault(fact, "")
            self.values[fact] = attributes.get("data-value") or ""
        if tag not in _VOID:
            self._open.append(tag)
            self._telling.append(fact)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag == "article":
            self._card, self._card_name = [], attributes.get("data-card") or ""

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.unbalanced.append(tag)
        if self._telling:
            self._telling.pop()
        if tag == "article" and self._card is not None:
            self.cards[self._card_name] = " ".join(" ".join(self._card).split())
            self._card = None

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in ("style", "script"):
            return
        self._words.append(data)
        for fact in filter(None, self._telling):
            self.facts[fact] += data
        if self._card is not None and "h2" not in self._open:
            self._card.append(data)
        if "table" in self._open and ("td" in self._open or "th" in self._open):
            self.tables[-1][-1][-1] += data
