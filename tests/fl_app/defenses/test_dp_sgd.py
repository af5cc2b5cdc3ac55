"""DP-SGD: per-sample clipping against a plain loop, noise by its moments, and a model left as it was."""

import copy
import logging
import math
import subprocess
import sys
import warnings

import pytest
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn
from torch.nn import functional as F

from fl_app.config.build import client_parts, server_parts
from fl_app.config.compose import ConfigError
from fl_app.defenses import dp_sgd as dp_sgd_factory
from fl_app.defenses import protect
from fl_app.models import convnet, lenet_zhu, mlp, resnet18
from fl_app.privacy import Ledger
from fl_app.seeding import generator_for
from fl_app.training import Batch, Job, Step, backpropagate, cross_entropy, parameters

SMALL = "data.train_per_class=8 data.test_per_class=4 clients=5 batch_size=4 rounds=2 attack=none threads=1"
SHAPE = (3, 8, 8)
MODELS = {
    "lenet": lambda: lenet_zhu(4, SHAPE),
    "mlp": lambda: mlp(4, SHAPE, hidden=(16,)),
    "resnet18": lambda: resnet18(4, SHAPE, norm="group"),
}


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("flwr").setLevel(logging.ERROR)


@pytest.fixture(params=MODELS.values(), ids=MODELS.keys())
def model(request):
    return request.param()


def batch_of(n: int, shape=SHAPE, classes: int = 4) -> Batch:
    inputs = torch.randn(n, *shape)
    return Batch(inputs, torch.randint(classes, (n,)), inputs, inputs)


def step_of(expected: int = 5, seed: int = 0, rate: float = 0.1, per_round: int = 1) -> Step:
    return Step(torch.Generator().manual_seed(seed), expected, rate, per_round)


def differentiate(model, batch, step, loss=cross_entropy, **settings):
    return dp_sgd_factory(10, **settings).rules.differentiate(model, batch, loss, step)


def flat(update) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in update.values()])


def loop_over_samples(model, batch, clip, expected):
    """The definition, one sample at a time; the small constant is Opacus' own."""
    total = {name: torch.zeros_like(p) for name, p in parameters(model).items()}
    norms = []
    for x, y in zip(batch.inputs, batch.labels, strict=True):
        loss = F.cross_entropy(model(x[None]), y[None])
        grads = torch.autograd.grad(loss, list(parameters(model).values()))
        norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in grads))
        norms.append(norm)
        for name, g in zip(total, grads, strict=True):
            total[name] += g * min(1.0, clip / (norm + 1e-6))
    return {name: t / expected for name, t in total.items()}, norms


def test_each_samples_gradient_is_clipped_by_itself(model):
    batch = batch_of(3)
    _, norms = loop_over_samples(model, batch, 1.0, 1)
    clip = sorted(norms)[1]  # some are clipped, some are not
    expected, _ = loop_over_samples(model, batch, clip, 7)
    loss, update = differentiate(model, batch, step_of(7), clip=clip, noise_multiplier=0.0)
    assert list(update) == list(parameters(model))
    torch.testing.assert_close(update, expected, rtol=1e-3, atol=1e-5)
    error = torch.linalg.vector_norm(flat(update) - flat(expected))
    assert error < 1e-5 * torch.linalg.vector_norm(flat(expected))
    assert loss == pytest.approx(float(cross_entropy(model, batch).detach()), rel=1e-5)


def test_no_sample_moves_the_sum_by_more_than_the_bound(model):
    batch, clip = batch_of(4), 0.01
    without = Batch(*(t[1:] for t in (batch.inputs, batch.labels, batch.pixels, batch.trained)))
    _, whole = differentiate(model, batch, step_of(1), clip=clip, noise_multiplier=0.0)
    _, rest = differentiate(model, without, step_of(1), clip=clip, noise_multiplier=0.0)
    distance = float(torch.linalg.vector_norm(flat(whole) - flat(rest)))
    assert 0.99 * clip < distance < 1.0001 * clip


