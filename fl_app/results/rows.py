"""The base of every row that a run or a study leaves in its files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

_LARGEST = 2**63 - 1


def _as_number(value: object) -> object:
    return float(value) if isinstance(value, bool) else value


def absent(value: object) -> bool:
    """Say whether a value is none: such keys are left out of a file."""
    return value is None


Whole = Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)]
"""An integer that fits into 64 bits: a larger one in a file is damage."""
Score = Annotated[float, BeforeValidator(_as_number)]
"""A number; a truth value counts as 0 or 1."""


class Row(BaseModel):
    """A row whose keys are all written, null where there is no value.

    The types are strict: text is no number. `fl_app.results.load_run` is the one reader that forgives.
    """

    model_config = ConfigDict(
        strict=True, extra="forbid", populate_by_name=True, use_attribute_docstrings=True
    )

    def model_post_init(self, context: Any) -> None:
        """Count every field as set, so that `as_json` has its key."""
        self.__pydantic_fields_set__.update(type(self).model_fields)

    def as_json(self) -> dict[str, Any]:
        """Return the row as its file has it; numbers that are not finite are still there."""
        return self.model_dump(by_alias=True, exclude_unset=True)

    def as_row(self) -> dict[str, Any]:
        """Return a flat row of plain values for a table: nested keys are dotted, lists are left out."""
        return _flat(self.model_dump(by_alias=True))

    def keys(self) -> Iterable[str]:
        """Return the columns of `as_row`: ``dict(row)`` is that row, and a table can be made of rows."""
        return self.as_row().keys()

    def __getitem__(self, column: str) -> Any:
        """Return one value of `as_row`."""
        return self.as_row()[column]


# pandas.DataFrame makes columns of mappings only
Mapping.register(Row)


class SparseRow(Row):
    """A row that has only the keys that were set, and that may have further ones."""

    model_config = ConfigDict(extra="allow")

    def model_post_init(self, context: Any) -> None:
        """Leave it at the fields that were set."""


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        elif not isinstance(value, list):
            found[f"{prefix}{key}"] = value
    return found
