"""FedLeak and the surrogate model: their parts against formulas written out."""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from attacks.metrics import mse
from attacks.optimisation import fedleak, inverting_gradients, sme
from attacks.optimisation.between import PLACE, RATE
from attacks.optimisation.client_gradient import client_gradient
from attacks.optimisation.fedleak import largest_alone
from attacks.optimisation.objectives import cosine_distance, squared_distance
from attacks.optimisation.optimisers import Adam
from attacks.optimisation.regularised import Regularised


def pictures(count: int) -> torch.Tensor:
    coarse = torch.rand(count, 3, 3, 3, generator=torch.Generator().manual_seed(3)).double()
    return F.interpolate(coarse, size=8, mode="bilinear", align_corners=True)


def test_the_largest_share_of_each_tensor_is_matched():
    target = torch.tensor([[1.0, -5.0, 2.0, 0.1, 9.0, 0.2]])
    guess = target + torch.tensor([[1.0, 0.5, 1.0, 1.0, 0.25, 1.0]])
    distance = largest_alone(squared_distance, [4, 2], 0.5)
    assert float(distance(target, None)(guess)) == pytest.approx(0.25 + 1 + 0.0625)
    sent = torch.tensor([[True, False, True, True, True, True]])
    assert float(distance(target, sent)(guess)) == pytest.approx(1 + 0.0625)


def test_the_mixed_slope_is_that_of_both_points():
    seen = []

    def evaluate(variables):
        seen.append(variables["x"])
        return variables["x"].square().sum(dim=1), {"x": 2 * variables["x"]}

    class Plain:
        def step(self, variables, evaluate, lr):
            return {"x": variables["x"] - lr * evaluate(variables)[1]["x"]}

    x = torch.tensor([[3.0, 4.0]])
    moved = Regularised(Plain(), share=0.25, reach=0.5).step({"x": x}, evaluate, 1.0)["x"]
    uphill = x + 0.5 * x / (25 / 2) ** 0.5
    torch.testing.assert_close(seen[1], uphill)
    torch.testing.assert_close(moved, x - (0.75 * 2 * x + 0.25 * 2 * uphill))
    Regularised(Adam(), share=0.1, reach=0.1).reset(torch.tensor([True]))


def test_fedleak_recovers_a_picture(observe, small_lenet):
    torch.manual_seed(0)
    for parameter in small_lenet.parameters():
        torch.nn.init.uniform_(parameter, -0.2, 0.2)
    result = fedleak(steps=150, tv=0.002)(observe(small_lenet, pictures(1), torch.tensor([2])))
    assert mse(result.images, pictures(1)) < 0.02


def stepped(model, pixels, labels, steps: int, lr: float):
    weights = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    for _ in range(steps):
        loss = F.cross_entropy(torch.func.functional_call(model, weights, (pixels,)), labels)
        slopes = torch.autograd.grad(loss, list(weights.values()))
        weights = {
            name: (w - lr * g).detach().requires_grad_()
            for (name, w), g in zip(weights.items(), slopes, strict=True)
        }
    return {name: (w - dict(model.named_parameters())[name]).detach() for name, w in weights.items()}


def test_a_model_between_explains_many_steps_better_than_the_first(observe, small_lenet):
    pixels, labels = pictures(2), torch.tensor([2, 0])
    delta = stepped(small_lenet, pixels, labels, 10, 0.1)
    obs = replace(observe(small_lenet, pixels, labels), update=delta, local_steps=10, lr=0.1)
    problem = sme().problem(obs)
    distance = cosine_distance(problem.target[None])

    def at(place: float) -> float:
        draws = {PLACE: torch.full((1, 1), place / RATE).double()}
        gradient, _ = client_gradient(
            problem.model, problem.names, pixels[None], labels[None], draws, course=problem.between
        )
        return float(distance(gradient(pixels[None], labels[None], draws)))

    moved = copy.deepcopy(small_lenet)
    with torch.no_grad():
        for name, parameter in moved.named_parameters():
            parameter += 0.5 * delta[name]
    middle = observe(moved, pixels, labels).update
    flat = torch.cat([middle[name].flatten() for name in problem.names])
    assert at(0.5) == pytest.approx(float(distance(flat[None])), rel=1e-6)
    assert min(at(place) for place in (0.4, 0.5, 0.6)) < 0.5 * at(0.0)


def test_the_surrogate_finds_the_picture_and_its_place(observe, small_lenet):
    torch.manual_seed(0)
    for parameter in small_lenet.parameters():
        torch.nn.init.uniform_(parameter, -0.2, 0.2)
    pixels, labels = pictures(1), torch.tensor([2])
    delta = stepped(small_lenet, pixels, labels, 10, 0.3)
    obs = replace(observe(small_lenet, pixels, labels), update=delta, local_steps=10, lr=0.3)
    surrogate, single = sme(steps=150, tv=0.002)(obs), inverting_gradients(steps=150, tv=0.002)(obs)
    assert mse(surrogate.images, pixels) < 1.2 * mse(single.images, pixels)
    assert surrogate.objective < single.objective
    assert any("model between" in note for note in surrogate.notes)
    assert len(sme(steps=1).many([obs, obs])) == 2


def test_settings_and_gradients_are_checked(observe, small_lenet):
    with pytest.raises(ValueError, match="use ig"):
        sme()(observe(small_lenet, pictures(1), torch.tensor([2])))
    with pytest.raises(ValueError, match="fedavg"):
        sme(fedavg="unrolled")
    for setting in ({"matched": 0.0}, {"mixed": 2.0}, {"reach": 0.0}):
        with pytest.raises(ValueError, match="fedleak"):
            fedleak(**setting)
