import math

import pytest
import torch

from attacks.optimisation.lbfgs import LBFGS
from attacks.optimisation.loop import minimise, step_decay
from attacks.optimisation.optimisers import Adam


def run(objective, start, **more):
    settings = {
        "optimiser": Adam(),
        "schedule": step_decay(0.1),
        "steps": 50,
        "project": lambda variables: variables,
        "redraw": lambda problem: {"x": torch.zeros(start.shape[1:])},
    }
    return minimise(objective, {"x": start}, **settings | more)


def bowl(variables):
    return (variables["x"] - 1).square().sum(dim=1)


@pytest.mark.parametrize("signed", [False, True])
def test_adam_takes_the_steps_of_torch(signed):
    start = torch.randn(1, 4).double()
    theirs = start.clone().requires_grad_(True)
    reference = torch.optim.Adam([theirs], lr=0.05)
    ours, optimiser = {"x": start}, Adam(signed=signed)

    def evaluate(variables):
        leaf = variables["x"].clone().requires_grad_(True)
        value = bowl({"x": leaf})
        return value.detach(), {"x": torch.autograd.grad(value.sum(), leaf)[0]}

    for _ in range(20):
        ours = optimiser.step(ours, evaluate, 0.05)
        reference.zero_grad()
        bowl({"x": theirs}).sum().backward()
        if signed:
            theirs.grad.sign_()
        reference.step()
    torch.testing.assert_close(ours["x"], theirs.detach())


def test_a_reset_problem_moves_as_if_it_were_new():
    optimiser = Adam()
    gradients = iter(torch.randn(4, 2, 3))
    values = torch.zeros(2)
    x = {"x": torch.zeros(2, 3)}
    for _ in range(3):
        x = optimiser.step(x, lambda _: (values, {"x": next(gradients)}), 0.1)
    optimiser.reset(torch.tensor([True, False]))
    last = torch.tensor([[1.0, -2.0, 3.0]] * 2)
    moved = optimiser.step(x, lambda _: (values, {"x": last}), 0.1)["x"] - x["x"]
    torch.testing.assert_close(moved[0], torch.tensor([-0.1, 0.1, -0.1]))
    assert (moved[1].abs() < 0.1).all()


def test_finds_the_minimum_of_each_problem():
    outcome = run(bowl, torch.randn(5, 3), steps=400)
    assert outcome.objective.max() < 1e-3
    torch.testing.assert_close(outcome.objective, bowl(outcome.variables))


@pytest.mark.parametrize("optimiser", [Adam, LBFGS])
def test_gradients_may_lie_in_memory_in_any_order(optimiser):
    goal = torch.arange(12.0, dtype=torch.float64).view(2, 3, 2)

    def objective(variables):
        return (variables["x"].mT.reshape(2, -1) - goal.mT.reshape(2, -1)).square().sum(dim=1)

    start = {"x": torch.zeros(2, 3, 2, dtype=torch.float64)}
    leaf = start["x"].clone().requires_grad_(True)
    (slope,) = torch.autograd.grad(objective({"x": leaf}).sum(), leaf)
    assert not slope.is_contiguous()
    outcome = minimise(
        objective,
        start,
        optimiser=optimiser(),
        schedule=lambda progress: 1.0,
        steps=60,
        project=lambda variables: variables,
        redraw=lambda problem: {"x": start["x"][problem]},
    )
    assert (outcome.objective < 1.0).all()


def test_keeps_the_best_iterate_and_not_the_last():
    outcome = run(bowl, torch.zeros(1, 1), steps=12, schedule=lambda _: 0.3)
    seen = []
    run(
        lambda v: (seen.append(bowl(v).detach()), bowl(v))[1],
        torch.zeros(1, 1),
        steps=12,
        schedule=lambda _: 0.3,
    )
    assert len(seen) == 13
    assert outcome.objective == min(seen)
    assert outcome.objective < seen[-1]


def test_the_iterate_after_the_last_step_counts():
    outcome = run(bowl, torch.zeros(1, 1), steps=1, schedule=lambda _: 1.0)
    torch.testing.assert_close(outcome.variables["x"], torch.ones(1, 1))


def test_every_iterate_that_is_evaluated_lies_in_the_box():
    seen = []

    def objective(variables):
        seen.append(variables["x"].detach())
        return bowl(variables)

    outcome = run(objective, torch.full((2, 3), 9.0), project=lambda v: {"x": v["x"].clamp(-0.5, 0.5)})
    assert torch.stack(seen).abs().max() <= 0.5
    torch.testing.assert_close(outcome.variables["x"], torch.full((2, 3), 0.5))


def test_a_problem_that_breaks_is_drawn_anew_and_the_others_go_on():
    drawn = []

    def objective(variables):
        value = bowl(variables)
        return torch.where(variables["x"][:, 0] > 50, torch.nan, value)

    def redraw(problem):
        drawn.append(problem)
        return {"x": torch.zeros(1)}

    start = torch.tensor([[0.0], [100.0], [0.5]])
    outcome = run(objective, start, steps=200, redraw=redraw)
    assert drawn == [1]
    assert outcome.redrawn == 1
    assert outcome.objective.max() < 1e-2


def test_a_gradient_that_is_not_finite_counts_as_broken():
    # the square root's slope at zero is infinite, its value is not
    outcome = run(lambda v: v["x"].abs().sqrt().sum(dim=1), torch.zeros(1, 2), steps=1)
    assert outcome.redrawn == 1


def test_an_objective_that_is_never_finite_stays_infinite():
    outcome = run(lambda v: v["x"].sum(dim=1) * torch.nan, torch.zeros(2, 3), steps=3)
    assert outcome.objective.tolist() == [math.inf, math.inf]
    assert outcome.variables["x"].isfinite().all()


def test_listeners_hear_every_step_and_a_falling_objective():
    heard = []
    run(bowl, torch.zeros(2, 3), steps=7, on_step=lambda *event: heard.append(event))
    assert [(done, total) for done, total, _ in heard] == [(i, 7) for i in range(1, 8)]
    best = [value for _, _, value in heard]
    assert best == sorted(best, reverse=True)


def test_a_search_ends_when_it_is_told_to_and_has_its_last_iterate():
    seen = []
    outcome = run(bowl, torch.zeros(2, 1), until=lambda variables: seen.append(variables) or len(seen) == 7)
    assert outcome.steps == len(seen) == 7
    torch.testing.assert_close(outcome.objective, bowl(seen[-1]))


def test_the_schedule_falls_at_its_milestones():
    schedule = step_decay(0.1)
    rates = [schedule(progress) for progress in (0, 0.374, 0.375, 0.625, 0.875)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.001, 0.0001])


def test_a_time_budget_ends_the_search_on_its_small_rates(monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr("attacks.optimisation.loop.time.monotonic", lambda: next(clock))
    rates = []

    def schedule(progress):
        rates.append(step_decay(0.1)(progress))
        return rates[-1]

    outcome = run(bowl, torch.zeros(1, 2), steps=1000, schedule=schedule, time_budget=16)
    assert outcome.steps == 15
    assert rates[0] == pytest.approx(0.1)
    assert rates[-1] == pytest.approx(0.0001)
