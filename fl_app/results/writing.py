"""Write a JSON file at once or not at all."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def write_json(path: Path, content: object, *, ascii_only: bool = True) -> None:
    """Write ``content`` to ``path``; a number that is not finite becomes null."""
    write_text(path, json_text(content, ascii_only=ascii_only))


def json_text(content: object, *, ascii_only: bool = True) -> str:
    """Return ``content`` as the text of a JSON file; a number that is not finite becomes null."""
    return json.dumps(_plain(content), indent=1, ensure_ascii=ascii_only, allow_nan=False) + "\n"


def write_text(path: Path, text: str) -> None:
    """Write a file at once or not at all."""
    draft = path.with_name(f"{path.name}.part")
    try:
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
