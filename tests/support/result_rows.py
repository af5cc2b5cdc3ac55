"""Hypothesis strategies for the rows of result files, made from their types."""

from __future__ import annotations

from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from fl_app.console.words import printable
from fl_app.results import Attack, Row, Run

TEXT = st.text(max_size=6).map(printable)
PLAIN = st.none() | st.booleans() | st.integers(-(10**20), 10**20) | TEXT
FINITE = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    PLAIN | FINITE,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


def rows(kind: type[Row]) -> st.SearchStrategy[Any]:
    """Return any row of that kind; keys that may be absent are absent at times."""
    fields = {
        field.alias or name: field for name, field in kind.model_fields.items() if name != "schema_version"
    }
    required = {key: _field(field) for key, field in fields.items() if field.is_required()}
    optional = {key: _field(field) for key, field in fields.items() if not field.is_required()}
    if kind is Attack:
        optional["own_score"] = FINITE
    return st.fixed_dictionaries(required, optional=optional).map(lambda values: kind(**values))


def _field(field: FieldInfo) -> st.SearchStrategy[Any]:
    return _values(field.annotation, field.metadata)


def _values(kind: Any, metadata: Any = ()) -> st.SearchStrategy[Any]:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _values(parts[0], parts[1:])
    if origin in (Union, UnionType):
        return st.one_of(map(_values, parts))
    if origin is Literal:
        return st.sampled_from(parts)
    if origin is list:
        return st.lists(_values(parts[0]), max_size=2)
    if origin is dict:
        return st.dictionaries(TEXT, _values(parts[1]), max_size=2)
    if kind is int:
        return _integers(metadata)
    if isinstance(kind, type) and issubclass(kind, Row):
        return rows(kind)
    return {float: FINITE, str: TEXT, bool: st.booleans(), NoneType: st.none(), Any: JSON}[kind]


def _integers(metadata: Any) -> st.SearchStrategy[int]:
    limits = [limit for entry in metadata for limit in (*getattr(entry, "metadata", ()), entry)]
    low = next(limit.ge for limit in limits if hasattr(limit, "ge"))
    high = next(limit.le for limit in limits if hasattr(limit, "le"))
    return st.integers(low, high)


RUNS = rows(Run)
