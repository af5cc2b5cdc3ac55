"""Hospitals, chest films, a census and DICOM files: what is read, and what is refused."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fl_app.config.build import client_parts, server_parts
from fl_app.config.trust import WHOLE
from fl_app.data import DataUnavailable, adult, dicom, facts_of, heart_disease, own_samples, pneumonia
from fl_app.data.heart_disease import CENTRES, FEATURES

CELLS = "63,1,{cp},145,{chol},1,{ecg},150,0,2.3,?,?,?,{target}"


def write_centre(folder, centre, count=20, bad=""):
    rows = [
        CELLS.format(cp=1 + i % 4, chol=200 + i, ecg=i % 3, target=i % 2 * (1 + i % 3)) for i in range(count)
    ]
    rows += ["63,1,4,?,233,1,2,150,0,2.3,3,0,6,0", *([bad] if bad else [])]
    (folder / f"processed.{centre}.data").write_text("\n".join(rows) + "\n")


def test_four_hospitals_are_prepared_as_another_library_prepares_them(shared_data):
    from sklearn.model_selection import train_test_split

    found = heart_disease(shared_data)
    assert found.feature_names == FEATURES
    frames, sets, owners = [], [], []
    for number, centre in enumerate(CENTRES):
        table = pd.read_csv(shared_data / "heart-disease" / f"processed.{centre}.data", na_values="?")
        table = table.drop(columns=["slope", "ca", "thal"]).dropna().astype(float)
        target = (table["target"] > 0).astype(int).to_numpy()
        rows = np.arange(len(table))
        stratify = target if min((target == 0).sum(), (target == 1).sum()) > 2 else None
        train, _ = train_test_split(
            rows, train_size=0.66, test_size=1 - 0.66, random_state=43, stratify=stratify
        )
        frames.append(table)
        sets += np.isin(rows, train).tolist()
        owners += [number] * len(table)
    assert [owners.count(i) for i in range(4)] == [303, 261, 46, 130]
    whole = pd.get_dummies(pd.concat(frames, ignore_index=True), columns=["cp", "restecg"], drop_first=True)
    labels = (whole.pop("target") > 0).to_numpy()
    features, train, owners = whole.to_numpy(dtype=float), np.array(sets), np.array(owners)
    together = heart_disease(shared_data, scaled_together=True)
    everyone = (features - features[train].mean(0)) / (features[train].std(0, ddof=1) + 1e-9)
    np.testing.assert_allclose(together.test.inputs.numpy(), everyone[~train], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(together.train.inputs.numpy(), everyone[train], rtol=1e-4, atol=1e-4)
    for number in range(4):
        own = features[train & (owners == number)]
        scaled = (features[owners == number] - own.mean(0)) / (own.std(0, ddof=1) + 1e-9)
        for part, mask in ((found.train, train), (found.test, ~train)):
            mine = part.sources == number
            expected = scaled[mask[owners == number]]
            np.testing.assert_allclose(part.inputs[mine].numpy(), expected, rtol=1e-4, atol=1e-4)
            assert part.labels[mine].tolist() == labels[mask & (owners == number)].tolist()


def test_every_hospital_is_one_client(tmp_path):
    for centre, count in zip(CENTRES, (20, 30, 12, 16), strict=True):
        write_centre(tmp_path, centre, count)
    text = f"data=heart_disease data.root={tmp_path} partition=natural clients=4 model=mlp attack=none"
    parts = client_parts(text, WHOLE)
    sizes = sorted(len(parts.data_of(client, 4)) for client in range(4))
    assert sizes == [7, 10, 13, 19]
    for client in range(4):
        assert len(parts.data_of(client, 4).samples.sources.unique()) == 1
    assert server_parts(text, WHOLE).histogram.count_nonzero(dim=1).tolist() == [1, 1, 1, 1]


def test_classes_of_a_hospital_can_be_balanced(tmp_path):
    for centre in CENTRES:
        write_centre(tmp_path, centre)
        rows = (tmp_path / f"processed.{centre}.data").read_text().splitlines()
        (tmp_path / f"processed.{centre}.data").write_text("\n".join([*rows, *rows[:1] * 10]) + "\n")
    text = f"data=heart_disease data.root={tmp_path} partition=natural clients=4 model=mlp balance=true"
    labels = client_parts(f"{text} attack=none", WHOLE).data_of(0, 4).samples.labels
    assert labels.bincount().unique().numel() == 1


def test_a_hospital_brings_its_own_file(tmp_path):
    for centre in CENTRES:
        write_centre(tmp_path, centre)
    facts = facts_of(heart_disease(tmp_path))
    own = tmp_path / "own"
    own.mkdir()
    write_centre(own, "leipzig", 9)
    samples = own_samples("fl_app.data.heart_disease", own, facts, {})
    assert len(samples) == 9
    torch.testing.assert_close(samples.inputs.mean(0), torch.zeros(13), atol=1e-5, rtol=0)
    write_centre(own, "essen", 9)
    with pytest.raises(ValueError, match="one file"):
        own_samples("fl_app.data.heart_disease", own, facts, {})


@pytest.mark.parametrize("bad", ["1,2,3", CELLS.format(cp=1, chol="high", ecg=0, target=0)])
def test_a_damaged_table_is_refused_with_its_row(tmp_path, bad):
    for centre in CENTRES:
        write_centre(tmp_path, centre, bad=bad)
    with pytest.raises(ValueError, match=r"processed\.cleveland\.data: row 22"):
        heart_disease(tmp_path)
    with pytest.raises(DataUnavailable, match="heart_disease"):
        heart_disease(tmp_path / "nowhere")


def write_films(folder, **more):
    generator = np.random.default_rng(0)
    content = {}
    for part, count in (("train", 12), ("val", 4), ("test", 6)):
        content[f"{part}_images"] = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        content[f"{part}_labels"] = (np.arange(count) % 2).astype(np.uint8).reshape(-1, 1)
    np.savez(folder / "pneumoniamnist.npz", **(content | more))
    return content


def test_films_keep_their_pixels_and_their_official_test_part(tmp_path):
    content = write_films(tmp_path)
    found = pneumonia(tmp_path)
    assert (len(found.train), len(found.test), found.in_shape) == (16, 6, (1, 28, 28))
    assert np.array_equal(found.test.inputs[:, 0].numpy(), content["test_images"])
    small = pneumonia(tmp_path, size=20)
    assert np.array_equal(small.test.inputs[:, 0].numpy(), content["test_images"][:, 4:24, 4:24])
    own = own_samples("fl_app.data.pneumonia", tmp_path, facts_of(small), {})
    assert own.inputs.equal(small.train.inputs)


@pytest.mark.parametrize(
    "more",
    [
        {"train_labels": np.full((12, 1), 7)},
        {"val_images": np.zeros((4, 28))},
        {"test_labels": np.array([object()])},
    ],
)
def test_files_of_another_layout_are_refused(tmp_path, more):
    write_films(tmp_path, **more)
    with pytest.raises(ValueError, match="MedMNIST"):
        pneumonia(tmp_path)


def test_the_shared_films_have_their_official_counts(shared_data):
    found = pneumonia(shared_data)
    assert (len(found.train), len(found.test)) == (4708 + 524, 624)
    assert found.test.labels.bincount().tolist() == [234, 390]


def test_people_of_the_census_are_numbers_and_categories(shared_data):
    found = adult(shared_data, limit=2000)
    assert (len(found.train), len(found.test)) == (2000, 2000)
    numbers = found.train.inputs[:, :6]
    torch.testing.assert_close(numbers.mean(0), torch.zeros(6), atol=1e-4, rtol=0)
    torch.testing.assert_close(numbers.std(0, correction=0), torch.ones(6), atol=1e-3, rtol=0)
    table = pd.read_csv(shared_data / "adult" / "adult.data", header=None, skipinitialspace=True, nrows=2000)
    expected = (table[14] == ">50K").sum()
    assert int(found.train.labels.sum()) == expected
    male = found.feature_names.index("sex=Male")
    assert int(found.train.inputs[:, male].sum()) == (table[9] == "Male").sum()
    # one value in each category, "missing" among them
    assert found.train.inputs[:, 6:].sum(1).unique().tolist() == [8.0]
    assert "workclass=missing" in found.feature_names


def shipped_files(names):
    pydicom = pytest.importorskip("pydicom", reason="data=dicom needs pydicom")
    folder = Path(pydicom.__file__).parent / "data" / "test_files"
    return [folder / name for name in names]


def test_files_that_ship_with_their_reader_become_grey_squares(tmp_path):
    for name, file in zip(("ct", "mr"), shipped_files(["CT_small.dcm", "MR_small.dcm"]), strict=True):
        (tmp_path / name).mkdir()
        for copy in range(3):
            shutil.copy(file, tmp_path / name / f"{copy}.dcm")
    (tmp_path / "ct" / "notes.txt").write_text("no film")
    by_folder = dicom(tmp_path, size=16)
    assert by_folder.class_names == ("ct", "mr")
    assert (len(by_folder.train), len(by_folder.test), by_folder.in_shape) == (4, 2, (1, 16, 16))
    by_attribute = dicom(tmp_path, size=16, label="Modality")
    assert by_attribute.class_names == ("CT", "MR")
    assert by_attribute.train.inputs.equal(by_folder.train.inputs)
    own = own_samples("fl_app.data.dicom", tmp_path / "..", facts_of(by_attribute), {"label": "Modality"})
    assert len(own) == 6
    with pytest.raises(ValueError, match=r"data\.label"):
        dicom(tmp_path / "ct", size=16)
    with pytest.raises(ValueError, match="must have images of"):
        own_samples("fl_app.data.dicom", tmp_path, facts_of(by_attribute), {})


def test_every_image_that_ships_with_the_reader_is_read_or_named(tmp_path):
    pydicom = pytest.importorskip("pydicom", reason="data=dicom needs pydicom")
    read, refusals = 0, []
    for number, file in enumerate(sorted((Path(pydicom.__file__).parent / "data").rglob("*.dcm"))):
        if file.stat().st_size > 300_000:
            continue
        folder = tmp_path / str(number) / "one"
        folder.mkdir(parents=True)
        for copy in ("a", "b"):
            shutil.copy(file, folder / f"{copy}.dcm")
        try:
            found = dicom(tmp_path / str(number), size=8)
        except ValueError as error:
            refusals.append(str(error))
            continue
        read += 1
        assert found.train.inputs.shape == (1, 1, 8, 8)
        assert found.train.inputs.equal(found.test.inputs)
    assert read >= 10
    assert all(refusal.startswith("dicom: ") for refusal in refusals)


def test_a_dark_film_on_bright_ground_is_turned(tmp_path):
    pydicom = pytest.importorskip("pydicom", reason="data=dicom needs pydicom")
    (file,) = shipped_files(["CT_small.dcm"])
    header = pydicom.dcmread(file)
    for name, kind in (("a", "MONOCHROME2"), ("b", "MONOCHROME1")):
        (tmp_path / name / "x").mkdir(parents=True)
        header.PhotometricInterpretation = kind
        for copy in "12":
            header.save_as(tmp_path / name / "x" / f"{copy}.dcm")
    one, other = (dicom(tmp_path / name, size=32).train.inputs.int() for name in "ab")
    assert (one + other - 255).abs().max() <= 1
