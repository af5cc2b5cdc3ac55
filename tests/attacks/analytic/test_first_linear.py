import copy
import dataclasses
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks.analytic import first_linear
from attacks.analytic.first_linear import separate
from attacks.metrics import match, psnr
from attacks.score import score
from fl_app.types import Truth

MEAN, STD = [0.5, 0.45, 0.4], [0.25, 0.2, 0.3]


def as_inputs(pixels):
    mean, std = (torch.tensor(values, dtype=pixels.dtype).view(3, 1, 1) for values in (MEAN, STD))
    return (pixels - mean) / std


def mlp(dtype=torch.float32, activation=nn.ReLU, hidden=128) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(192, hidden), activation(), nn.Linear(hidden, 10)).to(dtype)


@pytest.fixture
def pixels() -> torch.Tensor:
    return torch.rand(12, 3, 8, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.fixture
def seen(observe, pixels):
    def make(count=1, model=None, dtype=torch.float32, **more):
        labels = torch.arange(count) % 10
        inputs = as_inputs(pixels[:count]).to(dtype)
        return observe(model or mlp(dtype), inputs, labels, **{"mean": MEAN, "std": STD} | more)

    return make


def matched_psnr(images, truth) -> torch.Tensor:
    pairs = match(images.to(truth), truth)
    assert None not in pairs
    return psnr(images.to(truth)[pairs], truth)


@pytest.mark.parametrize(("dtype", "least"), [(torch.float32, 110), (torch.float64, 120)])
def test_one_sample_is_recovered_exactly(seen, pixels, dtype, least):
    result = first_linear()(seen(dtype=dtype))
    assert psnr(result.images.double(), pixels[:1]) >= least
    assert result.images.dtype == dtype
    assert result.labels.tolist() == [0]
    assert not any("disagree" in note or "not sent" in note for note in result.notes)


@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.Tanh, nn.GELU])
def test_the_activation_does_not_matter_for_one_sample(seen, pixels, activation):
    result = first_linear()(seen(model=mlp(activation=activation)))
    assert psnr(result.images.double(), pixels[:1]) > 80


def test_rows_of_a_hand_worked_gradient_are_divided_by_the_bias(observe):
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    obs = observe(model, torch.zeros(1, 1, 2, 2), torch.tensor([0]))
    x = torch.tensor([0.25, 0.5, 0.75, 1.0])
    update = {"1.weight": torch.stack([-2 * x, 0 * x, 3 * x]), "1.bias": torch.tensor([-2.0, 0.0, 3.0])}
    result = first_linear()(dataclasses.replace(obs, update=update))
    torch.testing.assert_close(result.images, x.view(1, 1, 2, 2))


def test_the_label_of_one_sample_is_inferred_if_it_is_not_granted(seen, pixels, observe):
    obs = observe(mlp(), as_inputs(pixels[:1]).float(), torch.tensor([7]), granted=False, mean=MEAN, std=STD)
    assert first_linear()(obs).labels.tolist() == [7]


