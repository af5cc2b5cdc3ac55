import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks.active.level_votes import FEWEST, ROUGH, signal_by_vote


def levels(seed: int, count: int, least: int = 0, most: int = 255) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(least, most + 1, (count,), generator=generator).double() / 255


@given(
    seed=st.integers(0, 10_000),
    count=st.integers(60, 400),
    size=st.floats(1e-9, 1e3),
    sign=st.sampled_from([1, -1]),
    mean=st.floats(0.2, 0.45),  # at 0.5, a negative has levels, too
    std=st.floats(0.1, 0.4),
)
@settings(max_examples=40, deadline=None)
def test_the_signal_of_a_photograph_is_found_from_its_pixels(seed, count, size, sign, mean, std):
    pixels = levels(seed, count)
    signal = sign * size
    shift, scale = torch.full((count,), mean).double(), torch.full((count,), std).double()
    shift[::2] += 0.0137  # channels differ
    values = signal * (pixels - shift) / scale
    assert abs(signal_by_vote(values, shift, scale) / signal - 1) < 1e-9
    assert abs(signal_by_vote(values, shift, scale, given=signal * 1.01, within=0.05) / signal - 1) < 1e-9


@given(seed=st.integers(0, 10_000), share=st.floats(0.1, 0.9))
@settings(max_examples=30, deadline=None)
def test_a_mixture_has_no_signal(seed, share):
    mixed = share * levels(seed, 300) + (1 - share) * levels(seed + 1, 300) + 1e-3
    mean, std = torch.full((300,), 0.47).double(), torch.full((300,), 0.2).double()
    values = 0.3 * (mixed - mean) / std
    assert signal_by_vote(values, mean, std) is None or share * 255 % 1 < 1e-2
    assert signal_by_vote(values, mean, std, given=0.5, within=0.1) is None


def test_a_dark_picture_is_not_made_twice_as_bright():
    pixels, nothing = levels(0, 200, most=60), torch.zeros(200).double()
    found = signal_by_vote(0.25 * pixels, nothing, nothing + 1)
    assert abs(found / 0.25 - 1) < 1e-9


def test_noise_of_a_tenth_of_a_level_is_borne_by_a_rough_majority_alone():
    pixels, mean, std = levels(0, 3000), torch.full((3000,), 0.45).double(), torch.full((3000,), 0.2).double()
    noise = torch.randn(3000, generator=torch.Generator().manual_seed(1)).double() * 0.13 / 255
    values = -2e-6 * (pixels + noise - mean) / std
    assert signal_by_vote(values, mean, std, given=-2.1e-6, within=0.1) is None
    found = signal_by_vote(values, mean, std, given=-2.1e-6, within=0.1, majority=ROUGH)
    assert abs(found / -2e-6 - 1) < 1e-4


def test_too_few_distinct_pixels_decide_nothing():
    pixels = levels(0, FEWEST - 1).repeat(5)
    assert signal_by_vote(pixels, torch.zeros_like(pixels), torch.ones_like(pixels)) is None