def test_without_clipping_and_noise_it_is_the_plain_gradient(model):
    batch = batch_of(6)
    loss, update = differentiate(model, batch, step_of(6), clip=1e6, noise_multiplier=0.0)
    plain_loss, plain = backpropagate(model, batch, cross_entropy, step_of(6))
    assert loss == pytest.approx(plain_loss, rel=1e-6)
    torch.testing.assert_close(update, plain, rtol=1e-4, atol=1e-6)


def test_on_the_cpu_it_is_what_opacus_own_optimiser_gives():
    model, batch = MODELS["lenet"](), batch_of(6)
    _, update = differentiate(model, batch, step_of(8, seed=3), clip=0.7, noise_multiplier=1.3)
    wrapped = GradSampleModule(copy.deepcopy(model))
    optimiser = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=1.0),
        noise_multiplier=1.3,
        max_grad_norm=0.7,
        expected_batch_size=8,
        generator=torch.Generator().manual_seed(3),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cross_entropy(wrapped, batch).backward()
    optimiser.pre_step()
    theirs = {name.removeprefix("_module."): p.grad for name, p in wrapped.named_parameters()}
    torch.testing.assert_close(update, theirs, rtol=1e-5, atol=1e-7)


def test_an_empty_batch_is_noise_alone():
    model = MODELS["mlp"]()
    loss, update = differentiate(model, batch_of(0), step_of(4), clip=0.5, noise_multiplier=2.0)
    assert loss == 0.0
    noise = flat(update) * 4
    assert float(noise.std()) == pytest.approx(1.0, rel=0.05)
    _, silent = differentiate(model, batch_of(0), step_of(4), clip=0.5, noise_multiplier=0.0)
    assert not flat(silent).any()


def test_the_noise_is_normal_with_the_multiplier_times_the_bound():
    model, batch = lenet_zhu(10, (3, 32, 32)), batch_of(2, (3, 32, 32), 10)
    _, clean = differentiate(model, batch, step_of(5), clip=0.5, noise_multiplier=0.0)
    draws = torch.stack(
        [
            (flat(differentiate(model, batch, step_of(5, seed), clip=0.5, noise_multiplier=3.0)[1]))
            for seed in range(4)
        ]
    )
    noise = (draws - flat(clean)) * 5 / 1.5
    n = noise.numel()
    assert abs(float(noise.mean())) < 5 / math.sqrt(n)
    assert abs(float((noise**2).mean()) - 1) < 5 * math.sqrt(2 / n)
    assert abs(float((noise**4).mean()) - 3) < 5 * math.sqrt(96 / n)
    assert abs(float((noise[:, 1:] * noise[:, :-1]).mean())) < 5 / math.sqrt(n)


def test_clients_and_rounds_have_noise_of_their_own_and_a_seed_replays_it():
    model = MODELS["mlp"]()
    batch = batch_of(0)

    def noise(round: int, client: int) -> torch.Tensor:
        step = Step(generator_for(0, round, client, "rules"), 1, 0.1, 1)
        return flat(differentiate(model, batch, step, noise_multiplier=1.0)[1])

    first = noise(1, 0)
    assert torch.equal(first, noise(1, 0))
    for other in (noise(1, 1), noise(2, 0)):
        correlation = torch.corrcoef(torch.stack([first, other]))[0, 1]
        assert abs(float(correlation)) < 5 / math.sqrt(first.numel())


def test_a_batch_in_parts_is_the_whole_batch(model, monkeypatch):
    batch = batch_of(5)
    whole = differentiate(model, batch, step_of(), clip=0.5, noise_multiplier=0.0)
    size = sum(p.numel() for p in model.parameters())
    monkeypatch.setattr(sys.modules["fl_app.defenses.dp_sgd"], "AT_ONCE", 2 * size)
    seen = []

    def loss(model, part):
        seen.append(len(part.labels))
        return cross_entropy(model, part)

    parts = differentiate(model, batch, step_of(), loss, clip=0.5, noise_multiplier=0.0)
    assert seen == [2, 2, 1]
    assert parts[0] == pytest.approx(whole[0], rel=1e-5)
    torch.testing.assert_close(parts[1], whole[1], rtol=1e-4, atol=1e-6)


