"""Gradient of a decoder for guessed contexts and soft labels.

A linear layer's gradient is the sum over its calls of the output's gradient times the input. Guesses
are rows of one batch that know nothing of each other, so both are kept for each row, and one product
for each layer gives the gradients of all guesses. All of it can be differentiated once more.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

Gradients = dict[str, Tensor]
DecoderGradient = Callable[[Tensor, Tensor], Gradients]
"""From contexts (R, S, A) and labels (R, S, K) to gradients by parameter's name, one row a guess."""


class _Call(NamedTuple):
    """Input (R, I) and output (R, O) of a layer."""

    given: Tensor
    returned: Tensor


def decoder_gradient(model: nn.Module, pieces: Tensor, start: int) -> DecoderGradient:
    """Return the gradient of the mean cross-entropy over the tokens of one utterance.

    ``labels`` are weights of ``pieces`` (K,), those of all others are 0; a step's previous token
    is embedded as the mixture that its weights make (Dang et al. 2021, Section 4.1), the first one's is
    ``start``. Of ``output``, only the rows of ``pieces`` are returned.
    """
    decoder = copy.deepcopy(model.get_submodule("decoder")).requires_grad_(False)
    weight = model.get_parameter("output.weight").detach()
    bias = model.get_parameter("output.bias").detach()
    table = decoder.get_parameter("embedding.weight")
    first, embeddings, rows = table[start], table[pieces], weight[pieces]
    calls = _record(decoder)

    def gradient(contexts: Tensor, labels: Tensor) -> Gradients:
        for made in calls.values():
            made.clear()
        number, length, _ = labels.shape
        embedded = torch.cat([first.expand(number, 1, -1), labels[:, :-1] @ embeddings], dim=1)
        shown = decoder(embedded, lambda step, _: contexts[:, step])
        predicted = labels.sum(dim=2, keepdim=True) * (shown @ weight.T + bias).softmax(dim=2)
        # of the loss by the logits is predicted - labels; the closed form saves an array over the vocabulary
        pull = (predicted @ weight - labels @ rows) / length
        errors = (predicted[:, :, pieces] - labels) / length
        returned = [call.returned for made in calls.values() for call in made]
        back = iter(torch.autograd.grad(shown, returned, pull, create_graph=True))
        found = {"output.weight": errors.transpose(1, 2) @ shown, "output.bias": errors.sum(dim=1)}
        for name, made in calls.items():
            above = torch.stack([next(back) for _ in made], dim=1)
            below = torch.stack([call.given for call in made], dim=1)
            found[f"{name}.weight"] = above.transpose(1, 2) @ below
            found[f"{name}.bias"] = above.sum(dim=1)
        return found

    return gradient


def _record(decoder: nn.Module) -> dict[str, list[_Call]]:
    """Keep every call of each linear layer, by the layer's name in the model."""
    calls: dict[str, list[_Call]] = {}

    def listen(name: str) -> Callable[[nn.Module, tuple[Tensor], Tensor], None]:
        # what depends on no guess, as at the first step, has a gradient nevertheless
        return lambda _, given, returned: calls[name].append(_Call(given[0], returned.requires_grad_()))

    for name, layer in decoder.named_modules(prefix="decoder"):
        if isinstance(layer, nn.Linear):
            calls[name] = []
            layer.register_forward_hook(listen(name))
    return calls
