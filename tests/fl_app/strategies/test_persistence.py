"""Strategies and optimisers from outside of the package: resumed bit for bit, or refused in a sentence."""

import re
import sys
from textwrap import dedent

import pytest
from cut_runs import MLP, assert_same, interrupted, read, without_pictures, words

from fl_app.config.compose import ConfigError
from fl_app.experiments.job import run_job
from fl_app.strategies import persistence

STRANGERS = """
import logging
import random

import torch

from fl_app.strategies import FedAvg, FedSGD, ServerOptimiser

logger = logging.getLogger(__name__)
MEMORY = {}


def blend(old, new):
    return {name: 0.5 * old[name] + d if old else d for name, d in new.items()}


class Clipped(FedAvg):
    def accelerate(self, mean):
        logger.info("clipping")
        return {name: d.clamp(-0.01, 0.01) for name, d in mean.items()}


class Saving(FedSGD):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.trail, self.norms = {}, []

    def accelerate(self, mean):
        self.trail = blend(self.trail, mean)
        self.norms.append(sum(float(d.norm()) for d in mean.values()))
        return {name: d / (1 + self.norms[0]) for name, d in self.trail.items()}

    def history(self):
        return super().history() | {"trail": self.trail, "norms": tuple(self.norms)}

    def restore(self, history):
        super().restore(history)
        self.trail, self.norms = history["trail"], list(history["norms"])


class Scratching(FedSGD):
    passing = frozenset({"scratch"})

    def step(self, mean, server_round):
        self.scratch = mean
        return super().step(self.scratch, server_round)


class Forgetful(FedSGD):
    trail = {}

    def accelerate(self, mean):
        self.trail = blend(self.trail, mean)
        return self.trail


class Fading(FedSGD):
    def step(self, mean, server_round):
        self.fraction *= 0.9
        return super().step(mean, server_round)


class InClass(FedSGD):
    seen = []

    def step(self, mean, server_round):
        self.seen.append(server_round)
        return super().step({name: d / len(self.seen) for name, d in mean.items()}, server_round)


class InModule(FedSGD):
    def accelerate(self, mean):
        return remember(mean)


def remember(mean):
    MEMORY["trail"] = blend(MEMORY.get("trail", {}), mean)
    return MEMORY["trail"]


class Drawing(FedSGD):
    def accelerate(self, mean):
        return {name: d + 0.01 * torch.randn_like(d) for name, d in mean.items()}


class Tossing(FedSGD):
    def accelerate(self, mean):
        return mean if random.random() < 0.5 else {name: 2 * d for name, d in mean.items()}


class Generating(FedSGD):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.generator = torch.Generator().manual_seed(0)

    def accelerate(self, mean):
        return {n: d + 0.01 * torch.randn(d.shape, generator=self.generator) for n, d in mean.items()}


class Unstorable(Saving):
    def history(self):
        return super().history() | {"trail": object()}


class Uncopied(FedSGD):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.source = (number for number in range(100))


def lion(beta=0.9):
    def init(weights):
        return {"m": {name: torch.zeros_like(w) for name, w in weights.items()}}

    def update(mean, state, weights, moment):
        m = {name: beta * state["m"][name] + (1 - beta) * g for name, g in mean.items()}
        return {name: w - moment.lr * m[name].sign() for name, w in weights.items()}, {"m": m}

    return ServerOptimiser(init, update)


def leaky():
    trail = {}

    def update(mean, state, weights, moment):
        trail.update(blend(trail, mean))
        return {name: w - moment.lr * trail[name] for name, w in weights.items()}, state

    return ServerOptimiser(lambda weights: {}, update)


class Leaky:
    def __init__(self):
        self.steps = 0

    def update(self, mean, state, weights, moment):
        self.steps += 1
        return {name: w - moment.lr / self.steps * mean[name] for name, w in weights.items()}, state


def leaky_object():
    return ServerOptimiser(lambda weights: {}, Leaky().update)
"""
OPTIMISER = "strategy=fed_avg +strategy.optimiser._target_=strangers."


@pytest.fixture(autouse=True)
def _without_pictures(monkeypatch):
    without_pictures(monkeypatch)


