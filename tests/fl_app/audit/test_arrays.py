"""Arrays of a reply are recognised by their values, whatever their names and order."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.audit.arrays import KINDS, State, match

SHAPES = {"body.weight": (3, 4), "body.bias": (3,), "head.weight": (2, 3), "head.bias": (2,)}


def state(seed):
    generator = torch.Generator().manual_seed(seed)

    def draw():
        return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}

    return State(draw(), draw(), draw())


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.permutations(list(SHAPES)),
    st.booleans(),
    st.integers(0, 50),
    st.integers(1, len(SHAPES)),
)
def test_kind_and_names_are_found_by_value(kind, order, renamed, seed, number):
    true = state(seed)
    tensors = true.of(kind)
    sent = {
        ("r", f"t{i}" if renamed else name): tensors[name].numpy() for i, name in enumerate(order[:number])
    }
    found = match(sent, true)
    assert found.kind == kind
    assert list(found.names.values()) == list(order[:number])
    assert not found.unknown
    update = found.update(sent, true.start)
    plain = kind.removeprefix("negated ")
    expected = true.of("gradients" if plain == "gradients" else "weight differences")
    for name, tensor in update.items():
        torch.testing.assert_close(tensor, expected[name].double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("factor", [-2.5, 40.0])
def test_scaled_differences_are_scaled_back(factor):
    true = state(3)
    sent = {("r", name): (factor * t).numpy() for name, t in true.of("weight differences").items()}
    found = match(sent, true)
    assert found.factor == pytest.approx(factor)
    torch.testing.assert_close(
        found.update(sent, true.start)["body.weight"], true.of("weight differences")["body.weight"]
    )


def test_strange_arrays_are_unknown():
    true = state(4)
    sent = {("r", name): t.numpy() for name, t in true.final.items()}
    sent["r", "diary"] = np.ones((3, 4), np.float32)
    assert match(sent, true).unknown == (("r", "diary"),)