def test_a_delta_of_several_local_steps_gives_the_same_image_without_a_learning_rate(seen, pixels):
    obs = seen(dtype=torch.float64)
    model = copy.deepcopy(obs.model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(5):
        optimiser.zero_grad()
        F.cross_entropy(model(as_inputs(pixels[:1])), torch.tensor([0])).backward()
        optimiser.step()
    before = dict(obs.model.named_parameters())
    delta = {name: (after - before[name]).detach() for name, after in model.named_parameters()}
    result = first_linear()(dataclasses.replace(obs, update=delta, local_steps=5, labels=None))
    assert psnr(result.images, pixels[:1]) > 110
    assert result.labels.tolist() == [0]
    assert any("5 local steps" in note for note in result.notes)


@pytest.mark.parametrize("count", [2, 4, 8])
def test_a_batch_behind_a_relu_is_recovered_sample_by_sample(seen, pixels, count):
    result = first_linear()(seen(count))
    assert matched_psnr(result.images, pixels[:count]).min() > 80
    assert any(f"{count} samples told apart" in note for note in result.notes)
    assert sorted(result.labels.tolist()) == list(range(count))


def test_a_batch_that_stays_mixed_is_said_to_be_mixtures(seen):
    # every sample moves every sigmoid: no row is free of any of them
    result = first_linear()(seen(3, model=mlp(activation=nn.Sigmoid)))
    assert any("mixture" in note for note in result.notes)
    assert 1 <= len(result.images) <= 3


def test_rows_that_agree_come_first_among_mixtures(seen, pixels, monkeypatch):
    # by sys.modules: in the package, the function hides its module
    module = sys.modules["attacks.analytic.first_linear"]
    monkeypatch.setattr(module, "separate", lambda rows, count: None)
    result = first_linear()(seen(2))
    # about a quarter of the rows is active for the one sample alone, another for the other
    assert matched_psnr(result.images, pixels[:2]).min() > 60


def test_twice_the_same_sample_is_one_image_and_the_rank_is_reported(observe, pixels):
    twice = as_inputs(pixels[[0, 0]]).float()
    result = first_linear()(observe(mlp(), twice, torch.tensor([3, 3]), mean=MEAN, std=STD))
    assert len(result.images) == 1
    assert psnr(result.images.double(), pixels[:1]) > 80
    assert any("rank 1, not 2" in note for note in result.notes)


@pytest.mark.parametrize("rank", [2, 5])
def test_sparse_mixtures_are_separated_up_to_a_factor(rank):
    generator = torch.Generator().manual_seed(rank)
    signals = torch.randn(100, rank, generator=generator, dtype=torch.float64)
    signals = signals * (torch.rand(100, rank, generator=generator) < 0.5)
    sources = torch.randn(rank, 30, generator=generator, dtype=torch.float64)
    found = F.normalize(separate(signals @ sources, rank), dim=1)
    likeness = (found @ F.normalize(sources, dim=1).t()).abs()
    torch.testing.assert_close(likeness.amax(dim=0), torch.ones(rank, dtype=torch.float64))
    assert likeness.argmax(dim=0).unique().numel() == rank


def test_dense_mixtures_are_not_separated():
    signals, sources = torch.randn(100, 3).double(), torch.randn(3, 30).double()
    assert separate(signals @ sources, 3) is None


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (nn.Sequential(nn.Conv2d(3, 3, 1), nn.Flatten(), nn.Linear(192, 10)), "sees the flattened input"),
        (nn.Sequential(nn.Flatten(), nn.BatchNorm1d(192), nn.Linear(192, 10)), "sees the flattened input"),
        (nn.Sequential(nn.Flatten(), nn.Linear(192, 10, bias=False)), "has a bias"),
    ],
)
def test_a_model_without_such_a_layer_is_refused_with_the_reason(seen, pixels, model, reason):
    result = first_linear()(seen(2, model=model))
    assert result.images.shape == (0, 3, 8, 8)
    assert any("refused" in note and reason in note for note in result.notes)
    assert score(result, Truth(pixels[:2], torch.tensor([0, 1])))["psnr"] == [None, None]


def test_the_layer_is_found_by_what_it_sees_not_by_where_it_stands(seen, pixels):
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.output = nn.Linear(128, 10)
            self.norm = nn.BatchNorm1d(128)
            self.hidden = nn.Linear(192, 128)

        def forward(self, x):
            return self.output(self.norm(self.hidden(x.flatten(1))).relu())

    obs = seen(model=Backwards().eval())
    result = first_linear()(obs)
    assert psnr(result.images.double(), pixels[:1]) > 80


def test_a_bias_of_which_nothing_was_sent_is_refused(seen):
    obs = seen()
    empty = obs.update | {"1.bias": torch.zeros(128)}
    result = first_linear()(dataclasses.replace(obs, update=empty))
    assert len(result.images) == 0
    assert any("nothing of 1.bias was sent" in note for note in result.notes)


def test_pruned_rows_are_reported(seen):
    obs = seen()
    weight = obs.update["1.weight"]
    pruned = torch.where(weight.abs() < weight.abs().quantile(0.8), 0, weight)
    result = first_linear()(dataclasses.replace(obs, update=obs.update | {"1.weight": pruned}))
    assert any("of 1.weight were not sent" in note for note in result.notes)
    assert any("rows disagree" in note for note in result.notes)


def test_leaves_the_observation_and_the_global_state_alone(seen):
    obs = seen(3)
    obs.model.train()
    before = copy.deepcopy((obs.model.state_dict(), obs.update))
    state = torch.random.get_rng_state()
    first_linear()(obs)
    torch.testing.assert_close((obs.model.state_dict(), obs.update), before, rtol=0, atol=0)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not any(module._forward_pre_hooks for module in obs.model.modules())
