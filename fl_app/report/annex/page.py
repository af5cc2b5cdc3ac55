"""The annex as Markdown and as a page."""

from __future__ import annotations

from pathlib import Path

from fl_app.console.words import printable
from fl_app.report.annex.evidence import Evidence
from fl_app.report.annex.sections import BLANK, Section, annex_sections
from fl_app.report.markdown import markdown_rows
from fl_app.report.markup import Child, element, page
from fl_app.results import write_text

_TITLE = "Annex to a data protection impact assessment"
_OPENING = (
    "This annex holds what a tool can state. Each figure was measured or is called declared, and comes "
    "with its attacker and what he was given. Blank fields are the controller's. It is no legal advice."
)


def annex_markdown(evidence: Evidence) -> str:
    """Return the annex; blank fields are marked by a box."""
    lines = [f"# {_TITLE}", "", f"**{_plain(evidence.title)}**", "", _OPENING]
    for section in annex_sections(evidence):
        lines += ["", f"## {section.heading}", "", markdown_rows([["field", "content"], ["---", "---"]])]
        lines.append(
            markdown_rows(
                [
                    [_plain(e.name), f"☐ *{BLANK}*" if e.is_blank else _plain(e.content or "")]
                    for e in section.entries
                ]
            )
        )
    return "\n".join(lines) + "\n"


def annex_html(evidence: Evidence) -> str:
    """Return the annex as a page that loads nothing."""
    body: list[Child] = [
        element("p", "Annex", class_="eyebrow"),
        element("h1", _TITLE),
        element("p", element("strong", evidence.title)),
        element("p", _OPENING),
        *(child for section in annex_sections(evidence) for child in _section(section)),
    ]
    return page(_TITLE, body)


def write_annex(evidence: Evidence, path: Path) -> list[Path]:
    """Write the annex to ``path`` as Markdown, or as a page if it ends in .html; without an ending, both."""
    if path.suffix in (".html", ".htm"):
        write_text(path, annex_html(evidence))
        return [path]
    if path.suffix:
        write_text(path, annex_markdown(evidence))
        return [path]
    return [
        *write_annex(evidence, path.with_suffix(".md")),
        *write_annex(evidence, path.with_suffix(".html")),
    ]


def _section(section: Section) -> list[Child]:
    rows = [
        element(
            "tr",
            element("td", entry.name),
            element("td", element("em", f"☐ {BLANK}") if entry.is_blank else entry.content),
            data_blank="true" if entry.is_blank else "false",
        )
        for entry in section.entries
    ]
    return [element("h2", section.heading), element("table", *rows, data_annex=section.heading)]


def _plain(text: str) -> str:
    return " ".join(printable(text).split())
