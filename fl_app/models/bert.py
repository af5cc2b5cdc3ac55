"""BERT (Devlin et al., NAACL 2019) for masked language modelling.

Written out in plain operations, for attacks differentiate the gradient once more: torch's fused attention
has no second derivative everywhere. Nothing drops out. There is one segment, so its embedding is part of
the positions'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fl_app.models.settings import check_count, check_flag

EPSILON = 1e-12
SPREAD = 0.02
"""Standard deviation of the initial weights, as in the paper's own code."""


def bert_mlm(
    num_classes: int,
    in_shape: Sequence[int],
    layers: int = 2,
    width: int = 64,
    heads: int = 4,
    inner: int = 256,
    tied: bool = False,
) -> nn.Module:
    """Build the model for up to L tokens, ``in_shape`` being (L,), out of ``num_classes``.

    ``width`` is that of embeddings and of what the layers pass on, ``inner`` that within their
    feed-forward halves. ``tied``: the layer ``output`` has the token embeddings for its weight.
    """
    if not isinstance(in_shape, Sequence) or len(in_shape) != 1:
        raise ValueError(f"bert_mlm: in_shape must be one positive integer (L,), got {in_shape!r}")
    counts = {"num_classes": num_classes, "the entry of in_shape": in_shape[0], "layers": layers}
    for what, value in (counts | {"width": width, "heads": heads, "inner": inner}).items():
        check_count("bert_mlm", what, value)
    check_flag("bert_mlm", "tied", tied)
    if width % heads:
        raise ValueError(f"bert_mlm: width must be a multiple of heads={heads}, got {width}")
    return Bert(num_classes, in_shape[0], layers, width, heads, inner, tied)


class Bert(nn.Module):
    """The whole model; its last layer ``output`` projects to the vocabulary."""

    def __init__(
        self, tokens: int, length: int, layers: int, width: int, heads: int, inner: int, tied: bool
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.positions = nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width, eps=EPSILON)
        self.layers = nn.ModuleList(Layer(width, heads, inner) for _ in range(layers))
        self.transform = nn.Linear(width, width)
        self.transform_norm = nn.LayerNorm(width, eps=EPSILON)
        self.output = nn.Linear(width, tokens)
        if tied:
            self.output.weight = self.tokens.weight
        self.apply(_draw)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits (N, L, C) of the tokens at each place of token ids (N, L).

        Ids below 0 fill the places behind a sentence's end: no place attends to those.
        """
        there = ids >= 0
        return self.from_embeddings(self.embed(ids.clamp(min=0)), None if there.all() else there)

    def embed(self, ids: Tensor) -> Tensor:
        """Return the embeddings (N, L, E) of tokens alone, without their positions."""
        embedded: Tensor = self.tokens(ids)
        return embedded

    def from_embeddings(self, embedded: Tensor, there: Tensor | None = None) -> Tensor:
        """Return the logits (N, L, C) for embeddings (N, L, E) like those of `embed`, or mixtures of such.

        ``there`` (N, L) says which places a sentence has; None: all.
        """
        states = self.place(embedded)
        for layer in self.layers:
            states = layer(states, there)
        logits: Tensor = self.output(self.transform_norm(nn.functional.gelu(self.transform(states))))
        return logits

    def place(self, embedded: Tensor) -> Tensor:
        """Return the first layer's input for embeddings (N, L, E): with their positions, and normalised."""
        length = embedded.shape[1]
        if length > len(self.positions.weight):
            raise ValueError(f"bert_mlm: at most {len(self.positions.weight)} tokens, got {length}")
        # taken by number, not by a slice: as with tokens, those of absent positions then have no gradient;
        # and for each sentence, so that Opacus can tell whose gradient it is
        numbers = torch.arange(length, device=embedded.device).expand(len(embedded), -1)
        placed: Tensor = self.norm(embedded + self.positions(numbers))
        return placed


class Layer(nn.Module):
    """Attention, then a feed-forward network at each place, both with residual connections."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.merge = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=EPSILON)
        self.widen = nn.Linear(width, inner)
        self.narrow = nn.Linear(inner, width)
        self.norm = nn.LayerNorm(width, eps=EPSILON)

    def forward(self, states: Tensor, there: Tensor | None = None) -> Tensor:
        """Return the next states (N, L, E); places that are not ``there`` (N, L) are not attended to."""
        states = self.attention_norm(states + self.merge(self._attend(states, there)))
        fed: Tensor = self.norm(states + self.narrow(nn.functional.gelu(self.widen(states))))
        return fed

    def _attend(self, states: Tensor, there: Tensor | None) -> Tensor:
        def by_head(projected: Tensor) -> Tensor:
            split: Tensor = projected.unflatten(-1, (self.heads, -1))
            return split.transpose(1, 2)

        query, key, value = (by_head(part(states)) for part in (self.query, self.key, self.value))
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
        if there is not None:
            scores = scores.masked_fill(~there[:, None, None], -math.inf)
        return (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)


@torch.no_grad()
def _draw(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        module.weight.normal_(std=SPREAD)
    if isinstance(module, nn.Linear):
        module.bias.zero_()
