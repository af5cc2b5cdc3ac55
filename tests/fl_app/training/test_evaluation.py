"""One pass over the samples gives every score, each as scikit-learn or one big batch has it."""

import dataclasses

import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, roc_auc_score
from torch import nn
from torch.nn import functional as F

from fl_app.data import Samples
from fl_app.training import evaluate


def rows(classes: int, count: int = 1203) -> Samples:
    """More rows than one chunk takes, half of them of class 0."""
    generator = torch.Generator().manual_seed(classes)
    labels = torch.randint(classes, (count,), generator=generator)
    labels[::2] = 0
    inputs = torch.randn(count, 7, generator=generator)
    return Samples(inputs + 0.5 * F.one_hot(labels, 7), labels)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_every_score_is_that_of_scikit_learn_on_the_whole(classes):
    samples, model = rows(classes), nn.Linear(7, classes)
    logits = model(samples.inputs).detach()
    found = evaluate(model, samples, (), ())
    assert found.accuracy == pytest.approx(accuracy_score(samples.labels, logits.argmax(1)))
    assert found.balanced_accuracy == pytest.approx(balanced_accuracy_score(samples.labels, logits.argmax(1)))
    assert found.balanced_accuracy != pytest.approx(found.accuracy)
    assert found.loss == pytest.approx(float(F.cross_entropy(logits, samples.labels)), rel=1e-5)
    if classes == 2:
        assert found.auroc == pytest.approx(roc_auc_score(samples.labels, logits[:, 1] - logits[:, 0]))
    else:
        assert found.auroc is None


def test_the_area_tells_apart_what_a_softmax_would_round_to_one():
    model = nn.Linear(2, 2, bias=False)
    nn.init.eye_(model.weight)
    inputs = torch.tensor([[0.0, 200.0], [0.0, 300.0], [0.0, 400.0]])
    assert evaluate(model, Samples(inputs, torch.tensor([0, 1, 1])), (), ()).auroc == 1.0


def test_every_sample_passes_through_the_model_once():
    samples, model, seen = rows(2), nn.Linear(7, 2), []
    model.register_forward_hook(lambda module, args, output: seen.append(args[0]))
    evaluate(model, samples, (), ())
    assert torch.equal(torch.cat(seen), samples.inputs)


@pytest.mark.parametrize("weight", [float("nan"), float("inf")])
def test_a_diverged_model_is_scored_without_an_area(weight):
    samples, model = rows(2), nn.Linear(7, 2)
    nn.init.constant_(model.weight, weight)
    found = evaluate(model, samples, (), ())
    assert found.auroc is None
    assert found.balanced_accuracy == 0.5


def test_one_class_alone_has_no_area():
    samples = rows(2)
    found = evaluate(nn.Linear(7, 2), samples.take(samples.labels == 1), (), ())
    assert found.auroc is None
    assert found.balanced_accuracy == found.accuracy


def test_one_logit_scores_as_two_of_which_the_first_is_zero():
    samples, model = rows(2), nn.Linear(7, 1)
    logit = model(samples.inputs).detach()[:, 0]
    found = evaluate(model, samples, (), ())
    both = nn.Linear(7, 2)
    with torch.no_grad():
        both.weight.copy_(torch.cat([torch.zeros(1, 7), model.weight]))
        both.bias.copy_(torch.cat([torch.zeros(1), model.bias]))
    expected = evaluate(both, samples, (), ())
    assert found == dataclasses.replace(expected, loss=pytest.approx(expected.loss, rel=1e-6))
    assert found.accuracy == pytest.approx(accuracy_score(samples.labels, logit > 0))
    assert found.auroc == pytest.approx(roc_auc_score(samples.labels, logit))
    assert found.balanced_accuracy == pytest.approx(balanced_accuracy_score(samples.labels, logit > 0))
