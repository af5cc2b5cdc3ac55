"""units.csv: every score reads back as the same number; damage and later versions are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_app.results import ResultError
from fl_app.results.units import UNITS, Unit, read_units, write_units

WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\r\0"), max_size=8)
UNIT = st.builds(
    Unit,
    **{name: WORDS for name in Unit._fields if name != "value"},
    value=st.floats(allow_nan=False),
)


@given(units=st.lists(UNIT, max_size=4))
def test_what_is_written_is_read(tmp_path_factory, units):
    folder = tmp_path_factory.mktemp("units")
    write_units(units, folder)
    assert read_units(folder) == units


def test_the_name_of_a_unit_leaves_out_what_a_rerun_may_change():
    unit = Unit(*"abcdefghijklm", 1.0)
    assert unit._replace(value=2.0, sample="x", model="y").name == unit.name
    for name in set(Unit._fields) - {"value", "sample", "model"}:
        assert unit._replace(**{name: "other"}).name != unit.name


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "not enough values"),
        ("a,b\n", "expected the columns schema"),
        (f"schema,{','.join(Unit._fields)}\n2{',' * 13}1.0\n", "expected version 1 in each line, got '2'"),
        (f"schema,{','.join(Unit._fields)}\n1,a,1.0\n", "argument"),
        (f"schema,{','.join(Unit._fields)}\n1{',' * 14}one\n", "could not convert"),
    ],
)
def test_damage_is_refused_with_the_name_of_the_file(tmp_path, content, words):
    (tmp_path / UNITS).write_text(content)
    with pytest.raises(ResultError, match=words) as caught:
        read_units(tmp_path)
    assert UNITS in str(caught.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ResultError, match=UNITS):
        read_units(tmp_path)
