import math

import pytest
import torch

from attacks.optimisation.lbfgs import LBFGS
from attacks.optimisation.optimisers import Adam
from attacks.optimisation.round_robin import RoundRobin


def evaluating(objective, seen=None):
    def evaluate(variables):
        leaves = {name: value.detach().requires_grad_(True) for name, value in variables.items()}
        values = objective(leaves)
        if seen is not None:
            seen.append(values.detach())
        return values.detach(), dict(
            zip(leaves, torch.autograd.grad(values.sum(), list(leaves.values())), strict=True)
        )

    return evaluate


def valley(variables):
    """Rosenbrock's, one for each problem."""
    x = variables["x"]
    return (100 * (x[:, 1:] - x[:, :-1] ** 2) ** 2 + (1 - x[:, :-1]) ** 2).sum(dim=1)


def bowl(variables):
    """Ellipsoids whose axes differ a thousandfold."""
    x = variables["x"]
    weights = torch.logspace(0, 3, x.shape[1], dtype=x.dtype)
    return ((x - 1).square() * weights).sum(dim=1)


@pytest.fixture
def starts() -> torch.Tensor:
    return torch.randn(5, 8, generator=torch.Generator().manual_seed(1)).double()


@pytest.mark.parametrize("objective", [valley, bowl])
@pytest.mark.parametrize("history", [100, 3])
@pytest.mark.parametrize("lr", [1.0, 0.3])
def test_takes_the_steps_of_torch(objective, history, lr, starts):
    theirs = starts[:1].clone().requires_grad_(True)
    reference = torch.optim.LBFGS(
        [theirs],
        lr=lr,
        history_size=history,
        line_search_fn="strong_wolfe",
        max_eval=1000,
        tolerance_grad=0,
        tolerance_change=0,
    )
    ours, optimiser = {"x": starts[:1]}, LBFGS(history=history, evaluations=1000)

    def closure():
        reference.zero_grad()
        value = objective({"x": theirs}).sum()
        value.backward()
        return value

    for _ in range(2):
        reference.step(closure)
        before = ours["x"]
        ours = optimiser.step(ours, evaluating(objective), lr)
        assert not torch.equal(ours["x"], before)
        torch.testing.assert_close(ours["x"], theirs.detach(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("objective", [valley, bowl])
def test_problems_side_by_side_go_as_if_alone(objective, starts):
    together, optimiser = {"x": starts}, LBFGS(history=6)
    alone = [({"x": start[None]}, LBFGS(history=6)) for start in starts]
    for _ in range(3):
        together = optimiser.step(together, evaluating(objective), 1.0)
        alone = [(own.step(x, evaluating(objective), 1.0), own) for x, own in alone]
    torch.testing.assert_close(together["x"], torch.cat([x["x"] for x, _ in alone]), rtol=1e-6, atol=1e-9)


def test_several_variables_are_one_vector(starts):
    split = {"a": starts[:, :3], "b": starts[:, 3:].reshape(5, 1, 5)}
    whole = {"x": starts}

    def of_parts(variables):
        return valley({"x": torch.cat([variables["a"], variables["b"].flatten(1)], dim=1)})

    parts = LBFGS().step(split, evaluating(of_parts), 1.0)
    x = LBFGS().step(whole, evaluating(valley), 1.0)["x"]
    assert parts["b"].shape == (5, 1, 5)
    torch.testing.assert_close(torch.cat([parts["a"], parts["b"].flatten(1)], dim=1), x)


def test_the_objective_never_rises_and_evaluations_are_bounded(starts):
    x, optimiser, last = {"x": starts}, LBFGS(), valley({"x": starts})
    for _ in range(10):
        seen = []
        x = optimiser.step(x, evaluating(valley, seen), 1.0)
        assert len(seen) <= 25
        assert (valley(x) <= last).all()
        last = valley(x)
    # the valley has one other minimum, near (-1, 1, ..., 1)
    assert ((last < 1e-12) | ((last - 3.98).abs() < 0.02)).all()


def test_reaches_the_minimum_of_a_bowl_in_single_precision(starts):
    x, optimiser = {"x": starts.float()}, LBFGS()
    for _ in range(5):
        x = optimiser.step(x, evaluating(bowl), 1.0)
    torch.testing.assert_close(x["x"], torch.ones(5, 8), atol=1e-5, rtol=0)


def test_trials_that_are_not_finite_are_stepped_back_from():
    def cliff(variables):
        x = variables["x"][:, 0]
        return torch.where(x > 1.5, torch.nan, (x - 1) ** 2 - 5 * x.clamp(max=1.2))

    x, optimiser = {"x": torch.tensor([[-3.0], [0.0]]).double()}, LBFGS()
    for _ in range(3):
        x = optimiser.step(x, evaluating(cliff), 10.0)
    assert (x["x"] - 1.2).abs().max() < 0.1


def test_a_problem_without_a_finite_start_stays_and_the_others_go(starts):
    def half(variables):
        return valley(variables) * torch.tensor([math.nan, 1, 1, 1, 1])

    moved = LBFGS().step({"x": starts}, evaluating(half), 1.0)["x"]
    assert torch.equal(moved[0], starts[0])
    assert (moved[1:] != starts[1:]).any(dim=1).all()


def test_a_minimum_is_not_left():
    x = {"x": torch.ones(1, 4)}
    assert torch.equal(LBFGS().step(x, evaluating(bowl), 1.0)["x"], x["x"])


def test_a_reset_problem_goes_as_if_it_were_new(starts):
    optimiser = LBFGS()
    optimiser.step({"x": starts[:2]}, evaluating(valley), 1.0)
    optimiser.reset(torch.tensor([True, False]))
    moved = optimiser.step({"x": starts[2:4]}, evaluating(valley), 1.0)["x"]
    new = LBFGS().step({"x": starts[2:4]}, evaluating(valley), 1.0)["x"]
    torch.testing.assert_close(moved[0], new[0])
    assert not torch.allclose(moved[1], new[1])


def test_in_turn_one_sample_moves_and_the_others_stay():
    x, optimiser = {"x": torch.zeros(2, 3, 4), "y": torch.zeros(2, 3, 1)}, RoundRobin(Adam, 3)

    def objective(variables):
        return sum((value - 1).square().flatten(1).sum(dim=1) for value in variables.values())

    for turn in range(7):
        moved = optimiser.step(x, evaluating(objective), 0.1)
        for name in x:
            changed = (moved[name] != x[name]).flatten(2).any(dim=2)
            assert changed.tolist() == [[sample == turn % 3 for sample in range(3)]] * 2
        x = moved
    optimiser.reset(torch.tensor([True, False]))
    moved = optimiser.step(x, evaluating(objective), 0.1)["x"] - x["x"]
    torch.testing.assert_close(moved[0, 1], torch.full((4,), 0.1))
    assert (moved[1, 1] < 0.0999).all()


def test_a_batch_of_one_in_turn_is_no_turn_at_all(starts):
    inner = LBFGS().step({"x": starts}, evaluating(valley), 1.0)["x"]
    outer = RoundRobin(LBFGS, 1).step(
        {"x": starts[:, None]}, evaluating(lambda v: valley({"x": v["x"][:, 0]})), 1.0
    )["x"]
    torch.testing.assert_close(outer[:, 0], inner)
