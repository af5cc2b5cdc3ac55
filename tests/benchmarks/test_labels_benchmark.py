"""The benchmark of label attacks scores which classes were named, and how many samples were counted."""

import pytest
import torch
from torch import nn

from attacks.base import LabelSet
from benchmarks import trained_labels
from benchmarks.labels import header, line, measure
from fl_app.data import Dataset, Samples
from fl_app.types import Observation


def found(labels, counts=None, rank=None):
    counted = None if counts is None else torch.tensor(counts)
    return LabelSet(torch.tensor(labels), counts=counted, rank=rank)


def test_a_row_has_the_means_over_batches_and_how_often_counts_were_right():
    truth = torch.tensor([1, 1, 2])
    answers = iter(
        [found([1, 2], [2, 1], rank=3), found([1, 2], [1, 2], rank=2), found([1, 2]), found([1, 7])]
    )
    seen = [(Observation(nn.Linear(1, 1), {}), truth)] * 4
    row = measure(lambda obs: next(answers), seen)
    assert (row.precision, row.recall, row.exact) == (0.875, 0.875, 0.75)
    assert (row.counted, row.counts_right) == (0.5, 0.25)
    assert row.rank_error == 0.5


def test_every_row_is_as_wide_as_the_header():
    row = measure(lambda obs: found([0]), [(Observation(nn.Linear(1, 1), {}), torch.tensor([0]))])
    titles, rule = header(["model", "N"]).splitlines()
    assert titles.count("|") == rule.count("|") == line(["a", "1"], "RLG", row).count("|")


@pytest.fixture
def brightness() -> Dataset:
    """Twenty dark images and twenty bright ones."""
    labels = torch.arange(40) % 2
    inputs = (20 + 200 * labels).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 8, 8).clone()
    samples = Samples(inputs, labels)
    return Dataset.of("brightness", train=samples, test=samples, class_names=["dark", "bright"])


def test_stages_go_on_from_one_another_and_the_model_learns(brightness):
    torch.manual_seed(0)
    model = trained_labels.lenet_zhu(num_classes=2, in_shape=(3, 8, 8))
    right, reached = [], []
    for stage in trained_labels.stages(model, brightness, [0, 10, 30]):
        reached.append(stage)
        right.append(trained_labels.accuracy(model, brightness))
        assert not model.training
    assert reached == [0, 10, 30]
    assert right[0] < right[2] == 1.0
