import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks.optimisation.batch_statistics import BatchStatistics, use_batch_statistics
from attacks.optimisation.client_gradient import batched, client_gradient, one_by_one
from attacks.optimisation.local_training import LocalTraining
from attacks.rounds.course import Rounds
from fl_app.models.bottleneck import Bottleneck


class Unbatchable(nn.Module):
    def forward(self, x):
        return x * float(x.detach().abs().max())


MIDDLES = {
    "relu": lambda: [nn.ReLU(inplace=True)],
    "pooling": lambda: [nn.Sigmoid(), nn.MaxPool2d(2)],
    "group norm": lambda: [nn.GroupNorm(2, 4), nn.AvgPool2d(2)],
    "batch statistics": lambda: [BatchStatistics(nn.BatchNorm2d(4))],
    "running statistics": lambda: [nn.BatchNorm2d(4).eval()],
}


@pytest.fixture(params=MIDDLES)
def model(request) -> nn.Module:
    built = nn.Sequential(nn.Conv2d(2, 4, 3), *MIDDLES[request.param](), nn.Flatten(), nn.LazyLinear(3))
    built(torch.zeros(2, 2, 6, 6))
    return built.double()


@pytest.fixture
def guesses() -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """Inputs, labels, and draws: of a model that does not draw, none."""
    return torch.randn(5, 2, 2, 6, 6).double(), torch.randint(3, (5, 2)), {}


def names(model: nn.Module) -> tuple[str, ...]:
    return tuple(name for name, _ in model.named_parameters())


def test_both_ways_are_the_gradient_that_backward_gives(model, guesses):
    inputs, labels, _ = guesses
    expected = []
    for guess, label in zip(inputs, labels, strict=True):
        model.zero_grad()
        F.cross_entropy(model(guess), label).backward()
        expected.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(one_by_one(model, names(model))(*guesses), torch.stack(expected))
    torch.testing.assert_close(batched(model, names(model))(*guesses), torch.stack(expected))


def test_both_ways_have_the_same_gradient_themselves(model, guesses):
    inputs, labels, _ = guesses
    weights = torch.randn(5, sum(p.numel() for p in model.parameters())).double()
    inputs.requires_grad_(True)
    slopes = [
        torch.autograd.grad((make(model, names(model))(inputs, labels, {}) * weights).sum(), inputs)[0]
        for make in (one_by_one, batched)
    ]
    assert slopes[0].any()
    torch.testing.assert_close(*slopes)


def test_soft_labels_are_differentiable(guesses):
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 3)).double()
    logits = torch.randn(5, 2, 3).double().requires_grad_(True)
    gradient = batched(model, names(model))(guesses[0], logits.softmax(dim=-1), {})
    (slope,) = torch.autograd.grad(gradient.square().sum(), logits)
    assert slope.abs().amax(dim=(1, 2)).min() > 0


def test_only_the_named_parameters_are_matched(model, guesses):
    whole, part = names(model), names(model)[-1:]
    for make in (one_by_one, batched):
        torch.testing.assert_close(make(model, part)(*guesses), make(model, whole)(*guesses)[:, -3:])


def test_a_model_that_cannot_be_batched_is_taken_one_by_one_and_the_reason_given(guesses):
    model = nn.Sequential(Unbatchable(), nn.Flatten(), nn.Linear(72, 3)).double()
    gradient, reason = client_gradient(model, names(model), *guesses)
    assert reason is not None
    assert "one by one" in reason
    torch.testing.assert_close(gradient(*guesses), one_by_one(model, names(model))(*guesses))


def test_a_model_that_can_be_batched_is(model, guesses):
    gradient, reason = client_gradient(model, names(model), *guesses)
    assert reason is None
    torch.testing.assert_close(gradient(*guesses), one_by_one(model, names(model))(*guesses))


def test_a_model_that_torch_batches_wrongly_is_taken_one_by_one(guesses):
    norm = nn.BatchNorm2d(4, track_running_stats=False)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), norm, nn.Flatten(), nn.Linear(64, 3)).double()
    gradient, reason = client_gradient(model, names(model), *guesses)
    if reason is None:
        pytest.fail("torch has mended batch norm under vmap: BatchStatistics may go")
    assert "wrongly" in reason
    torch.testing.assert_close(gradient(*guesses), one_by_one(model, names(model))(*guesses))


