"""Faces from scikit-image's wheel: as many of each class, split without overlap, resized if asked for."""

from __future__ import annotations

import pytest
import torch
from skimage.data import lfw_subset

from fl_app.data import faces


def test_has_a_hundred_faces_and_a_hundred_others_each_once():
    data = faces()
    assert data.in_shape == (1, 25, 25)
    assert data.class_names == ("something else", "face")
    assert data.train.labels.bincount().tolist() == [80, 80]
    assert data.test.labels.bincount().tolist() == [20, 20]
    found = torch.cat([data.train.inputs, data.test.inputs]).flatten(1)
    theirs = (torch.from_numpy(lfw_subset()) * 255).round().to(torch.uint8).flatten(1)
    assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, theirs.tolist()))


def test_the_faces_are_those_that_come_first():
    data = faces()
    shown = {tuple(image) for image in data.train.inputs[data.train.labels == 1].flatten(1).tolist()}
    first = (torch.from_numpy(lfw_subset()[:100]) * 255).round().to(torch.uint8).flatten(1).tolist()
    assert shown <= {tuple(image) for image in first}


def test_is_resized_and_dealt_by_its_seed():
    data = faces(size=32, test_fraction=0.1)
    assert data.in_shape == (1, 32, 32)
    assert len(data.test) == 20
    assert torch.equal(data.train.inputs, faces(size=32, test_fraction=0.1).train.inputs)
    assert not torch.equal(data.train.inputs, faces(size=32, test_fraction=0.1, seed=1).train.inputs)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "faces: size must be at least 1"),
        ({"test_fraction": 1.0}, "faces: test_fraction must be"),
    ],
)
def test_refuses_what_cannot_be(settings, message):
    with pytest.raises(ValueError, match=message):
        faces(**settings)
