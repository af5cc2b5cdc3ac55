"""The album: recognisable subjects, other people in its test faces, views inside the picture."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fl_app.data.album import SHIFT, SUBJECTS, _faces, _start, album
from fl_app.data.photographs import load_photograph


@pytest.fixture(scope="module")
def small():
    return album(size=24, train_per_class=6, test_per_class=3)


def test_is_ten_subjects_in_equal_numbers(small):
    assert small.class_names == ("face", *SUBJECTS)
    assert small.in_shape == (3, 24, 24)
    assert small.train.labels.tolist() == sorted([*range(10)] * 6)
    assert small.test.labels.tolist() == sorted([*range(10)] * 3)
    assert small.train.inputs.dtype == torch.uint8


def test_is_the_same_for_the_same_seed_and_more_views_leave_the_first_as_they_are(small):
    again = album(size=24, train_per_class=6, test_per_class=3)
    other = album(size=24, train_per_class=6, test_per_class=3, seed=1)
    assert torch.equal(again.train.inputs, small.train.inputs)
    assert torch.equal(again.test.inputs, small.test.inputs)
    assert not torch.equal(other.train.inputs, small.train.inputs)


def test_no_test_face_is_one_of_the_training_faces():
    train, test = ([np.asarray(face) for face in _faces(part)] for part in ("train", "test"))
    assert (len(train), len(test)) == (80, 20)
    assert not any(np.array_equal(a, b) for a in train for b in test)


def test_every_view_differs_and_none_is_blank(small):
    views = torch.cat([small.train.inputs, small.test.inputs]).flatten(1)
    assert len(views.unique(dim=0)) == len(views)
    assert views.float().std(1).min() > 5


@given(st.sampled_from(sorted(SUBJECTS)), st.tuples(*[st.floats(0, 1, exclude_max=True)] * 2))
def test_a_window_lies_inside_its_picture_and_near_its_subject(name, draws):
    subject, picture = SUBJECTS[name], load_photograph(name)
    for centre, draw, length in zip((subject.x, subject.y), draws, picture.size, strict=True):
        for side in (round(subject.side * 0.75), min(subject.side, length)):
            start = _start(centre, draw, subject.side, side, length)
            assert 0 <= start <= length - side
            asked = centre + (2 * draw - 1) * SHIFT * subject.side - side / 2
            assert start in (round(asked), 0, length - side)


@pytest.mark.parametrize("wrong", [{"size": 0}, {"train_per_class": 0}, {"test_per_class": -1}])
def test_a_wrong_number_is_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        album(**wrong)
