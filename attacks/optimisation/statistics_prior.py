"""BatchNorm statistics as a prior: a guess must excite each channel as the client's batch did.

The prior runs a forward pass of its own, which makes a step on ConvNet16 about a quarter
longer: what hooks see inside `torch.func.vmap` must leave it as the result of the batched
function, and that of the gradient has none to spare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from fl_app.types import Observation


@dataclass(frozen=True, eq=False)
class ChannelStatistics:
    """Statistics of one BatchNorm layer, per channel; the variance is the unbiased one that torch keeps."""

    mean: Tensor
    variance: Tensor
    eps: float


Statistics = Mapping[str, ChannelStatistics]
"""Statistics by the layer's name."""


def known_statistics(obs: Observation) -> tuple[Statistics, str]:
    """Return the best statistics that an observation has (none if they mean nothing), and a note on them.

    A client in train mode that sent its buffers gave its own batch away: they are a known mixture of
    the old ones and the batch's. Else the running statistics tell what batches are like, if
    training has moved them.
    """
    norms = {
        name: module
        for name, module in obs.model.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    }
    if not norms:
        return {}, "statistics prior off: the model has no BatchNorm statistics, without which GI fails"
    before, after = dict(obs.model.named_buffers()), dict(obs.buffers or {})
    passes = _passes(obs, norms, before, after)
    if passes:
        solved = {name: _solved(name, norm, before, after, passes) for name, norm in norms.items()}
        whose = "batch" if passes == 1 else f"{passes} passes, averaged,"
        return solved, f"statistics prior: those of the client's own {whose} solved from the buffers it sent"
    latest = before | after
    if all(_initial(name, latest) for name in norms):
        return {}, (
            "statistics prior off: the model's BatchNorm statistics are the initial ones and the "
            "client sent none, and without useful statistics GI fails"
        )
    running = {name: _of(name, norm, latest) for name, norm in norms.items()}
    return running, "statistics prior: the running statistics, not those of the client's own batch"


def statistics_prior(
    model: nn.Module, targets: Sequence[Statistics], example: Tensor
) -> Callable[[Tensor], Tensor]:
    """Return penalties from inputs (P, B, ...) to (P,); ``targets`` has one entry per guess.

    For each channel, the squared differences of mean and standard deviation in units of the target's
    variance, as the layers behind see them (Yin et al. take norms in the layer's own units, whose
    weight then depends on the model's scale); the mean over channels and layers. A guess without
    targets has no penalty.
    """
    names = sorted(set().union(*targets))
    known = example.new_tensor([bool(target) for target in targets])
    nothing = {name: _blank(next(t[name] for t in targets if name in t)) for name in names}
    full = [{**nothing, **target} for target in targets]
    means = {name: torch.stack([target[name].mean for target in full]) for name in names}
    floors = {name: nothing[name].eps for name in names}
    spreads = {
        name: (torch.stack([target[name].variance for target in full]) + floors[name]).sqrt()
        for name in names
    }
    measure = _measurement(model, names, example)

    def penalty(inputs: Tensor) -> Tensor:
        layers = []
        for name, (mean, variance) in measure(inputs).items():
            apart = (mean - means[name]).square()
            wider = ((variance + floors[name]).sqrt() - spreads[name]).square()
            layers.append(((apart + wider) / spreads[name].square()).mean(dim=1))
        return torch.stack(layers).mean(dim=0) * known

    return penalty


def _passes(
    obs: Observation,
    norms: Mapping[str, _BatchNorm],
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
) -> int:
    """Return the number of batches in the sent statistics; 0 if there are none or it is unknown."""
    if not obs.training:
        return 0
    for name, norm in norms.items():
        sent = [f"{name}.running_mean", f"{name}.running_var"]
        if norm.momentum == 0 or not all(part in after for part in sent):
            return 0
    # a client that has its layers frozen sends them as they were
    if all(torch.equal(after[part].to(before[part]), before[part]) for part in after if part in before):
        return 0
    count = f"{next(iter(norms))}.num_batches_tracked"
    if count in before and count in after:
        return max(0, round(float(after[count]) - float(before[count])))
    return obs.local_steps or 1


def _solved(
    name: str, norm: _BatchNorm, before: Mapping[str, Tensor], after: Mapping[str, Tensor], passes: int
) -> ChannelStatistics:
    """Return the statistics that the passes added: after = (1 - share) before + share batch."""
    if norm.momentum is None:
        # a cumulative average: every batch so far weighs the same
        share = passes / float(after[f"{name}.num_batches_tracked"])
    else:
        share = 1 - (1 - norm.momentum) ** passes
    parts = {}
    for part in (f"{name}.running_mean", f"{name}.running_var"):
        # in float64, because small shares magnify rounding
        old, new = before[part].double(), after[part].to(before[part].device).double()
        parts[part] = (old + (new - old) / share).to(before[part])
    return _of(name, norm, parts)


def _of(name: str, norm: _BatchNorm, buffers: Mapping[str, Tensor]) -> ChannelStatistics:
    like = norm.running_mean
    assert isinstance(like, Tensor)
    mean, variance = (buffers[f"{name}.{part}"].detach().to(like) for part in ("running_mean", "running_var"))
    # rounding, or noise on the buffers, can take a small variance below zero
    return ChannelStatistics(mean, variance.clamp_min(0), norm.eps)


def _initial(name: str, buffers: Mapping[str, Tensor]) -> bool:
    return not buffers[f"{name}.running_mean"].any() and bool((buffers[f"{name}.running_var"] == 1).all())


def _blank(like: ChannelStatistics) -> ChannelStatistics:
    return ChannelStatistics(torch.zeros_like(like.mean), torch.ones_like(like.variance), like.eps)


Measurement = dict[str, tuple[Tensor, Tensor]]
"""Mean and unbiased variance of what enters each layer."""


def _measurement(model: nn.Module, names: Sequence[str], example: Tensor) -> Callable[[Tensor], Measurement]:
    """Return the measurement of stacks like ``example``, in one graph if the model lets itself be batched."""
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    layers = {name: model.get_submodule(name) for name in names}

    def one(guess: Tensor) -> Measurement:
        seen: dict[str, list[Tensor]] = {name: [] for name in names}
        hooks = [
            layer.register_forward_pre_hook(lambda _, inputs, name=name: seen[name].append(inputs[0]))
            for name, layer in layers.items()
        ]
        try:
            functional_call(model, weights, (guess,))
        finally:
            for hook in hooks:
                hook.remove()
        return {name: _moments(inputs) for name, inputs in seen.items() if inputs}

    def in_turn(inputs: Tensor) -> Measurement:
        rows = [one(guess) for guess in inputs]
        return {
            name: (torch.stack([row[name][0] for row in rows]), torch.stack([row[name][1] for row in rows]))
            for name in rows[0]
        }

    together = vmap(one, randomness="different")
    try:
        with torch.no_grad():
            together(example[:2])
    except RuntimeError:
        return in_turn
    return together


def _moments(inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    means, variances = [], []
    for features in inputs:
        axes = (0, *range(2, features.ndim))
        mean = features.mean(dim=axes, keepdim=True)
        number = features.numel() // features.shape[1]
        means.append(mean.flatten())
        variances.append((features - mean).square().sum(dim=axes) / max(1, number - 1))
    # a layer that a forward pass uses twice counts both times, as its running statistics do
    return torch.stack(means).mean(dim=0), torch.stack(variances).mean(dim=0)