def traces(model: nn.Module):
    hooks = [
        len(module._forward_hooks) + len(module._backward_hooks) + len(module._forward_pre_hooks)
        for module in model.modules()
    ]
    attributes = [{k: v for k, v in vars(m).items() if not k.startswith("_modules")} for m in model.modules()]
    names = [sorted(names) for names in attributes]
    parameters = [(sorted(vars(p)), p.grad, p.requires_grad, p.detach().clone()) for p in model.parameters()]
    flags = [(module.training, module._is_full_backward_hook) for module in model.modules()]
    return hooks, names, parameters, flags


def assert_untouched(model: nn.Module, before) -> None:
    hooks, names, weights, flags = traces(model)
    assert (hooks, names, flags) == (before[0], before[1], before[3])
    for (attributes, grad, trained, value), old in zip(weights, before[2], strict=True):
        assert (attributes, trained) == (old[0], old[2])
        assert grad is old[1]
        assert torch.equal(value, old[3])


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(model, training):
    model.train(training)
    first, *rest = model.parameters()
    first.grad = torch.ones_like(first)
    rest[0].requires_grad_(False)
    before = traces(model)
    _, update = differentiate(model, batch_of(3), step_of(), noise_multiplier=1.0)
    assert_untouched(model, before)
    assert torch.equal(first.grad, torch.ones_like(first))
    assert len(update) == len(rest)
    assert not any(tensor.requires_grad for tensor in update.values())


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_model_is_left_as_it_was_after_an_error_too(when):
    model, batch = MODELS["lenet"](), batch_of(3)

    def loss(model, batch):
        if when == "after":
            model(batch.inputs)
        raise RuntimeError("out of memory")

    before = traces(model)
    with pytest.raises(RuntimeError, match="out of memory"):
        differentiate(model, batch, step_of(), loss, noise_multiplier=1.0)
    assert_untouched(model, before)
    expected, _ = loop_over_samples(model, batch, 0.1, 5)
    _, update = differentiate(model, batch, step_of(5), clip=0.1, noise_multiplier=0.0)
    torch.testing.assert_close(update, expected, rtol=1e-4, atol=1e-6)


def test_clients_in_eval_mode_get_the_same_gradient(model):
    batch = batch_of(3)
    _, trained = differentiate(model.train(), batch, step_of(), noise_multiplier=0.0)
    _, evaluated = differentiate(model.eval(), batch, step_of(), noise_multiplier=0.0)
    torch.testing.assert_close(trained, evaluated, rtol=0, atol=0)


def test_dropout_keeps_the_mode_it_is_in():
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(192, 4)).eval()
    batch = batch_of(4)
    expected, _ = loop_over_samples(model, batch, 1e3, 4)
    _, update = differentiate(model, batch, step_of(4), clip=1e3, noise_multiplier=0.0)
    torch.testing.assert_close(update, expected, rtol=1e-4, atol=1e-6)


def test_a_sample_whose_gradient_is_not_finite_counts_as_nothing():
    model, batch = MODELS["lenet"](), batch_of(3)
    rest = Batch(*(t[1:].clone() for t in (batch.inputs, batch.labels, batch.pixels, batch.trained)))
    batch.inputs[0, 0, 0, 0] = math.inf
    _, update = differentiate(model, batch, step_of(), noise_multiplier=0.0)
    _, expected = differentiate(model, rest, step_of(), noise_multiplier=0.0)
    torch.testing.assert_close(update, expected, rtol=1e-5, atol=1e-7)


class Peculiar(nn.Module):
    """A layer that Opacus does not know by name, one that is never used, and one used behind its back."""

    def __init__(self, *, borrow: bool = False) -> None:
        super().__init__()
        self.scale = Scale()
        self.unused = nn.Linear(2, 2)
        self.output = nn.Linear(192, 4)
        self.borrow = borrow

    def forward(self, x):
        x = self.scale(x.flatten(1))
        return F.linear(x, self.output.weight) if self.borrow else self.output(x)


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.full((192,), 1.5))

    def forward(self, x):
        return x * self.factor