@pytest.mark.parametrize("affine", [True, False])
def test_batch_statistics_are_what_batch_norm_computes_in_train_mode(affine):
    model = nn.Sequential(nn.BatchNorm1d(5, affine=affine), nn.Sequential(nn.BatchNorm1d(5, affine=affine)))
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    inputs = torch.randn(7, 5, 3)
    expected, before = model(inputs), list(dict(model.named_parameters()))
    use_batch_statistics(model)
    assert not any(isinstance(module, nn.BatchNorm1d) for module in model.modules())
    assert list(dict(model.named_parameters())) == before
    torch.testing.assert_close(model(inputs), expected)


def moved(model: nn.Module, count: int) -> tuple[dict[str, torch.Tensor], ...]:
    """The states of a model that moves from round to round."""
    generator = torch.Generator().manual_seed(4)
    return tuple(
        {
            name: tensor + 0.1 * torch.randn(tensor.shape, generator=generator).double()
            for name, tensor in model.state_dict().items()
            if tensor.is_floating_point()
        }
        for _ in range(count)
    )


@pytest.mark.parametrize("running", [False, True])
def test_several_rounds_are_the_gradients_of_their_models_in_one_row(guesses, running):
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(64, 3)).double()
    states = moved(model, 3)
    expected = []
    for state in states:
        other = copy.deepcopy(model)
        other.load_state_dict(state)
        expected.append(one_by_one(other, names(model))(*guesses).detach())
        if running and len(expected) > 1:
            expected[-1] += expected[-2]
    course = Rounds(states, float(running), before=torch.zeros(0))
    gradient, reason = client_gradient(model, names(model), *guesses, course=course)
    assert reason is None
    torch.testing.assert_close(gradient(*guesses), torch.cat(expected, dim=1))


COURSES = {
    "rounds": lambda model: Rounds(moved(model, 3), memory=1.0, before=torch.zeros(0)),
    "local steps": lambda model: LocalTraining(0.1, ((0, 1), (1, 2), (0, 1))),
    "neither": lambda model: None,
}


@pytest.mark.parametrize("course", COURSES)
def test_whatever_the_course_and_the_draws_both_ways_are_the_same(guesses, course):
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 6), Bottleneck(6, 3), nn.Linear(6, 3)).double()
    inputs, labels, _ = guesses
    draws = {"2.given_draws": torch.randn(5, 2, 3).double().requires_grad_(True)}
    model[2].given_draws = torch.zeros(2, 3).double()
    inputs.requires_grad_(True)
    options = {"course": COURSES[course](model)}
    together, reason = client_gradient(model, names(model), inputs, labels, draws, **options)
    assert reason is None
    rows = together(inputs, labels, draws)
    slopes = torch.autograd.grad(rows.pow(3).sum(), (inputs, *draws.values()))
    for row in range(5):
        own = inputs[row : row + 1], labels[row : row + 1], {n: d[row : row + 1] for n, d in draws.items()}
        alone, _ = client_gradient(model, names(model), *own, **options)
        torch.testing.assert_close(alone(*own)[0], rows[row])
        of_one = torch.autograd.grad(alone(*own).pow(3).sum(), (inputs, *draws.values()))
        for slope, one in zip(slopes, of_one, strict=True):
            assert one[row].any()
            torch.testing.assert_close(slope[row], one[row])


def test_given_draws_take_the_place_of_those_that_the_model_would_draw(guesses):
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 6), Bottleneck(6, 3), nn.Linear(6, 3)).double()
    inputs, labels, _ = guesses
    torch.manual_seed(5)
    draws = torch.randn(2, 3).double()
    model[2].given_draws = draws
    value = F.cross_entropy(model(inputs[0]), labels[0])
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(value, list(model.parameters()))])
    model[2].given_draws = torch.zeros(2, 3).double()
    found = batched(model, names(model))(inputs[:1], labels[:1], {"2.given_draws": draws[None]})
    torch.testing.assert_close(found[0], expected)
