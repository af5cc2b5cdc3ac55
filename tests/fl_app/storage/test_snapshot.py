"""Snapshots: equal for equal data, different as soon as one bit differs, wherever it hides."""

import copy
import random
import threading
from collections import deque
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.storage.snapshot import snapshot

MEMORY = {"steps": 0}

quick = settings(max_examples=50, deadline=None)

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
sequences = st.recursive(leaves, lambda inner: st.lists(inner) | st.tuples(inner, inner))
trees = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner)
)


@dataclass
class Node:
    children: list = field(default_factory=list)
    value: object = None


@quick
@given(trees)
def test_a_copy_has_the_same_snapshot(tree):
    assert snapshot(copy.deepcopy(tree)) == snapshot(tree)


@quick
@given(sequences, sequences)
def test_sequences_are_told_apart_as_their_text_is(one, other):
    assert (snapshot(one) == snapshot(other)) == (repr(one) == repr(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.0, -0.0),
        (1, True),
        (1, 1.0),
        ([1], (1,)),
        (torch.tensor([0.0]), torch.tensor([-0.0])),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        (np.zeros(2), np.ones(2)),
        (deque([1]), deque([2])),
        ({1, 2}, {1, 3}),
        (Node(value=1), Node(value=2)),
        (partial(max, 1), partial(max, 2)),
        (random.Random(1), random.Random(2)),
        (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)),
        (np.random.default_rng(1), np.random.default_rng(2)),
    ],
)
def test_one_difference_is_enough(one, other):
    assert snapshot(one) != snapshot(other)
    assert snapshot(copy.deepcopy(one)) == snapshot(one)


def test_a_closure_and_a_module_variable_are_seen():
    count = 0

    def step() -> int:
        nonlocal count
        count += 1
        return count

    def note() -> None:
        MEMORY["steps"] += 1

    for function in (step, note):
        before = snapshot(function)
        assert snapshot(function) == before
        function()
        assert snapshot(function) != before


def test_cycles_end():
    node = Node()
    node.children.append(node)
    before = snapshot(node)
    node.value = 1
    assert snapshot(node) != before


def test_what_cannot_be_reached_is_an_error():
    with pytest.raises(TypeError):
        snapshot(threading.Lock())
