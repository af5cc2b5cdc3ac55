"""Stand-ins for hub data sets: tables, partitions and the methods that apps call."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fl_app.audit.hub import local_hub
from fl_app.audit.hub_dataset import Dataset
from fl_app.audit.partitioners import DirichletPartitioner, IidPartitioner, PathologicalPartitioner
from fl_app.audit.tables import read_tables


@pytest.fixture
def scans(tmp_path):
    for split, number in (("train", 12), ("test", 3)):
        for label, name in enumerate(("healthy", "ill")):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for i in range(number):
                y, x = np.mgrid[0:8, 0:8] / 8
                pixels = np.exp(-4 * ((x - 0.2 * label - i / 20) ** 2 + (y - 0.5) ** 2))
                Image.fromarray((255 * pixels).astype(np.uint8)).save(folder / f"{i}.png")
    return tmp_path


def test_an_app_with_hub_data_is_audited_without_the_hub(audit, scans):
    report = audit("hub_data", data={"someone/scans": scans}, exits=2)
    assert report.understood
    assert report.exits.places == ["data set"]
    granted = report.ladder.results[0].granted
    assert "Normalize" in granted


def test_a_missing_data_set_is_named(audit):
    with pytest.raises(ValueError, match="someone/scans"):
        audit("hub_data")


def test_stand_ins_leave_no_module_behind(scans):
    before = {name for name in sys.modules if name.startswith(("datasets", "flwr_datasets"))}
    with local_hub({"a/b": scans}):
        import datasets

        assert len(datasets.load_dataset("a/b", split="train[:50%]+test")) == 18
    assert {name for name in sys.modules if name.startswith(("datasets", "flwr_datasets"))} == before


def test_an_installed_package_stays_whole_and_reads_local_files(scans, tmp_path, monkeypatch):
    package = tmp_path / "site" / "datasets"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "def load_dataset(name): raise OSError\nclass DownloadConfig: pass\n"
    )
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    with local_hub({"a/b": scans}):
        from datasets import DownloadConfig, load_dataset

        assert DownloadConfig.__module__ == "datasets"
        assert len(load_dataset("a/b", split="train")) == 24
    with pytest.raises(OSError):
        sys.modules.pop("datasets").load_dataset("a/b")


def test_csv_columns_are_typed_and_every_fifth_row_is_a_test_row(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("age,name,dose\n" + "".join(f"{i},n{i},{i / 2}\n" for i in range(10)))
    tables = read_tables(path)
    assert tables["test"]["age"] == [4, 9]
    assert tables["train"]["dose"][:2] == [0.0, 0.5]
    assert tables["train"]["name"][0] == "n0"


def test_text_lines_may_have_labels(tmp_path):
    path = tmp_path / "reviews.txt"
    path.write_text("good\tI liked it\nbad\tno\ngood\tyes\nbad\tnever\ngood\tfine\n")
    assert read_tables(path)["train"]["label"] == [1, 0, 1, 0]


@pytest.mark.parametrize("content", ["a,b\n1\n", "a,b\n"])
def test_a_broken_csv_is_refused(tmp_path, content):
    path = tmp_path / "rows.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match="rows"):
        read_tables(path)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.lists(st.integers(0, 3), min_size=24, max_size=60), st.integers(0, 9))
def test_partitions_divide_the_samples(number, labels, seed):
    dataset = Dataset({"label": labels, "row": list(range(len(labels)))})
    for partitioner in (
        IidPartitioner(number),
        DirichletPartitioner(number, "label", 0.5, seed=seed),
        PathologicalPartitioner(max(number, len(set(labels))), "label", 1),
    ):
        partitioner.dataset = dataset
        rows = [
            row for i in range(partitioner.num_partitions) for row in partitioner.load_partition(i)["row"]
        ]
        assert sorted(rows) == list(range(len(labels)))


def test_columns_answer_to_the_names_that_apps_use():
    dataset = Dataset({"image": ["p", "q"], "label": [0, 1]})
    assert dataset.with_transform(lambda batch: {"x": batch["img"]})[0] == {"x": "p"}
    assert dataset["labels"] == [0, 1]
    assert dataset.features["fine_label"].num_classes == 2
    with pytest.raises(KeyError, match="wavelength"):
        dataset[0]["wavelength"]


def test_the_data_set_has_the_usual_methods():
    dataset = Dataset({"text": ["a", "bb", "ccc", "dddd"], "label": [0, 1, 0, 1]})
    sizes = dataset.map(lambda row: {"size": len(row["text"])})
    assert sizes["size"] == [1, 2, 3, 4]
    batched = dataset.map(lambda rows: {"up": [t.upper() for t in rows["text"]]}, batched=True)
    assert batched.remove_columns("text").column_names == ["label", "up"]
    parts = dataset.train_test_split(test_size=0.25, seed=3)
    assert sorted([*parts["train"]["text"], *parts["test"]["text"]]) == ["a", "bb", "ccc", "dddd"]
    assert dataset.rename_column("label", "labels").filter(lambda row: row["labels"] == 1)["text"] == [
        "bb",
        "dddd",
    ]
    assert dataset.with_format("torch")["label"].tolist() == [0, 1, 0, 1]
    assert dataset.with_format("pandas")[:].shape == (4, 2)