def test_layers_of_ones_own_and_unused_ones_are_differentiated():
    model, batch = Peculiar(), batch_of(3)
    dp_sgd_factory(10).check(model)
    _, update = differentiate(model, batch, step_of(3), clip=1e3, noise_multiplier=0.0)
    _, plain = backpropagate(model, batch, cross_entropy, step_of(3))
    torch.testing.assert_close(update, plain, rtol=1e-4, atol=1e-6)
    _, noisy = differentiate(model, batch, step_of(3), noise_multiplier=1.0)
    assert noisy["unused.weight"].all()


def test_a_weight_that_opacus_does_not_see_is_an_error():
    with pytest.raises(ValueError, match=r"dp_sgd: output\.weight is used outside its module"):
        differentiate(Peculiar(borrow=True), batch_of(3), step_of(), noise_multiplier=1.0)


@pytest.mark.parametrize("make", [lambda: convnet(4, (3, 32, 32)), lambda: resnet18(4, SHAPE)])
def test_batch_norm_is_refused_with_the_way_out(make):
    with pytest.raises(ValueError, match=r"dp_sgd: BatchNorm .* use .* model\.norm=group"):
        dp_sgd_factory(10).check(make())


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.BatchNorm1d(4, affine=False, track_running_stats=False), "BatchNorm .*norm=group"),
        (nn.InstanceNorm2d(3, affine=True, track_running_stats=True), "the buffer .*norm=group"),
        (nn.LSTM(4, 4), "Opacus cannot differentiate this model sample by sample: .*DPLSTM"),
        (nn.MultiheadAttention(4, 2), "Opacus cannot differentiate .*DPMultiheadAttention"),
    ],
)
def test_what_opacus_cannot_handle_is_refused(module, words):
    model = nn.Sequential(module, nn.Linear(4, 4))
    before = traces(model)
    with pytest.raises(ValueError, match=f"dp_sgd: {words}"):
        dp_sgd_factory(10).check(model)
    assert_untouched(model, before)


def test_models_without_batch_norm_pass_in_either_mode(model):
    defense = protect(defense=dp_sgd_factory(10))
    for training in (True, False):
        defense.check(model.train(training))


def test_a_run_with_batch_norm_is_refused_where_it_is_composed():
    with pytest.raises(ConfigError, match=r"defense: dp_sgd: BatchNorm .*model\.norm=group"):
        server_parts(f"{SMALL} defense=dp_sgd model=resnet18")
    server_parts(f"{SMALL} defense=dp_sgd model=resnet18 model.norm=group")


@pytest.mark.parametrize("rate", [0.16, 1.0])
@pytest.mark.parametrize("steps", [1, 7])
def test_the_calibrated_noise_lasts_for_the_rounds(rate, steps):
    defense, ledger = dp_sgd_factory(50, epsilon=10.7, delta=1e-5), Ledger()
    spent = []
    for _ in range(50):
        ledger.charge(0, defense.release(rate, steps))
        spent.append(ledger.epsilon())
    assert spent == sorted(set(spent))
    assert 0.9 * 10.7 < spent[-1] <= 10.7


def test_the_released_multiplier_is_the_one_that_was_used():
    model, defense = MODELS["mlp"](), dp_sgd_factory(30, clip=0.25)
    for rate, steps, expected in ((0.1, 1, 4), (0.4, 3, 1), (1.0, 1, 9)):
        step = step_of(expected, rate=rate, per_round=steps)
        _, update = defense.rules.differentiate(model, batch_of(0), cross_entropy, step)
        sigma = float(flat(update).std()) * expected / 0.25
        assert sigma == pytest.approx(defense.release(rate, steps).noise_multiplier, rel=0.05)


