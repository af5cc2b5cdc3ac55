from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fl_app.site.holm import holm

probabilities = st.lists(st.floats(0, 1), max_size=8)


def test_a_case_worked_by_hand():
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])


@given(probabilities, st.floats(0.001, 0.999))
def test_what_is_below_a_level_is_what_the_step_down_procedure_rejects(values, level):
    adjusted = holm(values)
    rejected: set[int] = set()
    for rank, i in enumerate(sorted(range(len(values)), key=lambda i: values[i])):
        if values[i] * (len(values) - rank) > level:
            break
        rejected.add(i)
    assert {i for i, p in enumerate(adjusted) if p <= level} == rejected


@given(probabilities)
def test_a_correction_lowers_nothing_and_asking_more_lowers_nothing_either(values):
    adjusted = holm(values)
    assert all(value <= after <= 1 for value, after in zip(values, adjusted, strict=True))
    assert all(a <= b + 1e-12 for a, b in zip(adjusted, holm([*values, 0.5]), strict=False))
