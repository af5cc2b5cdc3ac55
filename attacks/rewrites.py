"""Undo a client's rewriting of its images: find images whose rewritten form is the recovered one.

A defense that rewrites images by public rules, such as ATS, leaves an attacker with rewritten images.
An attacker who knows the rules searches for the images behind them, tries each rule on each image, and
keeps the one that explains it best. Information that a rule merged is lost: a folded brightness scale
is not unfolded here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Rewrite = Callable[[Tensor], Tensor]
"""Pixels (N, C, H, W) in [0, 1] to pixels of the same shape."""

WHO = "undo_rewrites"
DITHER = 16 / 255
"""Half of a level of images of three bits. A rule with levels is searched through its mean over so much more
and less, whose solution is the middle of a level and not its edge."""
GREY = 0.5
DOUBT = 0.3
"""Weight of the prior in the choice of a rewriting: a full weight prefers rules that hide edges."""


def undo_rewrites(
    images: Tensor,
    rewrites: Sequence[Rewrite],
    *,
    tv: float = 0.01,
    steps: int = 200,
    lr: float = 0.02,
    seed: int = 0,
) -> tuple[Tensor, list[str]]:
    """Return the images before one of ``rewrites`` was applied to each of them, and notes on the choice.

    For every image y and every rewriting T, x in [0, 1] minimises the mean square of
    ``T(x) - y`` plus ``tv`` times total variation, by Adam from y and from grey. The
    rewriting with the lowest objective is believed, total variation counting less there.
    Without rewritings the images are returned as they are.
    """
    if not (math.isfinite(tv) and tv >= 0):
        raise ValueError(f"{WHO}: tv must be finite and not negative, got {tv}")
    if steps < 1:
        raise ValueError(f"{WHO}: steps must be at least 1, got {steps}")
    if not rewrites or len(images) == 0:
        return images, []
    wanted = images.detach()
    tried = [_undo(wanted, rewrite, tv=tv, steps=steps, lr=lr, seed=seed) for rewrite in rewrites]
    found, objectives = (torch.stack(parts) for parts in zip(*tried, strict=True))
    chosen = objectives.argmin(dim=0)
    rows = torch.arange(len(images), device=images.device)
    return found[chosen, rows], [_note(chosen.tolist(), rewrites)]


def _undo(
    wanted: Tensor, rewrite: Rewrite, *, tv: float, steps: int, lr: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Return an image and its objective, lower is more credible, for each wanted image."""
    # from grey too: if y itself is rewritten to black or white, no gradient leads back
    starts = torch.stack([wanted, torch.full_like(wanted, GREY)])
    images = starts.flatten(0, 1).requires_grad_()
    targets = wanted.repeat(len(starts), 1, 1, 1)
    optimiser = torch.optim.Adam([images], lr=lr)
    generator = torch.Generator().manual_seed(seed)
    for step in range(steps):
        optimiser.param_groups[0]["lr"] = lr * (1 - step / steps)
        # on the CPU: the same draw on every device
        noise = DITHER * (2 * torch.rand(images.shape, generator=generator, dtype=images.dtype) - 1)
        noise = noise.to(images.device)
        # both signs: of a linear rule the mean is then exact
        seen = (rewrite(images + noise) + rewrite(images - noise)) / 2
        loss = _objective(seen, targets, images, tv).sum()
        (images.grad,) = torch.autograd.grad(loss, [images])
        optimiser.step()
        with torch.no_grad():
            images.clamp_(0, 1)
    with torch.no_grad():
        seen = rewrite(images)
        best = _objective(seen, targets, images, tv).view(len(starts), -1).argmin(dim=0)
        believed = _objective(seen, targets, images, DOUBT * tv).view(len(starts), -1)
    rows = torch.arange(len(wanted), device=wanted.device)
    return images.detach().view_as(starts)[best, rows], believed[best, rows]


def _objective(seen: Tensor, targets: Tensor, images: Tensor, tv: float) -> Tensor:
    return (seen - targets).square().flatten(1).mean(dim=1) + tv * _variation(images)


def _variation(images: Tensor) -> Tensor:
    """Return the mean length of the colour gradient of each image; channels share their edges."""
    down = (images[..., 1:, :] - images[..., :-1, :])[..., :-1]
    across = (images[..., 1:] - images[..., :-1])[..., :-1, :]
    squares = (down.square() + across.square()).sum(dim=1).flatten(1)
    # images one pixel wide have no neighbours; the small number gives equal neighbours a slope
    return (squares + 1e-8).sqrt().sum(dim=1) / max(1, squares.shape[1])


def _note(chosen: list[int], rewrites: Sequence[Rewrite]) -> str:
    named = (f"image {image}: {rewrites[number]}" for image, number in enumerate(chosen, 1))
    return f"adaptive: the rewriting that explains each image best was undone ({'; '.join(named)})"
