"""Folders of images become arrays with the classes in order of name, or an error that names the culprit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fl_app.data import imagefolder

CIFAR = Path(__file__).parents[3].parent / "shared" / "data" / "cifar10"


def write(path: Path, colour=(10, 20, 30), size=(4, 4), mode="RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).convert(mode).save(path)


@pytest.fixture
def two_parts(tmp_path):
    for part in ("train", "test"):
        for shade, name in ((200, "zebra"), (100, "ant")):
            for i in range(3):
                write(tmp_path / part / name / f"{i}.png", (shade, i, 7))
    return tmp_path


def test_reads_both_parts_with_classes_sorted_by_name(two_parts):
    data = imagefolder(two_parts, size=4)
    assert data.class_names == ("ant", "zebra")
    for samples in (data.train, data.test):
        assert samples.labels.tolist() == [0, 0, 0, 1, 1, 1]
        assert samples.inputs[:, 0, 0, 0].tolist() == [100] * 3 + [200] * 3
        assert samples.inputs[:, 1, 3, 3].tolist() == [0, 1, 2, 0, 1, 2]
        assert (samples.inputs[:, 2] == 7).all()


def test_limit_takes_the_first_files_of_each_class(two_parts):
    data = imagefolder(two_parts, size=4, limit_per_class=2)
    assert data.train.inputs[:, 1, 0, 0].tolist() == [0, 1, 0, 1]
    assert len(data.test) == 4


def test_ignores_hidden_files_and_folders(two_parts):
    (two_parts / "train" / "ant" / ".DS_Store").write_bytes(b"notes")
    (two_parts / "train" / ".thumbnails").mkdir()
    assert len(imagefolder(two_parts, size=4).train) == 6


def test_a_class_without_test_images_keeps_its_label(two_parts):
    for path in (two_parts / "test" / "ant").iterdir():
        path.unlink()
    (two_parts / "test" / "ant").rmdir()
    data = imagefolder(two_parts, size=4)
    assert data.test.labels.tolist() == [1, 1, 1]
    assert data.num_classes == 2


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "1", "CMYK"])
def test_every_kind_of_image_becomes_colour(tmp_path, mode):
    suffix = "tif" if mode == "CMYK" else "png"
    for i in range(2):
        write(tmp_path / "grey" / f"{i}.{suffix}", (255, 255, 255), mode=mode)
    assert (imagefolder(tmp_path, size=4).train.inputs == 255).all()


def test_a_wide_image_is_cropped_around_its_middle(tmp_path):
    wide = np.zeros((8, 24, 3), dtype=np.uint8)
    wide[:, 6:18] = 255  # the middle 8 columns, and as far around them as the resampling looks
    for i in range(2):
        (tmp_path / "bar").mkdir(exist_ok=True)
        Image.fromarray(wide).save(tmp_path / "bar" / f"{i}.png")
    assert (imagefolder(tmp_path, size=4).train.inputs == 255).all()


def test_a_photograph_taken_sideways_is_turned(tmp_path):
    image = Image.new("RGB", (16, 16), (0, 0, 0))
    image.paste((255, 255, 255), (0, 0, 16, 8))
    exif = image.getexif()
    exif[0x0112] = 3  # upside down
    (tmp_path / "sky").mkdir()
    for i in range(2):
        image.save(tmp_path / "sky" / f"{i}.png", exif=exif)
    turned = imagefolder(tmp_path, size=16).train.inputs[0, 0]
    assert (turned[:8] == 0).all()
    assert (turned[8:] == 255).all()


def test_one_folder_is_split_in_every_class_without_doubles(tmp_path):
    for name, count in (("a", 10), ("b", 5), ("c", 1)):
        for i in range(count):
            write(tmp_path / name / f"{i}.png", (i, 0, 0))
    data = imagefolder(tmp_path, size=4, test_fraction=0.2)
    assert data.train.labels.bincount().tolist() == [8, 4, 1]
    assert data.test.labels.bincount(minlength=3).tolist() == [2, 1, 0]
    for label, count in ((0, 10), (1, 5)):
        shades = torch.cat(
            [part.inputs[part.labels == label][:, 0, 0, 0] for part in (data.train, data.test)]
        )
        assert sorted(shades.tolist()) == list(range(count))


def test_the_split_follows_its_seed(tmp_path):
    for i in range(30):
        write(tmp_path / "a" / f"{i:02}.png", (i, 0, 0))
    first, again, other = (imagefolder(tmp_path, size=4, seed=seed).test.inputs for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_names_the_file_that_is_not_an_image(two_parts):
    bad = two_parts / "train" / "ant" / "1.png"
    bad.write_bytes(b"not an image")
    with pytest.raises(ValueError, match=f"cannot read {bad} as an image"):
        imagefolder(two_parts)


def test_names_the_file_that_is_cut_off(tmp_path):
    path = tmp_path / "a" / "0.jpg"
    write(path, size=(64, 64))
    write(tmp_path / "a" / "1.jpg", size=(64, 64))
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match=f"cannot read {path} as an image"):
        imagefolder(tmp_path)


def test_says_what_is_missing(tmp_path):
    with pytest.raises(ValueError, match="nowhere is not a folder"):
        imagefolder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="has no class folders"):
        imagefolder(tmp_path)
    (tmp_path / "train" / "a").mkdir(parents=True)
    with pytest.raises(ValueError, match="has train, but not both of train and test"):
        imagefolder(tmp_path)
    write(tmp_path / "test" / "a" / "0.png")
    with pytest.raises(ValueError, match=f"{tmp_path / 'train' / 'a'} has no files"):
        imagefolder(tmp_path)
    write(tmp_path / "train" / "a" / "0.png")
    write(tmp_path / "test" / "b" / "0.png")
    with pytest.raises(ValueError, match=r"classes without training images: \['b'\]"):
        imagefolder(tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"limit_per_class": 0}, "limit_per_class must be null or at least 1, got 0"),
        ({"test_fraction": 1.0}, r"test_fraction must be in \(0, 1\), got 1.0"),
    ],
)
def test_refuses_bad_settings(tmp_path, settings, message):
    with pytest.raises(ValueError, match=f"imagefolder: {message}"):
        imagefolder(tmp_path, **settings)


@pytest.mark.skipif(not CIFAR.is_dir(), reason="no CIFAR-10 folder in ../shared/data beside the repository")
def test_reads_cifar_jpegs_pixel_by_pixel():
    data = imagefolder(CIFAR, limit_per_class=20)
    assert data.class_names[:3] == ("airplane", "automobile", "bird")
    assert len(data.train) == len(data.test) == 200
    first = sorted((CIFAR / "train" / "bird").iterdir())[0]
    with Image.open(first) as image:
        expected = torch.from_numpy(np.asarray(image.convert("RGB")).copy()).permute(2, 0, 1)
    assert torch.equal(data.train.inputs[40], expected)
