"""Data dealt by a `FederatedDataset`: by a stand-in, and by flwr-datasets itself where it is installed."""

import sys
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from fl_app import run
from fl_app.config.build import server_parts
from fl_app.config.compose import ConfigError
from fl_app.config.trust import WHOLE
from fl_app.data import DataUnavailable, Samples, federated, from_federated


class Table:
    """The part of a Hugging Face data set that is read."""

    def __init__(self, columns, names=None):
        self.columns, self.column_names = columns, list(columns)
        self.features = {name: SimpleNamespace(names=names) for name in columns}

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        if isinstance(key, int):
            return {name: values[key] for name, values in self.columns.items()}
        return self.columns[key]


class Source:
    """The part of a FederatedDataset that is read."""

    def __init__(self, parts, test=None):
        self.parts, self.test = parts, test
        self.partitioners = {"train": SimpleNamespace(num_partitions=len(parts))}

    def load_partition(self, number, split):
        return self.parts[number]

    def load_split(self, split):
        if self.test is None:
            raise ValueError(split)
        return self.test


def image(level, size=4, mode="L"):
    return Image.new(mode, (size, size), level)


def pictures(levels, labels):
    return Table({"image": [image(level) for level in levels], "label": labels}, names=["dark", "light"])


def rows(first, labels):
    return Table(
        {"age": [first + i for i in range(len(labels))], "word": ["x"] * len(labels), "label": labels}
    )


def test_images_keep_their_partition_their_bytes_and_the_names_of_their_classes():
    source = Source([pictures([1, 2, 3], [0, 0, 1]), pictures([9], [1])], pictures([5, 6], [0, 1]))
    data = from_federated(source)
    assert data.class_names == ("dark", "light")
    assert data.in_shape == (1, 4, 4)
    assert data.train.inputs[:, 0, 0, 0].tolist() == [1, 2, 3, 9]
    assert data.train.labels.tolist() == [0, 0, 1, 1]
    assert data.train.owners.tolist() == [0, 0, 0, 1]
    assert data.test.inputs[:, 0, 0, 0].tolist() == [5, 6]
    assert data.train.take(torch.tensor([3, 0])).owners.tolist() == [1, 0]


def test_numbers_are_scaled_by_the_training_rows_and_a_share_is_held_out():
    data = from_federated(Source([rows(0, ["no"] * 10), rows(50, ["yes"] * 10)]), test_fraction=0.3)
    assert data.feature_names == ("age",)
    assert data.class_names == ("no", "yes")
    assert data.test.labels.tolist() == [0] * 3 + [1] * 3
    assert data.train.owners.tolist() == [0] * 7 + [1] * 7
    torch.testing.assert_close(data.train.inputs.mean(), torch.tensor(0.0), atol=1e-6, rtol=0)
    torch.testing.assert_close(data.train.inputs.std(unbiased=False), torch.tensor(1.0))


def test_images_of_several_sizes_need_one():
    mixed = Table({"image": [image(1), image(2, size=6)], "label": [0, 1]}, names=["a", "b"])
    with pytest.raises(ValueError, match="set size"):
        from_federated(Source([mixed]))
    assert from_federated(Source([mixed], mixed), size=5).in_shape == (1, 5, 5)


@pytest.mark.parametrize(
    ("columns", "label", "word"),
    [
        ({"image": [image(1)], "label": [0]}, "digit", "label must be one of"),
        ({"text": ["x"], "label": [0]}, "label", "images or of numbers"),
    ],
)
def test_tables_that_cannot_be_read_are_refused(columns, label, word):
    with pytest.raises(ValueError, match=word):
        from_federated(Source([Table(columns)]), label=label)


def test_owners_must_be_one_a_sample():
    with pytest.raises(ValueError, match="owners"):
        Samples(torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64), owners=torch.zeros(3))


def own_data():
    """Return a data set whose client c has 4 + c images."""
    parts = [pictures([10 * c + i for i in range(4 + c)], [i % 2 for i in range(4 + c)]) for c in range(3)]
    return from_federated(Source(parts, pictures([1, 2], [0, 1])))


CUSTOM = f"data=custom data._target_={__name__}.own_data model=mlp model.hidden=[4] defense=none attack=none"


def test_clients_train_on_the_partitions(monkeypatch):
    monkeypatch.setitem(sys.modules, __name__, sys.modules[own_data.__module__])
    parts = server_parts(f"{CUSTOM} clients=3", WHOLE)
    assert parts.histogram.sum(1).tolist() == [4, 5, 6]
    for wrong, word in (("clients=4", "clients=3"), ("clients=3 partition=shards", "data.partitioner")):
        with pytest.raises(ConfigError, match=word):
            server_parts(f"{CUSTOM} {wrong}", WHOLE)


def test_without_the_extra_one_sentence_names_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr_datasets", None)
    with pytest.raises(DataUnavailable, match=r"fl-app\[datasets\]"):
        federated(tmp_path)
    with pytest.raises(ValueError, match="either root"):
        federated()


def test_a_local_folder_is_dealt_by_flwr_datasets(tmp_path):
    pytest.importorskip("flwr_datasets", reason="the extra fl-app[datasets] is not installed")
    for split, count in (("train", 24), ("test", 6)):
        for number, name in enumerate(("dark", "light")):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                image(100 * number + i, size=8, mode="L").save(folder / f"{i}.png")
    result = run(
        "data=federated",
        f"data.root={tmp_path / 'images'}",
        "data.partitioner=DirichletPartitioner",
        "data.arguments={alpha:1.0,partition_by:label,min_partition_size:2}",
        *("clients=3", "rounds=1", "model=mlp", "model.hidden=[4]", "defense=none", "attack=none"),
        f"run_dir={tmp_path / 'run'}",
    )
    assert result.rounds[0].clients == 3
    assert result.config["data"]["arguments"]["alpha"] == 1.0
