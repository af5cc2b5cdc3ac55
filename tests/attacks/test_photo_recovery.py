"""The marks of the reference implementation on real photographs, beaten by the defaults."""

from dataclasses import replace

import pytest
import torch

from attacks.metrics import psnr, ssim
from attacks.optimisation import inverting_gradients
from benchmarks.photographs import SMOOTHNESS, invert, invert_plainly, observe, recover
from fl_app.models import lenet_zhu
from fl_app.types import Observation


@pytest.mark.slow
def test_single_photographs_are_recovered_better_than_by_a_plain_loop(photos):
    ours, plain = (recover(attack, photos) for attack in (invert, invert_plainly(min(SMOOTHNESS))))
    assert ours.psnr.mean() > max(18.5, plain.psnr.mean() + 0.5)
    assert ours.ssim.mean() > max(0.567, plain.ssim.mean())


@pytest.mark.slow
def test_a_batch_of_photographs_is_recovered_better_than_by_a_plain_loop(photos):
    """By half a decibel with the weight that suits it on single photographs; at all, with one for batches."""
    ours = recover(invert, photos, batch_size=8).psnr.mean()
    single, batches = (
        recover(invert_plainly(smoothness), photos, batch_size=8).psnr.mean() for smoothness in SMOOTHNESS
    )
    assert ours > max(14.5, single + 0.5, batches)


def neither_largest_nor_smallest(gradient: torch.Tensor) -> torch.Tensor:
    size = gradient.numel()
    rank = gradient.abs().flatten().argsort(descending=True).argsort().view_as(gradient)
    return (rank >= int(0.05 * size)) & (rank < size - int(0.75 * size))


def pruned(obs: Observation) -> Observation:
    sent = {name: neither_largest_nor_smallest(g) for name, g in obs.update.items()}
    return replace(obs, update={name: g * sent[name] for name, g in obs.update.items()}, sent=sent)


@pytest.mark.slow
def test_knowing_of_dual_pruning_undoes_much_of_it(photos):
    model = lenet_zhu(num_classes=10, in_shape=(3, 32, 32))
    seen = [pruned(observe(model, photo[None], torch.tensor([i]))) for i, photo in enumerate(photos)]
    plain, adaptive = (
        torch.cat([result.images for result in inverting_gradients(adaptive=knows).many(seen)])
        for knows in (False, True)
    )
    assert psnr(adaptive, photos).mean() > max(14.2, psnr(plain, photos).mean().item() + 2)
    assert ssim(adaptive, photos).mean() > 0.37
