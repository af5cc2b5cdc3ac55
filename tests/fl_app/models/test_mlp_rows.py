"""The perceptron takes rows of numbers as well as images; other shapes are refused."""

import pytest
import torch

from fl_app.models import mlp


def test_it_takes_rows():
    assert mlp(2, (53,), hidden=(8,))(torch.zeros(4, 53)).shape == (4, 2)


@pytest.mark.parametrize("shape", [(0,), (3, 4), (True,), ()])
def test_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"mlp: .*in_shape"):
        mlp(2, shape)
