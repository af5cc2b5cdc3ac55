"""FL-CS: the operator against its matrix, and sparse vectors found again."""

import numpy as np
import pytest
import torch
from scipy.fft import next_fast_len

from fl_app.sketches import draw_coordinates, draw_measurements, reconstruct
from fl_app.sketches.measurements import _smooth_length


def matrix_of(operator) -> torch.Tensor:
    """The cosines written out: sqrt(2 / N) cos(pi (2 j + 1) k / 2 N), the first row over sqrt 2."""
    length = operator.length
    k, j = np.meshgrid(operator.rows, np.arange(operator.n), indexing="ij")
    matrix = np.sqrt(2 / length) * np.cos(np.pi * (2 * j + 1) * k / (2 * length))
    matrix[operator.rows == 0] /= np.sqrt(2)
    return torch.from_numpy(matrix * operator.signs)


def sparse(n: int, nonzero: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    vector = torch.zeros(n, dtype=torch.float64)
    signs = torch.randint(2, (nonzero,), generator=generator) * 2 - 1
    sizes = 1 + torch.rand(nonzero, generator=generator, dtype=torch.float64)
    vector[draw_coordinates(n, nonzero, seed)] = signs * sizes
    return vector


@pytest.mark.parametrize(("n", "count"), [(1, 1), (2, 1), (64, 64), (97, 20), (97, 97), (300, 30)])
def test_it_measures_what_its_matrix_does(n, count):
    operator = draw_measurements(n, count, seed=n)
    matrix, x = matrix_of(operator), torch.randn(n, dtype=torch.float64)
    y = torch.randn(count, dtype=torch.float64)
    torch.testing.assert_close(operator.measure(x), matrix @ x)
    torch.testing.assert_close(operator.transpose(y), matrix.T @ y)


def test_the_transpose_is_one_and_the_norm_is_at_most_1():
    operator = draw_measurements(12_345, 1234, seed=0)
    x, y = torch.randn(12_345, dtype=torch.float64), torch.randn(1234, dtype=torch.float64)
    torch.testing.assert_close(operator.measure(x) @ y, x @ operator.transpose(y))
    assert operator.measure(x).norm() <= x.norm()
    assert operator.transpose(y).norm() <= y.norm() * (1 + 1e-12)


def test_the_mean_of_measurements_is_the_measurement_of_the_mean():
    operator = draw_measurements(500, 50, seed=1)
    vectors = torch.randn(7, 500, dtype=torch.float64)
    measured = torch.stack([operator.measure(v) for v in vectors])
    torch.testing.assert_close(measured.mean(0), operator.measure(vectors.mean(0)))


def test_both_ends_draw_the_same_and_another_seed_draws_others():
    one, same, other = (draw_measurements(1000, 100, seed) for seed in (5, 5, 6))
    x = torch.randn(1000)
    assert torch.equal(one.measure(x), same.measure(x))
    assert not torch.equal(one.measure(x), other.measure(x))
    assert (one.signs != other.signs).mean() == pytest.approx(0.5, abs=0.1)
    assert set(one.signs.tolist()) == {-1.0, 1.0}


def test_a_type_is_kept():
    operator = draw_measurements(100, 10, seed=0)
    for dtype in (torch.float32, torch.float64):
        y = operator.measure(torch.randn(100, dtype=dtype))
        assert y.dtype == operator.transpose(y).dtype == reconstruct(operator, y).vector.dtype == dtype


@pytest.mark.parametrize(
    ("n", "count", "nonzero"), [(4000, 1000, 100), (20_000, 2000, 150), (20_000, 200, 8)]
)
def test_a_sparse_vector_is_found_from_a_few_measurements(n, count, nonzero):
    truth, operator = sparse(n, nonzero, seed=2), draw_measurements(n, count, seed=3)
    found = reconstruct(operator, operator.measure(truth), threshold=1e-3)
    assert found.settled
    assert found.transforms < 150
    assert float((found.vector - truth).norm() / truth.norm()) < 0.01
    assert (found.vector.abs() > 0.1).equal(truth != 0)
    assert found.misfit < 0.01


def test_more_iterations_come_closer():
    truth, operator = sparse(4000, 100, seed=4), draw_measurements(4000, 1000, seed=5)
    y = operator.measure(truth)
    errors = [
        float((reconstruct(operator, y, iterations=k, threshold=1e-4).vector - truth).norm())
        for k in (5, 20, 40)
    ]
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


def test_a_minimum_of_the_penalised_misfit_is_reached():
    """At the end, the misfit's gradient is the threshold where the vector is not 0, and less elsewhere."""
    truth, operator = sparse(1000, 20, seed=6), draw_measurements(1000, 250, seed=7)
    y = operator.measure(truth)
    found = reconstruct(operator, y, threshold=0.05, iterations=2000, tolerance=1e-10)
    assert found.settled
    level = 0.05 * float(operator.transpose(y).abs().max())
    pull = operator.transpose(y - operator.measure(found.vector))
    at, away = found.vector != 0, found.vector == 0
    torch.testing.assert_close(pull[at], level * found.vector[at].sign(), rtol=1e-5, atol=0)
    assert pull[away].abs().max() <= level * (1 + 1e-6)


def test_noise_is_not_taken_for_entries():
    truth, operator = sparse(4000, 50, seed=8), draw_measurements(4000, 1000, seed=9)
    noise = 0.02 * torch.randn(1000, dtype=torch.float64)
    found = reconstruct(operator, operator.measure(truth) + noise, threshold=0.2)
    assert set(torch.nonzero(found.vector).flatten().tolist()) == set(torch.nonzero(truth).flatten().tolist())


def test_nothing_is_reconstructed_from_nothing():
    operator = draw_measurements(100, 10, seed=0)
    found = reconstruct(operator, torch.zeros(10))
    assert (found.iterations, found.misfit, found.settled) == (0, 0.0, True)
    assert not found.vector.any()


def test_an_unfinished_search_says_so():
    truth, operator = sparse(1000, 20, seed=6), draw_measurements(1000, 250, seed=7)
    found = reconstruct(operator, operator.measure(truth), iterations=3)
    assert (found.iterations, found.settled) == (3, False)


def test_the_padded_length_is_the_next_one_without_large_factors():
    for n in [*range(1, 400), 8317, 1_663_370]:
        assert _smooth_length(n) == next_fast_len(n, real=True)


def test_wrong_sizes_and_settings_are_refused():
    operator = draw_measurements(100, 10, seed=0)
    with pytest.raises(ValueError, match=r"measure: vector must be 100 floats .* got torch.float32 \(99,\)"):
        operator.measure(torch.zeros(99))
    with pytest.raises(ValueError, match="transpose: measurements must be 10 floats"):
        operator.transpose(torch.zeros(10, dtype=torch.float16))
    with pytest.raises(ValueError, match=r"count must be in 1\.\.100, got 101"):
        draw_measurements(100, 101, seed=0)
    for name, value in (("threshold", 0), ("decay", 1.0), ("iterations", 0)):
        with pytest.raises(ValueError, match=f"reconstruct: {name} must be"):
            reconstruct(operator, torch.zeros(10), **{name: value})
