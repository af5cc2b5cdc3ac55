"""Read the result of a run; a value that does not fit its type is left out.

Interrupted and failed runs leave partial files, and those are the runs whose report is needed most.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from fl_app.console.words import printable
from fl_app.results.rows import Row
from fl_app.results.run import SCHEMA, Run
from fl_app.storage.plain_folder import StrangeEntry, refuse_links

RESULT = "result.json"
MOST_BYTES = 2**28
_INFINITE = {"Infinity": float("inf"), "-Infinity": float("-inf")}
_GONE = object()
_Row = TypeVar("_Row", bound=Row)


class ResultError(ValueError):
    """A file that is not the result of a run or of a study: its path and what is wrong, in one sentence."""


def load_run(folder: Path | str, *, exact: bool = False) -> Run:
    """Read the run in ``folder``; every failure is a `ResultError`.

    Values that do not fit are left out. With ``exact`` they are refused: a run that is written again
    must not lose anything.
    """
    folder = Path(folder)
    raw = read_content(folder)
    if not exact:
        return read_run(folder, spelled(raw))
    _refuse_later(folder, raw)
    try:
        return Run.model_validate(raw).lies_in(folder)
    except ValidationError as error:
        raise ResultError(f"{folder / RESULT}: is not the result of a run: {first_fault(error)}") from error


def read_run(folder: Path, raw: Mapping[str, Any]) -> Run:
    """Return the run that ``raw``, the content of the result.json of ``folder``, describes."""
    _refuse_later(folder, raw)
    return forgive(Run, _numbered(raw)).lies_in(folder)


def read_content(folder: Path) -> dict[str, Any]:
    """Return the content of the result.json of ``folder``; a folder with links in it is refused."""
    try:
        refuse_links(folder)
    except OSError as error:
        raise ResultError(f"{folder} cannot be read: {error.strerror or error}") from error
    except StrangeEntry as error:
        raise ResultError(str(error)) from error
    return read_object(folder / RESULT)


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; every failure is a `ResultError`."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"it is longer than {MOST_BYTES} bytes")
        raw = json.loads(content.decode(), parse_constant=_INFINITE.get)
    except OSError as error:
        raise ResultError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # bad JSON and bad UTF-8 alike
        raise ResultError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ResultError(f"{path} must hold a JSON object, got {type(raw).__name__}")
    return raw


def spelled(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file's content, which a stranger may have written, with all its texts printable."""
    return {printable(key): _printable(value) for key, value in raw.items()}


def forgive(kind: type[_Row], raw: Mapping[str, Any]) -> _Row:
    """Return ``raw`` as a row without the values that do not fit.

    In a list of optional values such a value is null and keeps its place.
    """
    while True:
        try:
            return kind.model_validate(raw)
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)
            raw = _without(raw, [fault["loc"] for fault in faults])


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value, lines=True)
    if isinstance(value, dict):
        return spelled(value)
    return [_printable(item) for item in value] if isinstance(value, list) else value


def first_fault(error: ValidationError) -> str:
    """Return the first of the faults, in words."""
    fault = error.errors(include_url=False)[0]
    place = ".".join(map(str, fault["loc"]))
    return f"{place}: {fault['msg']}, got {fault['input']!r:.80}"


def _refuse_later(folder: Path, raw: Mapping[str, Any]) -> None:
    version = raw.get("schema", SCHEMA)
    if isinstance(version, int) and version > SCHEMA:
        raise ResultError(
            f"{folder / RESULT}: is of a later version of this project: expected schema {SCHEMA} or less, "
            f"got {version!r:.20}"
        )


def _numbered(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give rounds that have no number that of their place."""
    rounds = raw.get("rounds")
    if not isinstance(rounds, list):
        return raw
    rows = [
        row | {"round": place} if isinstance(row, dict) and type(row.get("round")) is not int else row
        for place, row in enumerate(rounds, 1)
    ]
    return {**raw, "rounds": rows}


def _without(raw: Any, places: Sequence[tuple[int | str, ...]]) -> Any:
    """Return a copy of ``raw`` without the values at ``places``; each pass takes at least one away."""
    inner: dict[int | str, list[tuple[int | str, ...]]] = {}
    for place in places:
        inner.setdefault(place[0], []).append(place[1:])
    if isinstance(raw, list):
        kept = [_mended(item, inner.get(i)) for i, item in enumerate(raw)]
        return [item for item in kept if item is not _GONE]
    mended = {key: _mended(value, inner.get(key), in_list=False) for key, value in raw.items()}
    return {key: value for key, value in mended.items() if value is not _GONE}


def _mended(value: Any, places: list[tuple[int | str, ...]] | None, *, in_list: bool = True) -> Any:
    if places is None:
        return value
    own = any(not place or not isinstance(value, dict | list) for place in places)
    missing = any(len(place) == 1 and isinstance(value, dict) and place[0] not in value for place in places)
    if own or missing:
        return None if in_list and value is not None else _GONE
    return _without(value, places)
