import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from attacks.analytic import CompletionError, complete_matrix
from fl_app.sketches.selection import between, ceil_count, floor_count


def product(m: int, n: int, rank: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.randn(size, rank, generator=generator, dtype=dtype) for size in (m, n))
    return left @ right.t()


def chosen(shape, share: float, seed: int = 1) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share


def neither_largest_nor_smallest(matrix: torch.Tensor) -> torch.Tensor:
    n = matrix.numel()
    return between(matrix, top=ceil_count(0.05, n), bottom=floor_count(0.75, n))


def relative_error(found: torch.Tensor, true: torch.Tensor) -> float:
    return float((found - true).norm() / true.norm())


@pytest.mark.parametrize("rank", [1, 4])
@pytest.mark.parametrize("scale", [1.0, 1e-13])
def test_a_fifth_of_the_entries_gives_the_whole_matrix(rank, scale):
    true = product(256, 3072, rank) * scale
    known = chosen(true.shape, 0.2)
    found = complete_matrix(true * known, known, rank)
    assert found.rows.all()
    assert found.columns.all()
    assert relative_error(found.matrix, true) < 1e-6
    assert found.error < 1e-6
    assert not found.notes


@pytest.mark.parametrize(
    ("rank", "least"),
    # how much of a Gaussian product's energy lies in what its middle magnitudes determine: all of it is exact
    [(1, 0.99), (2, 0.99), (4, 0.99)],
)
def test_survivors_of_dual_pruning_determine_nearly_all_of_a_matrix(rank, least):
    true = product(256, 3072, rank)
    known = neither_largest_nor_smallest(true)
    found = complete_matrix(true * known, known, rank)
    certain = found.rows[:, None] & found.columns
    assert relative_error(found.matrix[certain], true[certain]) < 1e-3
    assert float(true[certain].norm() ** 2 / true.norm() ** 2) > least
    assert not found.matrix[~certain].any()


def test_ratios_pass_from_row_to_column_to_row():
    # 2 x 3 = 6 in the corner is reached only over the middle row
    values = torch.tensor([[1.0, 2.0, 0.0], [0.0, 4.0, 6.0], [3.0, 0.0, 0.0]])
    found = complete_matrix(values, values != 0, 1)
    expected = torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [3.0, 6.0, 9.0]])
    torch.testing.assert_close(found.matrix, expected.double())


def test_a_part_that_touches_no_other_is_not_guessed():
    true = product(9, 12, 1)
    known = torch.zeros(9, 12, dtype=torch.bool)
    known[:6, :7] = True
    known[6:, 7:] = True
    found = complete_matrix(true, known, 1)
    assert found.rows.tolist() == [True] * 6 + [False] * 3
    assert found.columns.tolist() == [True] * 7 + [False] * 5
    assert not found.matrix[~known].any()
    assert any("3 of 9 rows" in note for note in found.notes)
    assert any("5 of 12 columns" in note for note in found.notes)


def test_a_row_with_fewer_entries_than_the_rank_is_not_guessed():
    true = product(20, 30, 3, dtype=torch.float64)
    known = torch.ones(20, 30, dtype=torch.bool)
    known[4, 2:] = False
    known[3:, 11] = False  # three are left
    known[2:, 12] = False  # two are left
    found = complete_matrix(true * known, known, 3)
    assert found.rows.nonzero().flatten().tolist() == [i for i in range(20) if i != 4]
    assert found.columns.nonzero().flatten().tolist() == [j for j in range(30) if j != 12]
    certain = found.rows[:, None] & found.columns
    assert relative_error(found.matrix[certain], true[certain]) < 1e-9


def test_a_row_of_entries_that_cannot_tell_its_factors_apart_is_not_guessed():
    left, right = torch.randn(20, 2).double(), torch.randn(30, 2).double()
    right[5] = -2 * right[4]
    true = left @ right.t()
    known = torch.ones(20, 30, dtype=torch.bool)
    known[7] = False
    known[7, 4:6] = True  # two entries, as many as the rank, but multiples of each other
    found = complete_matrix(true * known, known, 2)
    assert found.rows.nonzero().flatten().tolist() == [i for i in range(20) if i != 7]


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_fewer_entries_than_degrees_of_freedom_are_refused(rank):
    true = product(20, 30, rank)
    needed = rank * (20 + 30 - rank)
    order = torch.randperm(600, generator=torch.Generator().manual_seed(0))
    known = torch.zeros(600, dtype=torch.bool).index_fill(0, order[: needed - 1], True).view(20, 30)
    with pytest.raises(CompletionError, match=f"{needed - 1} known entries.* needs {needed}"):
        complete_matrix(true * known, known, rank)


