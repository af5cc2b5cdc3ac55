"""Recovery of photographs: our attacks beside plain loops of the published ones.

``python -m benchmarks.photographs [--data FOLDER]``, with an image folder of CIFAR-10. The
victims are the first test picture of each of eight classes, on three untrained models; the
labels are granted, and each side has one start, and one weight of its prior for all victims.
The plain loops take one victim after the other with what PyTorch has, and share nothing with
the attacks but the observation.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from attacks.metrics import match, mse, psnr, ssim
from attacks.optimisation import dlg, inverting_gradients
from fl_app.models import lenet_zhu
from fl_app.types import Observation

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "cifar10"
VICTIMS = 8
SEEDS = (0, 1, 2)
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
RECOVERED = 1e-3
"""The mean squared error below which a search of DLG has found its image."""

STEPS, STEP_SIZE = 1200, 0.1
SMOOTHNESS = (0.01, 0.2)
"""The weights of the prior that the plain inversion is tried with: large batches need the larger one."""
SEARCHES, HISTORY, SOLVED = 300, 100, 1e-8
"""Plain leakage: calls of L-BFGS, its memory, and the relative distance at which it may stop."""

Attack = Callable[[Sequence[Observation]], list[Tensor]]
"""From observations of one model to the pixels of each."""


@dataclass(frozen=True, eq=False)
class Recovery:
    """Scores of each victim: tensors (models, victims)."""

    mse: Tensor
    psnr: Tensor
    ssim: Tensor
    seconds: float
    """CPU time per victim."""


def photographs(folder: Path) -> Tensor:
    """Return the victims (8, 3, 32, 32) from a folder with ``test/<class>/0000.jpg``."""
    classes = sorted((folder / "test").iterdir())[:VICTIMS]
    pictures = [np.asarray(Image.open(name / "0000.jpg").convert("RGB")) for name in classes]
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255


def invert(observations: Sequence[Observation]) -> list[Tensor]:
    """Return what our inversion recovers."""
    return [result.images for result in inverting_gradients(labels="granted").many(observations)]


def leak(observations: Sequence[Observation]) -> list[Tensor]:
    """Return what our DLG recovers."""
    return [result.images for result in dlg(labels="granted").many(observations)]


def invert_plainly(smoothness: float) -> Attack:
    """Return signed Adam on cosine distance and total variation (Geiping et al. 2020).

    From N(0, 1) as the model sees it, the step size a tenth after 3/8, 5/8 and 7/8 of the
    steps, projected onto valid pixels, the iterate with the lowest objective. Variation is
    the mean of ``|down|`` plus that of ``|across|``, as the model sees the image.
    """
    return lambda observations: [_invert(obs, smoothness, seed) for seed, obs in enumerate(observations)]


def leak_plainly(observations: Sequence[Observation]) -> list[Tensor]:
    """Return what L-BFGS without a line search recovers by squared distance (Zhu et al. 2019)."""
    return [_leak(obs, seed) for seed, obs in enumerate(observations)]


def recover(
    attack: Attack,
    photos: Tensor,
    *,
    activation: str = "relu",
    batch_size: int = 1,
    normalised: bool = True,
    seeds: Sequence[int] = SEEDS,
) -> Recovery:
    """Attack the gradients of batches of photographs on one model per seed, and score the result."""
    found = []
    began = time.process_time()
    for seed in seeds:
        torch.manual_seed(seed)
        model = lenet_zhu(num_classes=10, in_shape=tuple(photos.shape[1:]), activation=activation)
        batches = torch.arange(len(photos)).split(batch_size)
        images = attack([observe(model, photos[batch], batch, normalised) for batch in batches])
        found += [_in_order(guess, photos[batch]) for guess, batch in zip(images, batches, strict=True)]
    seconds = (time.process_time() - began) / (len(seeds) * len(photos))
    images, truth = torch.cat(found), photos.repeat(len(seeds), 1, 1, 1)
    error, ratio, structure = (score(images, truth).view(len(seeds), -1) for score in (mse, psnr, ssim))
    return Recovery(error, ratio, structure, seconds)


def observe(model: nn.Module, pixels: Tensor, labels: Tensor, normalised: bool = True) -> Observation:
    """Return what the server sees of one step on a batch."""
    mean, std = (MEAN, STD) if normalised else ((0.0,) * 3, (1.0,) * 3)
    inputs = (pixels - _per_channel(mean)) / _per_channel(std)
    gradients = torch.autograd.grad(F.cross_entropy(model(inputs), labels), list(model.parameters()))
    names = [name for name, _ in model.named_parameters()]
    return Observation(
        model,
        dict(zip(names, gradients, strict=True)),
        batch_size=len(labels),
        num_classes=10,
        input_shape=tuple(pixels.shape[1:]),
        mean=list(mean),
        std=list(std),
        labels=labels,
        training=True,
    )


def main(folder: Path = DATA) -> None:
    """Print the table."""
    if not folder.is_dir():
        print(f"benchmarks.photographs: expected the photographs of CIFAR-10 at {folder}, found nothing")
        return
    torch.set_num_threads(1)
    photos = photographs(folder)
    print("| attack | by | PSNR dB by model | PSNR dB | SSIM | recovered | CPU s per image |")
    print("|---|---|---|---|---|---|---|", flush=True)
    inversions = {"ours": invert} | {f"plain, TV {weight}": invert_plainly(weight) for weight in SMOOTHNESS}
    for batch_size in (1, len(photos)):
        for who, attack in inversions.items():
            print(
                _row(f"IG, batch {batch_size}", who, recover(attack, photos, batch_size=batch_size)),
                flush=True,
            )
    for who, attack in {"ours": leak, "plain": leak_plainly}.items():
        found = recover(attack, photos, activation="sigmoid", normalised=False)
        print(_row("DLG, batch 1", who, found), flush=True)


def _in_order(images: Tensor, truth: Tensor) -> Tensor:
    return images[torch.tensor(match(images, truth))]


def _invert(obs: Observation, smoothness: float, seed: int) -> Tensor:
    mean, std = _per_channel(obs.mean), _per_channel(obs.std)
    lowest, highest = (0 - mean) / std, (1 - mean) / std
    guess = _noise(obs, seed)
    optimiser = torch.optim.Adam([guess], lr=STEP_SIZE)
    milestones = [STEPS * eighths // 8 for eighths in (3, 5, 7)]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones, gamma=0.1)
    best, least = guess.detach().clone(), float("inf")
    for _ in range(STEPS):
        distance = 1 - F.cosine_similarity(_gradient(obs, guess), _flat(obs.update.values()), dim=0)
        objective = distance + smoothness * _variation(guess)
        if objective.item() < least:
            best, least = guess.detach().clone(), objective.item()
        (slope,) = torch.autograd.grad(objective, guess)
        guess.grad = slope.sign()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            guess.copy_(guess.clamp(lowest, highest))
    return best * std + mean


def _leak(obs: Observation, seed: int) -> Tensor:
    target = _flat(obs.update.values())
    guess = _noise(obs, seed)
    search = torch.optim.LBFGS([guess], lr=1.0, history_size=HISTORY, max_iter=20)

    def distance() -> Tensor:
        search.zero_grad()
        value = (_gradient(obs, guess) - target).square().sum()
        value.backward(inputs=[guess])
        return value

    for _ in range(SEARCHES):
        value = float(search.step(distance))
        if not np.isfinite(value) or value < SOLVED * float(target.square().sum()):
            break
    return guess.detach().nan_to_num(0.5).clamp(0, 1)


def _noise(obs: Observation, seed: int) -> Tensor:
    """Return a first guess of N(0, 1)."""
    shape = (obs.batch_size, *obs.input_shape)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_(True)


def _gradient(obs: Observation, inputs: Tensor) -> Tensor:
    loss = F.cross_entropy(obs.model(inputs), obs.labels)
    return _flat(torch.autograd.grad(loss, list(obs.model.parameters()), create_graph=True))


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def _variation(images: Tensor) -> Tensor:
    down, across = images.diff(dim=2).abs().mean(), images.diff(dim=3).abs().mean()
    return down + across


def _per_channel(values: Sequence[float]) -> Tensor:
    return torch.tensor(values).view(-1, 1, 1)


def _row(title: str, who: str, found: Recovery) -> str:
    by_model = " / ".join(f"{value:.2f}" for value in found.psnr.mean(dim=1).tolist())
    count = int((found.mse < RECOVERED).sum())
    cells = [title, who, by_model, f"{found.psnr.mean():.2f}", f"{found.ssim.mean():.3f}"]
    return f"| {' | '.join(cells)} | {count} of {found.mse.numel()} | {found.seconds:.1f} |"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks.photographs", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    main(parser.parse_args().data)
