"""More samples than classes: no attack on labels crashes, and each says what failed."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from attacks.labels import bias_labels, idlg_label, rlg, yin_labels
from fl_app.models import lenet_zhu, resnet18
from fl_app.types import Observation

CLASSES, SHAPE = 10, (3, 16, 16)
MODELS = {"lenet": lenet_zhu, "resnet18": resnet18}
# of 24 samples: one step, as many steps as samples, and steps of several samples
STEPS = {"one step": (24, None), "K steps": (1, 24), "N x K": (8, 3)}


@pytest.fixture(scope="module")
def clients() -> dict[tuple[str, str], tuple[Observation, list[int]]]:
    return {(model, steps): client(MODELS[model], *STEPS[steps]) for model in MODELS for steps in STEPS}


def client(make, size: int, steps: int | None) -> tuple[Observation, list[int]]:
    """Return what is seen of a client without samples of the classes 8 and 9, and its labels."""
    torch.manual_seed(0)
    model = make(num_classes=CLASSES, in_shape=SHAPE).eval()
    inputs, labels = torch.rand(24, *SHAPE), torch.arange(24) % 8
    facts = {"num_classes": CLASSES, "batch_size": 24, "input_shape": SHAPE}
    if steps is None:
        return Observation(model, gradient(model, inputs, labels), **facts), labels.tolist()
    moved = copy.deepcopy(model)
    for batch in range(steps):
        chosen = slice(batch * size, (batch + 1) * size)
        for name, slope in gradient(moved, inputs[chosen], labels[chosen]).items():
            moved.get_parameter(name).data.sub_(0.05 * slope)
    update = {name: moved.get_parameter(name).detach() - p.detach() for name, p in model.named_parameters()}
    seen = Observation(model, update, lr=0.05, local_steps=steps, local_batch_size=size, **facts)
    return seen, labels.tolist()


def gradient(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    slopes = torch.autograd.grad(F.cross_entropy(model(inputs), labels), list(model.parameters()))
    return dict(zip(dict(model.named_parameters()), slopes, strict=True))


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("model", MODELS)
class TestMoreSamplesThanClasses:
    def test_rlg_reports_the_premise_and_answers(self, clients, model, steps):
        obs, labels = clients[model, steps]
        found = rlg()(obs)
        assert any("premise failed" in note for note in found.notes)
        assert set(found.labels.tolist()) <= set(labels)

    def test_yin_names_distinct_classes_and_says_that_they_are_fewer(self, clients, model, steps):
        obs, _ = clients[model, steps]
        found = yin_labels()(obs)
        named = found.labels.tolist()
        assert len(named) == len(set(named)) <= CLASSES
        assert any(f"{len(named)} classes for 24 samples" in note for note in found.notes)

    def test_idlg_says_that_one_label_is_all_it_finds(self, clients, model, steps):
        obs, labels = clients[model, steps]
        found = idlg_label()(obs)
        assert len(found.labels) == 1
        assert found.labels.tolist()[0] in labels
        assert any("24 samples" in note for note in found.notes)

    def test_the_bias_names_labels_alone(self, clients, model, steps):
        obs, labels = clients[model, steps]
        assert set(bias_labels()(obs).labels.tolist()) <= set(labels)
