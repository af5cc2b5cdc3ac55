"""Named tensors as one vector: nothing is lost, and coordinates mean the same everywhere."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.sketches import count_by_layer, flatten, gather, mask_coordinates, scatter, unflatten

shapes = st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=5)


def tensors(sizes, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return {f"p{i}": torch.randn(size, generator=generator).to(dtype) for i, size in enumerate(sizes)}


@settings(deadline=None)
@given(shapes, st.sampled_from([torch.float32, torch.float64]))
def test_the_way_there_and_back_is_the_identity(sizes, dtype):
    update = tensors(sizes, dtype=dtype)
    again = unflatten(flatten(update), update)
    assert list(again) == list(update)
    assert all(torch.equal(again[name], update[name]) and again[name].dtype == dtype for name in update)


@settings(deadline=None)
@given(shapes)
def test_all_coordinates_are_the_whole_update(sizes):
    update, base = tensors(sizes, 1), tensors(sizes, 2)
    everything = torch.arange(flatten(update).numel())
    values = gather(update, everything)
    assert torch.equal(values, flatten(update))
    again = scatter(values, everything, base)
    assert all(torch.equal(again[name], update[name]) for name in update)


@settings(deadline=None)
@given(shapes, st.data())
def test_scatter_changes_the_coordinates_alone(sizes, data):
    base = tensors(sizes)
    n = flatten(base).numel()
    chosen = torch.tensor(sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1))))
    before = flatten(base).clone()
    after = scatter(torch.full((len(chosen),), 7.0), chosen, base)
    expected = [7.0 if i in set(chosen.tolist()) else x for i, x in enumerate(before.tolist())]
    assert flatten(after).tolist() == expected
    assert torch.equal(flatten(base), before)
    assert gather(after, chosen).tolist() == [7.0] * len(chosen)
    masks = mask_coordinates(chosen, base)
    assert torch.nonzero(flatten(masks)).flatten().tolist() == chosen.tolist()
    assert sum(count_by_layer(chosen, base).values()) == len(chosen)


def test_coordinates_run_through_the_tensors_in_order_row_by_row():
    update = {"b": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "a": torch.tensor([5.0])}
    assert gather(update, torch.tensor([1, 2, 4])).tolist() == [2.0, 3.0, 5.0]
    assert count_by_layer(torch.tensor([1, 2, 4]), update) == {"b": 2, "a": 1}


def test_a_transposed_tensor_is_read_in_its_own_order():
    update = {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]]).T}
    assert flatten(update).tolist() == [1.0, 3.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("coordinates", "words"),
    [
        (torch.tensor([1, 0]), "ascending"),
        (torch.tensor([1, 1]), "ascending, each once"),
        (torch.tensor([-1, 1]), r"in 0\.\.3"),
        (torch.tensor([1, 4]), r"in 0\.\.3"),
        (torch.tensor([1], dtype=torch.int32), "int64"),
        (torch.tensor([], dtype=torch.int64), "K at least 1"),
        (torch.tensor([[1]]), r"int64 \(K,\)"),
    ],
)
def test_what_is_no_set_of_positions_is_refused(coordinates, words):
    with pytest.raises(ValueError, match=f"gather: coordinates must be .*{words}"):
        gather({"w": torch.zeros(4)}, coordinates)


def test_sizes_and_types_that_do_not_fit_are_refused():
    like = {"w": torch.zeros(4)}
    with pytest.raises(ValueError, match="unflatten: expected a vector of 4 entries"):
        unflatten(torch.zeros(5), like)
    with pytest.raises(ValueError, match="scatter: expected 2 values"):
        scatter(torch.zeros(1), torch.tensor([0, 1]), like)
    with pytest.raises(ValueError, match="flatten: expected tensors of one type"):
        flatten({"w": torch.zeros(1), "v": torch.zeros(1, dtype=torch.float64)})