def test_entries_that_several_matrices_share_are_refused():
    # two blocks of rank 2 that share one row: enough entries, but the blocks can be turned against each other
    true = product(21, 40, 2, dtype=torch.float64)
    known = torch.zeros(21, 40, dtype=torch.bool)
    known[:11, :20] = True
    known[10:, 20:] = True
    with pytest.raises(CompletionError, match="several matrices of rank 2"):
        complete_matrix(true * known, known, 2)


def test_a_rank_that_restricts_nothing_is_refused():
    with pytest.raises(CompletionError, match="rank 4 is no restriction on a 4 x 9 matrix"):
        complete_matrix(product(4, 9, 2), torch.ones(4, 9, dtype=torch.bool), 4)


def test_nothing_but_zeros_is_refused():
    with pytest.raises(CompletionError):
        complete_matrix(torch.zeros(5, 6), torch.ones(5, 6, dtype=torch.bool), 1)


def test_dead_rows_do_not_disturb_the_others():
    true = product(40, 50, 2)
    true[::3] = 0
    known = chosen(true.shape, 0.6)
    found = complete_matrix(true * known, known, 2)
    assert relative_error(found.matrix, true) < 1e-5


def test_entries_of_a_higher_rank_are_reported():
    true = product(40, 50, 6)
    known = chosen(true.shape, 0.8)
    found = complete_matrix(true * known, known, 2)
    assert found.error > 0.1
    assert any("rank 2 misses the known entries" in note for note in found.notes)


def completed(seed: int, rank: int, m: int, n: int, share: float):
    """A random problem: its truth, what is known, and what is found, unless it is refused."""
    true = product(m, n, rank, seed, torch.float64)
    known = chosen(true.shape, share, seed + 1)
    try:
        found = complete_matrix(true * known, known, rank, starts=5)
    except CompletionError:
        assume(False)
    return true, known, found, known & found.rows[:, None] & found.columns


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    rank=st.integers(1, 3),
    m=st.integers(12, 20),
    n=st.integers(12, 20),
    share=st.floats(0.7, 1.0),
)
def test_the_completed_matrix_agrees_with_the_known_entries(seed, rank, m, n, share):
    true, _, found, shown = completed(seed, rank, m, n, share)
    assert shown.any()
    assert relative_error(found.matrix[shown], true[shown]) < 1e-4


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    rank=st.integers(1, 3),
    m=st.integers(5, 9),
    n=st.integers(5, 9),
    share=st.floats(0.5, 1.0),
)
def test_where_it_finds_no_fit_it_says_how_far_off_it_is(seed, rank, m, n, share):
    true, known, found, shown = completed(seed, rank, m, n, share)
    missed = (found.matrix - true)[shown].norm()
    assert missed <= (found.error + 1e-9) * true[known].norm()
    assert (found.error > 1e-5) == any("misses the known entries" in note for note in found.notes)


def test_the_same_seed_gives_the_same_matrix_and_the_global_generator_is_left_alone():
    true = product(30, 40, 3)
    known = chosen(true.shape, 0.5)
    state = torch.random.get_rng_state()
    first, again = (complete_matrix(true * known, known, 3, seed=4) for _ in range(2))
    assert torch.equal(first.matrix, again.matrix)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_values_that_are_not_known_are_not_looked_at():
    true = product(30, 40, 2)
    known = chosen(true.shape, 0.5)
    hidden = torch.where(known, true, math.nan)
    assert relative_error(complete_matrix(hidden, known, 2).matrix, true) < 1e-5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rank": 0}, "rank must be at least 1, got 0"),
        ({"starts": 0}, "starts must be at least 1, got 0"),
        ({"iterations": 0}, "iterations must be at least 1, got 0"),
        ({"known": torch.ones(4, 5)}, "boolean mask"),
        ({"known": torch.ones(4, 4, dtype=torch.bool)}, "boolean mask"),
        ({"entries": torch.full((4, 5), math.inf)}, "finite"),
    ],
)
def test_bad_arguments_are_named(change, message):
    good = {"entries": product(4, 5, 1), "known": torch.ones(4, 5, dtype=torch.bool), "rank": 1}
    with pytest.raises(ValueError, match=message):
        complete_matrix(**good | change)
