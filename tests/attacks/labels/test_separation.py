import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from attacks.labels import separation
from attacks.labels.combination import cheapest_combination, closed, nearest_combination, proven_support
from attacks.labels.separation import separate


def best_margin(points: np.ndarray, alone: int) -> float:
    """The largest t with ``r q >= t`` for all points but one, and ``-r q >= t`` for that."""
    signed = points.copy()
    signed[alone] *= -1
    dimensions = points.shape[1]
    found = linprog(
        np.append(np.zeros(dimensions), -1.0),
        A_ub=np.hstack([-signed, np.ones((len(points), 1))]),
        b_ub=np.zeros(len(points)),
        bounds=[(-1, 1)] * dimensions + [(None, None)],
        method="highs",
    )
    return -found.fun


def oracle(points: torch.Tensor) -> list[bool]:
    unit = (points / points.norm(dim=1, keepdim=True)).numpy()
    return [best_margin(unit, alone) > 1e-7 for alone in range(len(unit))]


def softmax_points(seed: int, classes: int, labels: list[int]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(len(labels), classes, generator=generator, dtype=torch.float64).softmax(dim=1)
    rows[torch.arange(len(labels)), torch.tensor(labels)] -= 1
    mixing = torch.randn(len(labels), len(labels), generator=generator, dtype=torch.float64)
    return rows.T @ mixing


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), classes=st.integers(4, 25), data=st.data())
def test_agrees_with_one_programme_for_each_class_of_a_softmax(seed, classes, data):
    labels = data.draw(st.lists(st.integers(0, classes - 1), min_size=1, max_size=8))
    points = softmax_points(seed, classes, labels)
    found = separate(points)
    assert found.parted.tolist() == oracle(points)
    assert found.parted[labels].all()
    assert found.unproven == 0


@pytest.mark.parametrize("short", [(), (7,), (7, 900)])
def test_the_longest_of_many_points_are_tried_first_and_no_answer_depends_on_it(monkeypatch, short):
    labels = [7, 900, 900, 1500]
    points = softmax_points(1, 1600, labels)
    points[list(short)] *= 1e-4  # not among the longest then, and as far from all hyperplanes as before
    monkeypatch.setattr(separation, "_FEW", 20)
    tried = []
    rule_out = separation._Search.rule_out
    monkeypatch.setattr(
        separation._Search,
        "rule_out",
        lambda search, among: tried.append(len(among)) or rule_out(search, among),
    )
    found = separate(points)
    assert tried == ([20, 1600] if short else [20])
    assert found.parted.nonzero().flatten().tolist() == [7, 900, 1500]
    assert found.unproven == 0


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    count=st.integers(2, 25),
    dimensions=st.integers(1, 6),
    shift=st.sampled_from([0.0, 1.0, 4.0]),
)
def test_agrees_with_one_programme_for_each_of_any_points(seed, count, dimensions, shift):
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(count, dimensions, generator=generator, dtype=torch.float64)
    points[:, 0] += shift
    found = separate(points)
    assert found.parted.tolist() == oracle(points)
    assert found.unproven == 0


@pytest.mark.parametrize("shift", [0.0, 5.0])
def test_points_in_one_direction_cannot_be_parted(shift):
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(8, 4, generator=generator, dtype=torch.float64)
    points[:, 0] += shift
    points = torch.cat([points, 3 * points[:2]])
    found = separate(points)
    assert not found.parted[[0, 1, 8, 9]].any()
    assert found.parted.tolist() == oracle(points)


@pytest.mark.parametrize("repeats", [0, 3])
def test_two_programmes_are_enough_for_a_softmax(monkeypatch, repeats):
    solved = []

    def counted(vectors, cost):
        solved.append(len(vectors))
        return cheapest_combination(vectors, cost)

    monkeypatch.setattr("attacks.labels.separation.cheapest_combination", counted)
    labels = [*range(0, 60, 3), *range(repeats)]
    found = separate(softmax_points(2, 200, labels))
    assert found.parted.nonzero().flatten().tolist() == sorted(set(labels))
    assert len(solved) <= 2


def test_the_margin_is_that_of_a_real_hyperplane():
    points = softmax_points(1, 12, [2, 5, 7])
    found = separate(points)
    unit = (points / points.norm(dim=1, keepdim=True)).numpy()
    for label in (2, 5, 7):
        # the oracle's r is in a box that holds the unit ball
        assert 0 < found.margins[label] <= best_margin(unit, label) + 1e-12


def test_the_square_has_all_its_corners():
    points = torch.tensor([[1.0, 1, 1], [1, -1, 1], [-1, 1, 1], [-1, -1, 1], [0, 0, 1], [0.5, 0, 1]]).double()
    assert separate(points).parted.tolist() == [True] * 4 + [False] * 2


def test_a_sum_that_does_not_vanish_proves_nothing():
    vectors = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]])
    assert proven_support(vectors, np.array([0.5, 0.5, 0.0]), 1e-12).tolist() == [True, True, False]
    # two weights that the solver is said to have missed by a little are solved for again
    assert proven_support(vectors, np.array([0.5, 0.5 + 1e-9, 0.0]), 1e-12).tolist() == [True, True, False]
    assert proven_support(vectors, np.array([0.5, 0.0, 0.5]), 1e-12) is None
    assert proven_support(vectors, np.zeros(3), 1e-12) is None
    almost = np.array([[1.0, 0.0], [-1.0, 1e-9]])
    assert proven_support(almost, np.array([0.5, 0.5]), 1e-12) is None


def test_the_cheapest_sum_avoids_what_costs():
    vectors = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    found = cheapest_combination(vectors, np.array([1.0, 0.0, 0.0, 0.0]))
    assert found.weights == pytest.approx([0, 0, 0.5, 0.5])
    assert cheapest_combination(vectors[[0, 2]], np.zeros(2)) is None


def test_where_no_sum_vanishes_both_ways_give_a_hyperplane():
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(9, 4)) + np.array([5.0, 0, 0, 0])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    linear = cheapest_combination(*closed(vectors))
    assert (vectors @ linear.r > 0).all()
    for point in range(9):
        turned = vectors.copy()
        turned[point] *= -1
        nearest = nearest_combination(turned, point, linear.r)
        programme = cheapest_combination(*closed(turned))
        assert ((turned @ nearest.r).min() > 1e-12) == ((turned @ programme.r).min() > 1e-9)
