"""What ADGP's pruning keeps: none of a client's own largest entries, and nothing outside of the locations."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fl_app.seeding import generator_for
from fl_app.sketches.selection import location_counts
from fl_app.transforms import chain, corrected, error_feedback, keep_topk, prune_aligned
from fl_app.types import RoundContext

CTX = RoundContext(1, 0, generator_for(0, 1, 0, "test"))


@given(
    # few distinct values: ties are the rule
    st.lists(
        st.tuples(st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0, 3.0]), st.booleans()), min_size=4, max_size=60
    ),
    st.sampled_from([(0.2, 0.05), (0.5, 0.1), (0.3, 0.0), (0.01, 0.001)]),
)
def test_it_does_what_a_plain_loop_does(entries, settings_):
    k, k1 = settings_
    values, located = [v for v, _ in entries], [m for _, m in entries]
    n = len(values)
    ranked = sorted(range(n), key=lambda i: (-abs(values[i]), i))
    own_top = set(ranked[: math.ceil(Fraction(str(k1)) * n)])
    offered = [i for i in ranked if located[i] and i not in own_top]
    kept = set(offered[: max(1, math.floor(Fraction(str(k)) * n))])
    ctx = replace(CTX, locations={"w": torch.tensor(located)})
    sent, _ = prune_aligned(k, k1).apply({"w": torch.tensor(values)}, {}, ctx)
    assert sent["w"].tolist() == [v if i in kept else 0.0 for i, v in enumerate(values)]


def test_a_small_tensor_travels_whole_except_the_output_bias():
    update = {"gain": torch.tensor([3.0]), "output.weight": torch.randn(3, 8), "output.bias": torch.randn(3)}
    ctx = replace(CTX, locations={name: torch.ones_like(t, dtype=torch.bool) for name, t in update.items()})
    sent, _ = prune_aligned(0.2, 0.05).apply(update, {}, ctx)
    assert sent["gain"].tolist() == [3.0]
    assert sent["output.bias"].tolist() == [0.0] * 3
    assert int((sent["output.weight"] != 0).sum()) == 4


def test_without_locations_it_refuses_to_prune():
    with pytest.raises(ValueError, match="names no locations; only strategy ADGP sends them"):
        prune_aligned(0.2, 0.05).apply({"w": torch.ones(5)}, {}, CTX)


@pytest.mark.parametrize(("k", "k1"), [(0.6, 0.1), (0.2, 0.2), (0.2, 0.3), (0.0, 0.0), (0.2, -0.1)])
def test_impossible_shares_are_refused(k, k1):
    with pytest.raises(ValueError, match="prune_aligned: k must be in"):
        prune_aligned(k, k1)


def test_locations_are_counted_exactly():
    shapes = {"w": torch.empty(90), "b": torch.empty(3), "tiny": torch.empty(4), "none": torch.empty(0)}
    # 0.7 * 90 is 62.99... in doubles
    assert location_counts(shapes, 0.7, 4) == {"w": 63, "b": 3, "tiny": 2, "none": 0}
    assert location_counts(shapes, 0.01, 0) == {"w": 1, "b": 1, "tiny": 1, "none": 0}


def test_what_will_be_pruned_is_the_update_and_the_residuals():
    transform = chain(first=error_feedback(keep_topk(0.25)), second=error_feedback(keep_topk(0.5)))
    update = {"w": torch.tensor([1.0, 2.0, 3.0, 4.0])}
    _, state = transform.apply(update, transform.init(update), CTX)
    assert corrected(update, state, CTX)["w"].tolist() == [2.0, 4.0, 6.0, 4.0]
    lost = replace(CTX, uncounted={"w": torch.tensor([0.0, 0.0, 0.0, 4.0])})
    single = error_feedback(keep_topk(0.25))
    _, state = single.apply(update, single.init(update), CTX)
    assert corrected(update, state, lost)["w"].tolist() == [2.0, 4.0, 6.0, 8.0]
    assert corrected(update, {}, CTX)["w"].tolist() == [1.0, 2.0, 3.0, 4.0]
