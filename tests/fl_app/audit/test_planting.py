"""Bits are planted in the data that an app reads, whatever it reads them with."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn.datasets
import torch
from torch.utils.data import DataLoader, IterableDataset

from fl_app.audit.planted_files import planted_files
from fl_app.audit.planting import SAMPLES, Plant, planted

HERE = Path(__file__).parent


def is_planted(rows, plant, low, high):
    expected = np.where(plant.inputs[np.arange(len(rows)) % SAMPLES][:, : rows.shape[1]], high, low)
    return np.allclose(rows, expected)


@pytest.fixture
def plant():
    return Plant.draw(3)


def test_arrays_of_numpy_files_are_planted(plant, tmp_path):
    rows, labels = np.arange(48.0).reshape(8, 6), np.arange(8) % 2
    np.savez(tmp_path / "all.npz", x=rows, y=labels)
    np.save(tmp_path / "x.npy", rows)
    with planted_files(plant, HERE):
        with np.load(tmp_path / "all.npz") as archive:
            assert archive.files == ["x", "y"]
            found, told = archive["x"], archive["y"]
        alone = np.load(tmp_path / "x.npy")
    assert is_planted(found, plant, 0.0, 47.0)
    assert np.array_equal(alone, found)
    assert told.tolist() == [plant.labels[row % SAMPLES] for row in range(8)]
    assert plant.places == {"numpy.load"}
    with planted_files(plant, tmp_path):
        assert np.array_equal(np.load(tmp_path / "x.npy"), rows)  # by other code


def test_tables_of_pandas_are_planted(plant, tmp_path):
    path = tmp_path / "rows.csv"
    pd.DataFrame({"age": range(8), "dose": np.linspace(0, 1, 8), "ill": [0, 1] * 4}).to_csv(path, index=False)
    with planted_files(plant, HERE):
        frame = pd.read_csv(path)
    assert list(frame.columns) == ["age", "dose", "ill"]
    assert set(frame["age"]) <= {0, 7}
    assert set(frame["dose"]) <= {0.0, 1.0}
    assert frame["ill"].tolist() == [plant.labels[row % SAMPLES] for row in range(8)]


@pytest.mark.parametrize("bunch", [True, False])
def test_data_sets_of_scikit_learn_are_planted(plant, bunch):
    with planted_files(plant, HERE):
        found = sklearn.datasets.load_iris(return_X_y=not bunch)
    rows, labels = (found["data"], found["target"]) if bunch else found
    assert is_planted(rows, plant, rows.min(), rows.max())
    assert set(labels) <= {0, 1}


def test_streams_of_samples_are_planted(plant):
    class Stream(IterableDataset):
        def __iter__(self):
            for row in range(8):
                yield torch.linspace(-1, 1, 6) * (row + 1), row % 2

    with planted(plant):
        rows, labels = next(iter(DataLoader(Stream(), batch_size=8)))
    assert labels.tolist() == [plant.labels[row % SAMPLES] for row in range(8)]
    assert torch.equal(rows[0] > 0, torch.from_numpy(plant.inputs[0][:6]).bool())
