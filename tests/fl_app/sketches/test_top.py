"""FL-TOP's set against a sort by hand."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.sketches import coordinate_count, top_coordinates


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.5, 1.0, -2.0, 3.0]), min_size=1, max_size=60),
    st.sampled_from([0.005, 0.1, 0.29, 0.5, 0.7, 1.0]),
)
def test_the_largest_come_first_and_the_lower_index_wins_ties(scores, share):
    count = max(1, int(Fraction(str(share)) * len(scores)))
    ranking = sorted(range(len(scores)), key=lambda i: (-abs(scores[i]), i))
    assert top_coordinates(torch.tensor(scores), share).tolist() == sorted(ranking[:count])


def test_the_count_is_that_of_the_papers_table():
    assert coordinate_count(0.005, 1_663_370) == 8316
    assert coordinate_count(1.0, 1_663_370) == 1_663_370
    assert coordinate_count(0.7, 90) == 63
    assert coordinate_count(0.001, 10) == 1


@pytest.mark.parametrize("share", [0.0, -0.1, 1.01, float("nan")])
def test_a_share_outside_its_range_is_refused(share):
    with pytest.raises(ValueError, match="share must be in"):
        coordinate_count(share, 10)


def test_scores_of_layers_are_refused():
    with pytest.raises(ValueError, match="scores must be a vector"):
        top_coordinates(torch.zeros(2, 2), 0.5)
