"""Masked sentences: the choice of tokens that a masked language model must predict.

[MASK] replaces every token to predict. BERT's own recipe instead leaves a tenth of them unchanged and
replaces another tenth by random tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fl_app.data import PADDING, UNASKED
from fl_app.text import WordPiece
from fl_app.text.tokenizer import CLS, MASK, SEP
from fl_app.training.local_data import Ask


def hide_tokens(vocabulary: WordPiece, share: float) -> Ask:
    """Hide ``share`` of each sentence's tokens, at least one, but never [CLS] or [SEP].

    The labels are `UNASKED` at visible tokens and `PADDING` after the end of the sentence.
    """
    outside = torch.tensor([PADDING, vocabulary.sign(CLS), vocabulary.sign(SEP)])
    mask = vocabulary.sign(MASK)

    def ask(sentences: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inner = ~torch.isin(sentences, outside.to(sentences.device))
        counts = (share * inner.sum(dim=1)).round().clamp(min=1)
        # drawn on the CPU, so that a sentence has the same hidden tokens on every device
        draws = torch.rand(sentences.shape, generator=generator, device="cpu").to(sentences.device)
        ranks = torch.where(inner, draws, 2.0).argsort(dim=1).argsort(dim=1)
        hidden = inner & (ranks < counts[:, None])
        labels = torch.where(hidden, sentences, UNASKED).where(sentences != PADDING, PADDING)
        return sentences.where(~hidden, mask), labels

    return ask


def fill_in(model: nn.Module, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Predict each hidden token; tokens of all sentences have equal weight."""
    # cut columns that are padding in every sentence: they only cost time
    shown = (inputs != PADDING).any(dim=0)
    asked = labels[:, shown] >= 0
    return model(inputs[:, shown])[asked], labels[:, shown][asked]
