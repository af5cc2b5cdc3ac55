"""Log-mel features of speech: the logarithm of the energy in bands as wide as the ear's.

Frames of 25 ms begin every 10 ms. The bands are triangles, evenly spaced on the mel scale as
HTK has it, ``2595 log10(1 + f / 700)``, from 0 Hz to half the sampling rate.
"""

from __future__ import annotations

import torch
from torch import Tensor

WINDOW_SECONDS = 0.025
HOP_SECONDS = 0.010
FLOOR = 1e-10
"""The least energy: silence has a logarithm, too."""


def log_mel(waveform: Tensor, rate: int, mels: int) -> Tensor:
    """Return the logarithm of the energy in each band: (frames, mels) of a waveform (samples,)."""
    if waveform.ndim != 1:
        raise ValueError(f"log_mel: waveform must be (samples,), got shape {tuple(waveform.shape)}")
    window, hop = round(WINDOW_SECONDS * rate), round(HOP_SECONDS * rate)
    # a power of two: quicker, and finer than the lowest bands, which are narrow
    size = 1 << (window - 1).bit_length()
    if len(waveform) < size:
        raise ValueError(f"log_mel: waveform must have at least {size} samples, got {len(waveform)}")
    spectrum = torch.stft(
        waveform,
        n_fft=size,
        hop_length=hop,
        win_length=window,
        window=torch.hann_window(window, dtype=waveform.dtype, device=waveform.device),
        center=False,
        return_complex=True,
    )
    bands = mel_bands(mels, size, rate).to(waveform)
    return (bands @ spectrum.abs().square()).clamp(min=FLOOR).log().T.contiguous()


def mel_bands(mels: int, size: int, rate: int) -> Tensor:
    """Return the weight of each frequency of a transform of ``size`` in each band: (mels, size / 2 + 1)."""
    if mels < 1:
        raise ValueError(f"mel_bands: mels must be at least 1, got {mels}")
    frequencies = torch.arange(size // 2 + 1, dtype=torch.float64) * rate / size
    highest = float(_mels(torch.tensor(rate / 2, dtype=torch.float64)))
    corners = _hertz(torch.linspace(0.0, highest, mels + 2, dtype=torch.float64))
    low, peak, high = (part.unsqueeze(1) for part in (corners[:-2], corners[1:-1], corners[2:]))
    rising, falling = (frequencies - low) / (peak - low), (high - frequencies) / (high - peak)
    bands = torch.minimum(rising, falling).clamp(min=0.0)
    if (empty := int((bands.sum(dim=1) == 0).sum())) > 0:
        raise ValueError(
            f"mel_bands: {mels} bands are too many: {empty} hold none of {size // 2} frequencies"
        )
    return bands


def standardise(features: Tensor) -> Tensor:
    """Return each band with mean 0 and deviation 1 over an utterance's own frames.

    By itself alone: no client has to tell the others how loud its speakers are. A band that never
    changes has nothing to scale.
    """
    centred = features - features.mean(dim=0)
    deviation = centred.square().mean(dim=0).sqrt()
    return centred / torch.where(deviation > 0, deviation, 1.0)


def _mels(frequencies: Tensor) -> Tensor:
    return 2595.0 * torch.log10(1.0 + frequencies / 700.0)


def _hertz(mels: Tensor) -> Tensor:
    return 700.0 * (10.0 ** (mels / 2595.0) - 1.0)
