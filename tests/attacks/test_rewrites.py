"""Whoever knows the rewritings of images gets back what they did not destroy."""

import pytest
import torch

from attacks.metrics import psnr
from attacks.rewrites import undo_rewrites
from fl_app.data import photos, pixels
from fl_app.defenses.ats import ats, public_rewrites
from fl_app.defenses.operations import LIBRARY

INVERT, SHEAR, DARKER = 47, 1, 24


def rewritings(*policies):
    return public_rewrites(ats(policies).traces)


@pytest.fixture(scope="module")
def photographs() -> torch.Tensor:
    return pixels(photos(train_per_class=1, test_per_class=1).train.inputs[:4], "cpu")


def test_the_numbers_of_these_tests_are_the_operations_they_name():
    assert [str(LIBRARY[n]) for n in (INVERT, SHEAR, DARKER)] == ["invert", "shear_x -0.15", "brightness 0.3"]


def test_without_rewritings_the_images_stay_as_they_are(photographs):
    images, notes = undo_rewrites(photographs, ())
    assert images is photographs
    assert notes == []


def test_no_images_are_no_images():
    images, notes = undo_rewrites(torch.rand(0, 3, 8, 8), rewritings([INVERT]))
    assert (images.shape, notes) == ((0, 3, 8, 8), [])


@pytest.mark.parametrize("policy", [(INVERT,), (INVERT, SHEAR), (DARKER,)], ids=str)
def test_an_exact_image_is_undone_far_above_its_own_likeness(policy, photographs):
    (rewriting,) = known = rewritings(policy)
    seen = rewriting(photographs)
    undone, _ = undo_rewrites(seen, known, tv=1e-4)
    assert (psnr(undone, photographs) > psnr(seen, photographs) + 6).all()


def test_every_image_of_a_batch_is_undone_by_its_own_rewriting(photographs):
    known = rewritings([INVERT, SHEAR], [DARKER])
    drawn = [0, 1, 1, 0]
    seen = torch.cat([known[n](image[None]) for n, image in zip(drawn, photographs, strict=True)])
    before = seen.clone()
    undone, (note,) = undo_rewrites(seen, known, tv=1e-4)
    names = ["invert, shear_x -0.15", "brightness 0.3"]
    for image, number in enumerate(drawn, 1):
        assert f"image {image}: {names[number]}" in note
    assert (psnr(undone, photographs) > psnr(seen, photographs) + 6).all()
    assert torch.equal(seen, before)
    assert (undone >= 0).all()
    assert (undone <= 1).all()


def test_the_same_images_give_the_same_bits(photographs):
    known = rewritings([INVERT, SHEAR], [DARKER])
    once, again = (undo_rewrites(photographs[:2], known, steps=5) for _ in range(2))
    assert torch.equal(once[0], again[0])
    assert once[1] == again[1]


def test_an_image_is_undone_alike_whatever_torch_drew_before(photographs):
    first, _ = undo_rewrites(photographs[:1], rewritings([INVERT]), steps=5)
    torch.rand(7)
    second, _ = undo_rewrites(photographs[:1], rewritings([INVERT]), steps=5)
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("wrong", "words"), [({"tv": -1.0}, "tv must be finite"), ({"steps": 0}, "steps must be")]
)
def test_settings_that_cannot_be_are_refused(wrong, words, photographs):
    with pytest.raises(ValueError, match=f"undo_rewrites: {words}"):
        undo_rewrites(photographs, rewritings([INVERT]), **wrong)
