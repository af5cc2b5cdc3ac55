"""What stands for an update on the wire: linear, of the size it says, the same at both ends."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.sketches import (
    Chosen,
    Everything,
    Sketch,
    everything,
    fixed_coordinates,
    flatten,
    measurements,
    random_coordinates,
)

SIZES = ((7, 9), (7,), (4, 7), (4,))
N = 7 * 9 + 7 + 4 * 7 + 4


def update(seed: int, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {f"p{i}": torch.randn(size, generator=generator, dtype=dtype) for i, size in enumerate(SIZES)}


def sketches(share: float, seed: int) -> dict[str, Sketch]:
    fixed = torch.randperm(N, generator=torch.Generator().manual_seed(9))[: max(1, int(share * N))].sort()[0]
    return {
        "everything": everything()(N, seed, None),
        "fixed": fixed_coordinates(share)(N, seed, fixed),
        "random": random_coordinates(share)(N, seed, None),
        "measured": measurements(share)(N, seed, None),
    }


@settings(deadline=None, max_examples=30)
@given(st.sampled_from([0.01, 0.25, 0.5, 1.0]), st.integers(0, 2**63 - 1), st.floats(-3, 3))
def test_every_sketch_is_linear_and_of_its_size(share, seed, factor):
    a, b = update(1), update(2)
    both = {name: a[name] + factor * b[name] for name in a}
    for name, sketch in sketches(share, seed).items():
        values = sketch.take(a)
        assert values.shape == (sketch.size,), name
        torch.testing.assert_close(sketch.take(both), values + factor * sketch.take(b))


@settings(deadline=None, max_examples=30)
@given(st.sampled_from([0.01, 0.25, 0.5, 1.0]), st.integers(0, 2**63 - 1))
def test_what_is_restored_has_the_values_and_only_trained_coordinates(share, seed):
    given_update = update(3)
    for name, sketch in sketches(share, seed).items():
        if name == "measured":
            continue
        restored = sketch.restore(sketch.take(given_update), given_update)
        assert {key: t.shape for key, t in restored.items()} == {
            key: t.shape for key, t in given_update.items()
        }
        assert torch.equal(sketch.take(restored), sketch.take(given_update))
        allowed = set(range(N)) if sketch.trained is None else set(sketch.trained.tolist())
        original, entries = flatten(given_update).tolist(), flatten(restored).tolist()
        assert entries == [x if i in allowed else 0.0 for i, x in enumerate(original)]


@pytest.mark.parametrize("name", ["everything", "fixed", "random", "measured"])
def test_it_is_restored_in_the_type_of_the_model(name):
    sketch, like = sketches(0.5, 0)[name], update(0, torch.float32)
    restored = sketch.restore(sketch.take(update(1)), like)
    assert {tensor.dtype for tensor in restored.values()} == {torch.float32}


def test_measurements_of_a_sparse_update_bring_it_back():
    sparse = {name: torch.zeros_like(tensor) for name, tensor in update(0).items()}
    sparse["p0"][3, 4], sparse["p2"][1, 1] = 2.0, -1.0
    sketch = measurements(0.5)(N, 7, None)
    restored = sketch.restore(sketch.take(sparse), sparse)
    error = float((flatten(restored) - flatten(sparse)).norm() / flatten(sparse).norm())
    assert error < 0.05


@pytest.mark.parametrize("scheme", [random_coordinates, measurements])
def test_both_ends_draw_the_same_from_a_seed_and_others_from_another(scheme):
    server, client = scheme(0.25), scheme(0.25)
    given_update = update(5)
    one, same, other = (
        end(N, seed, None).take(given_update) for end, seed in ((server, 3), (client, 3), (server, 4))
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_all_of_the_coordinates_are_everything():
    given_update = update(6)
    whole = Everything(N).take(given_update)
    assert torch.equal(Chosen(torch.arange(N)).take(given_update), whole)
    assert torch.equal(random_coordinates(1.0)(N, 1, None).take(given_update), whole)


def test_inputs_are_left_alone():
    given_update = update(8)
    before = {name: tensor.clone() for name, tensor in given_update.items()}
    for sketch in sketches(0.5, 1).values():
        values = sketch.take(given_update)
        kept = values.clone()
        restored = sketch.restore(values, given_update)
        for tensor in restored.values():
            tensor.add_(1)
        if not isinstance(sketch, Everything):  # which gives views of the values
            assert torch.equal(values, kept)
    assert all(torch.equal(given_update[name], before[name]) for name in before)


@pytest.mark.parametrize("scheme", [fixed_coordinates, random_coordinates, measurements])
@pytest.mark.parametrize("share", [0, -0.1, 1.01])
def test_what_is_no_share_is_refused_when_the_scheme_is_made(scheme, share):
    with pytest.raises(ValueError, match=r"share must be in \(0, 1\]"):
        scheme(share)


@pytest.mark.parametrize(
    ("fixed", "came"), [(None, "none"), (torch.arange(9), "9"), (torch.arange(11), "11")]
)
def test_coordinates_that_were_not_agreed_on_are_refused(fixed, came):
    with pytest.raises(ValueError, match=f"expected 10 agreed coordinates, got {came}"):
        fixed_coordinates(0.1)(N, 0, fixed)
