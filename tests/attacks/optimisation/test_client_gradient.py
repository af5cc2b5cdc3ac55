import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks.optimisation.batch_statistics import BatchStatistics, use_batch_statistics
from attacks.optimisation.client_gradient import batched, client_gradient, one_by_one


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
def guesses() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(5, 2, 2, 6, 6).double(), torch.randint(3, (5, 2))


def names(model: nn.Module) -> tuple[str, ...]:
    return tuple(name for name, _ in model.named_parameters())


def test_both_ways_are_the_gradient_that_backward_gives(model, guesses):
    inputs, labels = guesses
    expected = []
    for guess, label in zip(inputs, labels, strict=True):
        model.zero_grad()
        F.cross_entropy(model(guess), label).backward()
        expected.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    torch.testing.assert_close(one_by_one(model, names(model))(*guesses), torch.stack(expected))
    torch.testing.assert_close(batched(model, names(model))(*guesses), torch.stack(expected))


def test_both_ways_have_the_same_gradient_themselves(model, guesses):
    inputs, labels = guesses
    weights = torch.randn(5, sum(p.numel() for p in model.parameters())).double()
    inputs.requires_grad_(True)
    slopes = [
        torch.autograd.grad((make(model, names(model))(inputs, labels) * weights).sum(), inputs)[0]
        for make in (one_by_one, batched)
    ]
    assert slopes[0].any()
    torch.testing.assert_close(*slopes)


def test_soft_labels_are_differentiable(guesses):
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 3)).double()
    logits = torch.randn(5, 2, 3).double().requires_grad_(True)
    gradient = batched(model, names(model))(guesses[0], logits.softmax(dim=-1))
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