@pytest.fixture(autouse=True)
def strangers(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("outside")
    (folder / "strangers.py").write_text(dedent(STRANGERS))
    monkeypatch.syspath_prepend(folder)
    named = re.findall(r"^(?:class|def) (\w+)", dedent(STRANGERS), re.MULTILINE)
    monkeypatch.setenv("FL_APP_ALLOW_TARGETS", ",".join(f"strangers.{name}" for name in named))
    yield
    sys.modules.pop("strangers", None)


@pytest.mark.parametrize(
    "overrides",
    [
        "strategy=fed_avg strategy._target_=strangers.Clipped",
        "strategy._target_=strangers.Saving",
        "strategy._target_=strangers.Scratching",
        "strategy._target_=strangers.Drawing",
        f"{OPTIMISER}lion",
        "+strategy.optimiser._target_=strangers.lion +strategy.optimiser.beta=0.5",
    ],
)
def test_a_strangers_work_that_hides_nothing_resumes_bit_for_bit(overrides, tmp_path, monkeypatch):
    overrides = f"{MLP} defense=none {overrides}"
    run_job(words(overrides), folder=tmp_path / "whole")
    interrupted(overrides, tmp_path / "cut", monkeypatch)
    sys.modules.pop("strangers")  # as in a new process
    run_job([f"resume={tmp_path / 'cut'}"])
    assert_same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ("strategy._target_=strangers.Forgetful", "'trail'"),
        ("strategy._target_=strangers.Fading", "'fraction'"),
        ("strategy._target_=strangers.InClass", "class InClass"),
        ("strategy._target_=strangers.InModule", "class InModule or its module"),
        ("strategy._target_=strangers.Tossing", "Python's global generator"),
        ("strategy._target_=strangers.Generating", "'generator'"),
        ("strategy._target_=strangers.Unstorable", "cannot be restored"),
        ("strategy._target_=strangers.Uncopied", "cannot be copied"),
        (f"{OPTIMISER}leaky", "function leaky"),
        (f"{OPTIMISER}leaky_object", "'optimiser'"),
    ],
)
def test_a_strangers_hidden_state_is_named_and_the_resume_refused(overrides, named, tmp_path, monkeypatch):
    interrupted(f"{MLP} defense=none {overrides}", tmp_path, monkeypatch)
    (note,) = [note for note in read(tmp_path)["notes"] if "cannot be resumed" in note]
    assert named in note
    before = (tmp_path / "result.json").read_bytes()
    with pytest.raises(ConfigError) as refused:
        run_job([f"resume={tmp_path}"])
    assert note in str(refused.value)
    assert (tmp_path / "result.json").read_bytes() == before


PRIVATE = f"{MLP} training.steps=2 dp=client dp.epsilon=null dp.noise_multiplier=1"


@pytest.mark.parametrize(
    "overrides",
    [
        f"{MLP} defense=dgp strategy.momentum=0.9 fraction=0.6",
        f"{MLP} defense=adgp defense.location=vote",
        f"{MLP} defense=dp_sgd strategy=fed_yogi",
        f"{PRIVATE} defense=fl_top defense.chosen_by=vote defense.share=0.1 fraction=0.8",
        f"{PRIVATE} defense=fl_std secagg=on clients=4",
        f"{MLP} training.steps=2 defense=fl_cs defense.share=0.1",
        "model=convnet model.width=4 defense=none strategy=fed_avg bn=sync",
    ],
)
def test_the_packages_own_strategies_keep_nothing_beside_their_history(overrides, tmp_path, monkeypatch):
    """They are not tried in ordinary runs; a stranger's subclass of one is."""
    tried = []
    honest = persistence.Rehearsal.refusal

    def refusal(self, history):
        tried.append(honest(self, history))
        assert self._built is not None
        return tried[-1]

    monkeypatch.setattr(persistence, "_is_foreign", lambda part: True)
    monkeypatch.setattr(persistence.Rehearsal, "refusal", refusal)
    run_job(words(f"{overrides} rounds=3"), folder=tmp_path)
    assert len(tried) >= 3
    assert set(tried) == {None}
