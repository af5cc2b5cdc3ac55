"""Identification among candidates and registered PSNR, against brute force and known cases."""

import pytest
import torch

from attacks.base import Reconstruction
from attacks.metrics import identifies, psnr, registered_psnr
from attacks.metrics.identification import peak_correlation
from attacks.score import score
from fl_app.types import Truth


def drawn(count, seed, side=12):
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(seed))


def test_registration_finds_the_best_of_all_shifts_and_mirrorings():
    image, other = drawn(2, 1, side=5)
    options = [
        psnr(version.roll((down, right), (-2, -1)).unsqueeze(0), other.unsqueeze(0))[0]
        for version in (image, image.flip(-1))
        for down in range(5)
        for right in range(5)
    ]
    found = registered_psnr(image.unsqueeze(0), other.unsqueeze(0))[0]
    assert float(found) == pytest.approx(float(torch.stack(options).max()), abs=1e-4)


def test_a_shifted_mirrored_pale_copy_is_recognised_and_a_flat_one_is_not():
    truth, others = drawn(1, 2), drawn(99, 3)
    pale = 0.3 + 0.2 * truth.flip(-1).roll((2, 3), (-2, -1))
    assert identifies(pale, truth, others) == [True]
    assert float(peak_correlation(pale[0], truth)[0]) == pytest.approx(1.0)
    assert identifies(torch.full_like(truth, 0.5), truth, others) == [False]


def test_noise_is_identified_as_often_as_a_guess():
    others, right = drawn(9, 4, side=6), 0
    truth = drawn(200, 5, side=6)
    right = sum(identifies(drawn(200, 6, side=6), truth, others))
    assert 5 <= right <= 38  # one in ten, at five standard deviations


def test_a_copy_of_the_right_image_among_the_others_is_no_other():
    truth = drawn(1, 7)
    assert identifies(truth, truth, torch.cat([truth, drawn(3, 8)])) == [True]


def test_scores_say_which_images_were_identified_and_among_how_many():
    truth, others = drawn(3, 9), drawn(20, 10)
    found = score(
        Reconstruction(torch.stack([truth[2], 1 - truth[0]])),
        Truth(truth, torch.zeros(3).long()),
        others=others,
    )
    assert found["candidates"] == 21
    assert found["identified"][2] is True
    assert found["identified"].count(True) == 1
    assert [value is None for value in found["registered_psnr"]] == [m is None for m in found["matching"]]
    assert "identified" not in score(Reconstruction(truth), Truth(truth, torch.zeros(3).long()))
