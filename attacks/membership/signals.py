"""Signals of single records under a model: losses, confidences, gradients."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

_AT_ONCE = 1 << 24
"""Entries of the gradients that are held at a time: 64 MiB in float32."""
_BATCH = 512


def model_inputs(inputs: Tensor, mean: Sequence[float], std: Sequence[float], like: nn.Module) -> Tensor:
    """Return records as the model sees them: on its device, of its type, normalised by channel."""
    parameter = next(like.parameters())
    inputs = inputs.to(parameter)
    if not len(mean):
        return inputs
    shift, scale = (inputs.new_tensor(list(values)).view(-1, 1, 1) for values in (mean, std))
    return (inputs - shift) / scale


def logits_of(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return one logit per class in evaluation mode; a single output is the second of two classes."""
    frozen = copy.deepcopy(model).eval()
    with torch.no_grad():
        parts = [frozen(part) for part in inputs.split(_BATCH)]
    return _two_or_more(torch.cat(parts)).double().cpu()


def losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each record."""
    return F.cross_entropy(logits, labels.cpu(), reduction="none")


def log_odds(logits: Tensor, labels: Tensor) -> Tensor:
    """Return log(p / (1 - p)) of the true class: close to normal over training sets (Carlini et al. 2022)."""
    true = logits.gather(1, labels.cpu().view(-1, 1)).flatten()
    others = logits.scatter(1, labels.cpu().view(-1, 1), -torch.inf).logsumexp(dim=1)
    return true - others


def record_gradients(
    model: nn.Module, inputs: Tensor, labels: Tensor, names: Sequence[str]
) -> Iterator[Tensor]:
    """Go through the gradients of single records' losses, flat by ``names``, a few records at a time.

    The model is in evaluation mode: a record alone has no batch to be normalised by.
    """
    frozen = copy.deepcopy(model).eval()
    weights = {name: p.detach() for name, p in frozen.named_parameters()}
    asked = {name: weights.pop(name) for name in names}
    rest = weights | {name: b.detach() for name, b in frozen.named_buffers()}

    def loss(chosen: dict[str, Tensor], one: Tensor, label: Tensor) -> Tensor:
        outputs = functional_call(frozen, (chosen, rest), (one.unsqueeze(0),))
        return F.cross_entropy(_two_or_more(outputs), label.unsqueeze(0))

    every = vmap(grad(loss), in_dims=(None, 0, 0), randomness="same")
    few = max(1, _AT_ONCE // max(1, sum(t.numel() for t in asked.values())))
    for part, truths in zip(inputs.split(few), labels.to(inputs.device).split(few), strict=True):
        found = every(asked, part, truths)
        yield torch.cat([found[name].flatten(1) for name in names], dim=1)


def _two_or_more(outputs: Tensor) -> Tensor:
    return F.pad(outputs, (1, 0)) if outputs.shape[1] == 1 else outputs
