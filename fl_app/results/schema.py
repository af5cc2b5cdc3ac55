"""The format of result.json as a JSON schema and as Markdown tables, made from the types.

``python -m fl_app.results.schema docs`` writes both into the documentation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fl_app.results.rows import Row
from fl_app.results.run import Run
from fl_app.results.study import StudyResult
from fl_app.results.writing import json_text, write_text

SCHEMA_FILE, PAGE = "result.schema.json", "result-files.md"
_BEGIN, _END = "<!-- rows: made by fl_app.results.schema -->", "<!-- end of rows -->"


def result_schema() -> dict[str, Any]:
    """Return the JSON schema of result.json."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | Run.model_json_schema()


def row_tables() -> str:
    """Return a Markdown table of every kind of row, those of a run before those of a study."""
    parts = [f"## {title}\n\n{_tables(kind)}" for title, kind in (("A run", Run), ("A study", StudyResult))]
    return "\n\n".join(parts)


def with_tables(page: str) -> str:
    """Return a page with the tables in their place."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n\n{row_tables()}\n\n{_END}{after}"


def write_docs(folder: Path) -> None:
    """Write the schema and the tables into the documentation in ``folder``."""
    write_text(folder / SCHEMA_FILE, json_text(result_schema(), ascii_only=False))
    write_text(folder / PAGE, with_tables((folder / PAGE).read_text(encoding="utf-8")))


def _tables(kind: type[Row]) -> str:
    schema = kind.model_json_schema()
    kinds = {kind.__name__: schema} | {
        name: schema["$defs"][name] for name in _order(schema, schema["$defs"])
    }
    return "\n\n".join(_table(name, one) for name, one in kinds.items())


def _order(schema: dict[str, Any], kinds: dict[str, Any]) -> dict[str, None]:
    """Return the names of the rows that a row consists of, each before its own parts."""
    found: dict[str, None] = {}
    for entry in schema["properties"].values():
        for name in _named(entry):
            found |= {name: None} | _order(kinds[name], kinds)
    return found


def _named(entry: Any) -> Iterator[str]:
    if isinstance(entry, dict):
        if "$ref" in entry:
            yield str(entry["$ref"]).rpartition("/")[2]
        for part in entry.values():
            yield from _named(part)
    elif isinstance(entry, list):
        for part in entry:
            yield from _named(part)


def _table(name: str, schema: dict[str, Any]) -> str:
    rows = [
        f"| `{key}` | {_type(entry)} | {_line(entry.get('description', ''))} |"
        for key, entry in schema["properties"].items()
    ]
    head = ["| key | type | meaning |", "|---|---|---|"]
    return "\n".join([f"### {name}\n\n{_line(schema['description'])}\n", *head, *rows])


def _type(entry: dict[str, Any]) -> str:
    if "$ref" in entry:
        return next(_named(entry))
    if "anyOf" in entry:
        return " or ".join(dict.fromkeys(map(_type, entry["anyOf"])))
    if "enum" in entry:
        return " or ".join(f"`{value}`" for value in entry["enum"])
    if entry.get("type") == "array":
        return f"list of {_type(entry['items'])}"
    if entry.get("type") == "object" and isinstance(entry.get("additionalProperties"), dict):
        return f"{_type(entry['additionalProperties'])} by name"
    return str(entry.get("type", "any"))


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    write_docs(Path(sys.argv[1]))
