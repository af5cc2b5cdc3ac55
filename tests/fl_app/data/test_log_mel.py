"""Log-mel features, against Fourier's sum and triangles written out in numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from fl_app.data.log_mel import log_mel, mel_bands, standardise

RATE = 16_000
WINDOW, HOP, SIZE = 400, 160, 512


def mel(frequency: float) -> float:
    """HTK's formula in its natural form, 1127 ln(1 + f/700)."""
    return 1127.0104805 * math.log1p(frequency / 700.0)


def triangle(number: int, mels: int, frequency: float) -> float:
    """The weight of a frequency in a band, found by walking along the corners."""
    corners = [700.0 * math.expm1(mel(RATE / 2) * k / (mels + 1) / 1127.0104805) for k in range(mels + 2)]
    low, peak, high = corners[number : number + 3]
    if low < frequency <= peak:
        return (frequency - low) / (peak - low)
    if peak < frequency < high:
        return (high - frequency) / (high - peak)
    return 0.0


def by_definition(waveform: np.ndarray, mels: int) -> np.ndarray:
    """Every frame by the sum of the Fourier transform; its window lies in the middle of 512 samples."""
    n = np.arange(WINDOW)
    window = np.zeros(SIZE)
    window[(SIZE - WINDOW) // 2 : (SIZE + WINDOW) // 2] = 0.5 - 0.5 * np.cos(2 * np.pi * n / WINDOW)
    k = np.arange(SIZE // 2 + 1)
    waves = np.exp(-2j * np.pi * np.outer(k, np.arange(SIZE)) / SIZE)
    bands = np.array([[triangle(m, mels, f) for f in k * RATE / SIZE] for m in range(mels)])
    starts = range(0, len(waveform) - SIZE + 1, HOP)
    power = np.array([np.abs(waves @ (window * waveform[s : s + SIZE])) ** 2 for s in starts])
    return np.log(np.maximum(power @ bands.T, 1e-10))


@pytest.mark.parametrize(("samples", "mels"), [(512, 8), (2000, 40), (2400, 23)])
def test_is_the_definition(samples, mels):
    waveform = np.random.default_rng(samples).standard_normal(samples)
    found = log_mel(torch.from_numpy(waveform), RATE, mels)
    np.testing.assert_allclose(found.numpy(), by_definition(waveform, mels), rtol=1e-7, atol=1e-7)


def test_a_thousand_hertz_are_a_thousand_mels_and_peak_where_they_lie():
    """HTK's scale is made so; the band with the nearest peak has the most energy."""
    assert mel(1000.0) == pytest.approx(1000.0, abs=0.1)
    time = torch.arange(4000, dtype=torch.float64) / RATE
    found = log_mel(torch.sin(2 * math.pi * 1000.0 * time), RATE, 40)
    peaks = [mel(RATE / 2) * (band + 1) / 41 for band in range(40)]
    nearest = min(range(40), key=lambda band: abs(peaks[band] - 1000.0))
    assert found.argmax(dim=1).unique().tolist() == [nearest]


def test_neighbouring_bands_share_every_frequency_between_them():
    """Triangles that overlap by half sum to one from the first peak to the last."""
    total = mel_bands(20, SIZE, RATE).sum(dim=0)
    frequencies = torch.arange(SIZE // 2 + 1) * RATE / SIZE
    first, last = (700.0 * math.expm1(mel(RATE / 2) * k / 21 / 1127.0104805) for k in (1, 20))
    between = (frequencies >= first) & (frequencies <= last)
    torch.testing.assert_close(total[between], torch.ones(int(between.sum()), dtype=torch.float64))


def test_twice_as_loud_is_a_constant_more_and_the_same_once_standardised():
    waveform = torch.randn(3000, dtype=torch.float64)
    soft, loud = (log_mel(waveform * gain, RATE, 12) for gain in (1.0, 2.0))
    torch.testing.assert_close(loud - soft, torch.full_like(soft, math.log(4.0)))
    torch.testing.assert_close(standardise(loud), standardise(soft))
    torch.testing.assert_close(standardise(soft).mean(dim=0), torch.zeros(12, dtype=torch.float64))
    torch.testing.assert_close(
        standardise(soft).std(dim=0, correction=0), torch.ones(12, dtype=torch.float64)
    )


def test_silence_is_finite():
    silence = log_mel(torch.zeros(1000), RATE, 10)
    torch.testing.assert_close(silence, torch.full_like(silence, math.log(1e-10)))
    assert not standardise(silence).any()


def test_refuses_what_has_no_frame_or_no_frequency():
    with pytest.raises(ValueError, match="at least 512 samples, got 511"):
        log_mel(torch.zeros(511), RATE, 10)
    with pytest.raises(ValueError, match=r"must be \(samples,\), got shape \(2, 600\)"):
        log_mel(torch.zeros(2, 600), RATE, 10)
    with pytest.raises(ValueError, match="200 bands are too many"):
        log_mel(torch.zeros(600), RATE, 200)
    with pytest.raises(ValueError, match="mels must be at least 1, got 0"):
        log_mel(torch.zeros(600), RATE, 0)
