"""DP-SGD: clip every record's gradient, sum them, and add noise to the sum.

Abadi et al. (CCS 2016), as Opacus computes it. It protects one record of one client
against any observer of that client's updates, including the server.
Opacus is imported on use: the import takes a second or two, and other defenses
do not need it.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fl_app.defenses.defense import Defense, protect
from fl_app.models.settings import check_count
from fl_app.privacy import RecordLevel, Release, calibrate
from fl_app.training import Batch, Loss, Rules, Step, parameters
from fl_app.transforms.noise import with_gaussian
from fl_app.transforms.settings import check_bound, check_strength
from fl_app.types import Update

AT_ONCE = 2**26
"""Maximum number of per-sample gradient entries held at once: 256 MB in float32."""


def dp_sgd(
    rounds: int,
    clip: float = 1.0,
    epsilon: float = 10.7,
    delta: float = 1e-5,
    noise_multiplier: float | None = None,
) -> Defense:
    """Clip each record's gradient to an L2 norm of ``clip`` and add noise of ``sigma * clip`` to their sum.

    The sum is divided by the expected batch size, because the drawn one is private.
    ``sigma`` is ``noise_multiplier``; without one, each client computes the noise that
    suffices for (``epsilon``, ``delta``) after ``rounds`` rounds at its own sampling rate.
    """
    check_count("dp_sgd", "rounds", rounds)
    check_bound("dp_sgd", "clip", clip)
    check_bound("dp_sgd", "epsilon", epsilon)
    if not 0 < delta < 1:
        raise ValueError(f"dp_sgd: delta must be in (0, 1), got {delta!r}")
    if noise_multiplier is None:
        # an unreachable budget fails now, not in every client's first round
        calibrate(epsilon, delta, 1.0, rounds)
    else:
        check_strength("dp_sgd", "noise_multiplier", noise_multiplier)

    def sigma(rate: float, steps: int) -> float:
        if noise_multiplier is not None:
            return float(noise_multiplier)  # a config may hold an int, which the wire refuses
        return calibrate(epsilon, delta, rate, rounds * steps)

    def release(rate: float, steps: int) -> Release:
        return Release(rate, sigma(rate, steps), steps, delta)

    return Defense(
        rules=_noisy_rules(clip, sigma),
        check=_check_model,
        release=release,
    )


def with_records(defense: Defense, records: RecordLevel | None) -> Defense:
    """Return the defense with record-level noise in every local step, by public numbers; None: unchanged.

    There is no `Defense.release`: what it costs follows from the settings, and no client tells it.
    """
    if records is None:
        return defense
    rules = replace(_noisy_rules(records.clip, lambda rate, steps: records.sigma), rate=records.rate)
    noisy = Defense(rules=rules, check=_check_model, trained=())
    return protect(defense=defense, records=noisy)


def _noisy_rules(clip: float, sigma: Callable[[float, int], float]) -> Rules:
    """Return the steps of DP-SGD; ``sigma`` gives the noise of a sampling rate and a number of steps."""

    def differentiate(model: nn.Module, batch: Batch, loss: Loss, step: Step) -> tuple[float, Update]:
        std = sigma(step.rate, step.per_round) * clip
        value, sums = _sum_clipped(model, batch, loss, clip)
        noisy = {name: with_gaussian(total, std, step.generator) for name, total in sums.items()}
        return value, {name: total / step.expected for name, total in noisy.items()}

    return Rules(differentiate=differentiate, poisson=True)


def _sum_clipped(model: nn.Module, batch: Batch, loss: Loss, clip: float) -> tuple[float, Update]:
    """Return the mean loss and the sum of the clipped gradients of the batch's samples."""
    from opacus.optimizers import DPOptimizer

    weights, samples = parameters(model), len(batch.labels)
    if samples == 0:
        return 0.0, {name: torch.zeros_like(p) for name, p in weights.items()}
    at_once = max(1, AT_ONCE // sum(p.numel() for p in weights.values()))
    if batch.labels.ndim > 1:
        # the loss of several sequences is the mean over all their tokens: a record's gradient would
        # depend on the lengths of the others
        at_once = 1
    losses = 0.0
    with _per_sample_gradients(model):
        # use only its clipping: it would draw noise on the model's device, not on the generator's
        optimiser = DPOptimizer(
            torch.optim.SGD(list(weights.values())),
            noise_multiplier=0.0,
            max_grad_norm=clip,
            expected_batch_size=None,
            loss_reduction="sum",
        )
        for part in _split(batch, at_once):
            losses += _differentiate_samples(model, part, loss) * len(part.labels)
            optimiser.clip_and_accumulate()
        sums = {name: p.summed_grad for name, p in weights.items()}  # type: ignore[attr-defined]
    return losses / samples, sums


@contextmanager
def _per_sample_gradients(model: nn.Module) -> Iterator[None]:
    """Let Opacus' hooks compute ``grad_sample`` in backward passes, then remove them.

    The clients of a process share the model, so everything attached to modules and
    parameters is removed again, even after an error.
    """
    from opacus.grad_sample import GradSampleHooks

    attributes = [vars(thing) for thing in (*model.modules(), *model.parameters())]
    before = [dict(names) for names in attributes]
    try:
        for module in model.modules():
            # the hooks skip modules in eval mode; layers with weights behave the same in both modes
            if next(module.parameters(recurse=False), None) is not None:
                module.training = True
        GradSampleHooks(model, loss_reduction="mean")
        yield
    finally:
        for handle in vars(model).get("autograd_grad_sample_hooks", ()):
            handle.remove()
        for names, old in zip(attributes, before, strict=True):
            names.clear()
            names.update(old)


def _split(batch: Batch, size: int) -> Iterator[Batch]:
    tensors = (batch.inputs, batch.labels, batch.pixels, batch.trained)
    for inputs, labels, pixels, trained in zip(*(tensor.split(size) for tensor in tensors), strict=True):
        yield Batch(inputs, labels, pixels, trained, batch.predict)


def _differentiate_samples(model: nn.Module, batch: Batch, loss: Loss) -> float:
    """Return the mean loss; ``grad_sample`` of every trained parameter holds one gradient per sample."""
    weights, samples = parameters(model), len(batch.labels)
    for p in weights.values():
        p.grad_sample = None  # type: ignore[attr-defined]
    value = loss(model, batch)
    with warnings.catch_warnings():
        # the inputs need no gradient, nor does the first layer's hook
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        # not backward(): .grad stays as it is
        grads = torch.autograd.grad(value, list(weights.values()), allow_unused=True)
    for (name, p), grad in zip(weights.items(), grads, strict=True):
        if grad is None:
            p.grad_sample = p.new_zeros(samples, *p.shape)
        elif p.grad_sample is None:  # type: ignore[attr-defined]
            raise ValueError(f"dp_sgd: {name} is used outside its module, where Opacus does not see it")
    _drop_broken([p.grad_sample for p in weights.values()])  # type: ignore[attr-defined]
    return float(value.detach())


def _drop_broken(gradients: list[Tensor]) -> None:
    """Set the gradient of a sample to 0 if it holds NaN or infinity, which no factor would clip.

    It raises no error: a client's refusal would itself reveal something about its data.
    """
    # a sum is faster than a check of each entry, and finite only if all entries are
    broken = ~torch.stack([g.reshape(len(g), -1).sum(dim=1) for g in gradients]).sum(dim=0).isfinite()
    if broken.any():
        for gradient in gradients:
            gradient[broken] = 0.0


def _check_model(model: nn.Module) -> None:
    from opacus.validators import ModuleValidator

    norms = [name for name, module in model.named_modules() if isinstance(module, _BatchNorm)]
    buffers = [name for name, _ in model.named_buffers()]
    if norms or buffers:
        fault = (
            f"BatchNorm ({norms[0]}) makes samples depend on each other"
            if norms
            else f"the buffer {buffers[0]} would be sent without noise"
        )
        raise ValueError(f"dp_sgd: {fault}; use the model's GroupNorm form, model.norm=group")
    # a copy in train mode: Opacus rejects any model in eval mode
    errors = ModuleValidator.validate(copy.deepcopy(model).train())
    if errors:
        raise ValueError(f"dp_sgd: Opacus cannot differentiate this model sample by sample: {errors[0]}")