def test_a_given_multiplier_goes_before_the_budget():
    defense = dp_sgd_factory(30, epsilon=0.0001, noise_multiplier=0.7)
    assert defense.release(0.3, 2).noise_multiplier == 0.7


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rounds": 0}, "rounds must be a positive integer, got 0"),
        ({"clip": 0.0}, "clip must be a finite number above 0, got 0.0"),
        ({"epsilon": -1.0}, "epsilon must be a finite number above 0, got -1.0"),
        ({"epsilon": 0.001}, "no noise multiplier up to"),
        ({"delta": 0.0}, r"delta must be in \(0, 1\), got 0.0"),
        ({"delta": 1.0}, r"delta must be in \(0, 1\), got 1.0"),
        ({"noise_multiplier": -0.1}, "noise_multiplier must be a finite number of at least 0, got -0.1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        dp_sgd_factory(**{"rounds": 10} | settings)


def trained(overrides: str, *, client: int = 0, round: int = 1, **job):
    text = f"{SMALL} defense=dp_sgd {overrides}"
    parts, model = client_parts(text), server_parts(text).model
    generator = generator_for(0, round, client, "rules")
    before = copy.deepcopy(model.state_dict())
    result = parts.trainer(
        model, parts.data_of(client, 5), Job(round, 0.1, generator, parts.defense.rules, **job)
    )
    torch.testing.assert_close(dict(model.state_dict()), dict(before), rtol=0, atol=0)
    return result, parts.defense


@pytest.mark.parametrize("strategy", ["fed_sgd", "fed_avg training.epochs=2"])
@pytest.mark.parametrize("model", ["lenet", "mlp", "convnet model.norm=group"])
def test_both_trainers_train_under_it(strategy, model):
    overrides = f"strategy={strategy} model={model}"
    result, defense = trained(overrides)
    again, _ = trained(overrides)
    other, _ = trained(overrides, client=1)
    assert torch.equal(flat(result.update), flat(again.update))
    assert not torch.equal(flat(result.update), flat(other.update))
    assert torch.isfinite(flat(result.update)).all()
    steps = max(1, result.steps)
    sigma = defense.release(result.rate, steps).noise_multiplier
    # noise outweighs gradients of norm 1 at most, spread over so many parameters
    scale = 1.0 if result.steps == 0 else 0.1 * math.sqrt(steps)
    assert float(flat(result.update).std()) == pytest.approx(scale * sigma / 4, rel=0.1)


def test_every_sample_enters_a_batch_by_a_draw_of_its_own():
    text = f"{SMALL} defense=dp_sgd model=mlp defense.noise_multiplier=1"
    parts, model, data = client_parts(text), server_parts(text).model, client_parts(text).data_of(0, 5)
    drawn = []
    for round in range(1, 101):
        job = Job(round, 0.1, generator_for(0, round, 0, "rules"), parts.defense.rules, keep_batches=True)
        result = parts.trainer(model, data, job)
        assert result.samples == 4
        drawn.append(len(result.batches[0].labels))
    mean = sum(drawn) / 100
    variance = sum((n - mean) ** 2 for n in drawn) / 100
    # 16 samples, each with chance 1/4
    assert mean == pytest.approx(4, abs=5 * math.sqrt(3 / 100))
    assert variance == pytest.approx(3, rel=0.6)


def test_an_audited_round_has_the_noise_of_a_regular_one_on_its_own_batch():
    """Noise of the same multiplier, over the audit's batch size; with it taken off, the clipped gradient."""
    noisy, defense = trained("defense.clip=0.5", batch_size=1, keep_batches=True)
    regular, _ = trained("defense.clip=0.5")
    assert noisy.rate == regular.rate
    sigma = defense.release(noisy.rate, 1).noise_multiplier
    assert float(flat(noisy.update).std()) == pytest.approx(0.5 * sigma, rel=0.05)
    clean, _ = trained("defense.clip=0.5 defense.noise_multiplier=0", batch_size=1)
    assert float(torch.linalg.vector_norm(flat(clean.update))) == pytest.approx(0.5, rel=1e-4)
    assert len(noisy.batches[0].labels) == 1


def test_opacus_is_not_loaded_by_runs_without_it(repository):
    code = "import sys, fl_app.config.build; print('opacus' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_training_is_silent():
    model = MODELS["lenet"]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        differentiate(model, batch_of(3), step_of(), noise_multiplier=1.0)
