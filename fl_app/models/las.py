"""Listen, attend and spell (Chan et al., ICASSP 2016): speech to word pieces, one after another.

The encoder is a pyramid of bidirectional LSTMs, each of which halves the number of frames. The decoder
is an LSTM that looks at the encoder's frames after each token. The encoder is torch's own LSTM, which is
quick, and which a GPU differentiates only once. The decoder is written out in plain operations: attacks
differentiate its gradient once more, from the tokens' embeddings and the context vectors on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from fl_app.models.settings import check_count

Look = Callable[[int, Tensor], Tensor]
"""Maps a step's number and the decoder's state (N, D) to the step's context vectors (N, A)."""


def las(
    num_classes: int,
    in_shape: Sequence[int],
    encoder: int = 64,
    layers: int = 3,
    embedding: int = 64,
    attention: int = 64,
    decoder: int = 128,
) -> nn.Module:
    """Build the model for frames (T, F) and ``num_classes`` tokens.

    Widths: ``encoder`` of each direction of each of ``layers`` layers, so context vectors have twice as many
    entries; ``embedding`` of tokens; ``attention`` of what is compared to find where to look;
    ``decoder`` of the LSTM that spells, and of what the layer ``output`` sees.
    """
    if not isinstance(in_shape, Sequence) or len(in_shape) != 2:
        raise ValueError(f"las: in_shape must be two positive integers (T, F), got {in_shape!r}")
    counts = {
        "num_classes": num_classes,
        "the frames of in_shape": in_shape[0],
        "the bands of in_shape": in_shape[1],
    }
    counts |= {"encoder": encoder, "layers": layers, "embedding": embedding}
    for what, value in (counts | {"attention": attention, "decoder": decoder}).items():
        check_count("las", what, value)
    return ListenAttendSpell(
        encoder=Encoder(in_shape[1], encoder, layers),
        attention=Attention(decoder, 2 * encoder, attention),
        decoder=Decoder(num_classes, embedding, 2 * encoder, decoder),
        output=nn.Linear(decoder, num_classes),
    )


class ListenAttendSpell(nn.Module):
    """The whole model; its last layer ``output`` projects to the vocabulary."""

    def __init__(self, encoder: Encoder, attention: Attention, decoder: Decoder, output: nn.Linear) -> None:
        super().__init__()
        self.encoder = encoder
        self.attention = attention
        self.decoder = decoder
        self.output = output

    def forward(self, frames: Tensor, previous: Tensor) -> Tensor:
        """Return the logits (N, L, C) of each token, told the ``previous`` ones (N, L).

        Frames (N, T, F) of zeros after the last other one are no part of an utterance.
        """
        embedded = self.decoder.embedding(previous)
        logits: Tensor = self.output(self.decoder(embedded, self._look(frames)))
        return logits

    def decode(self, embedded: Tensor, contexts: Tensor) -> Tensor:
        """Return the logits (N, L, C), given each step's context vector (N, L, A), without any frames.

        ``embedded`` (N, L, E) are the embeddings of the previous tokens, or mixtures of such.
        """
        logits: Tensor = self.output(self.decoder(embedded, lambda step, _: contexts[:, step]))
        return logits

    @torch.no_grad()
    def recognise(self, frames: Tensor, *, start: int, end: int, limit: int) -> Tensor:
        """Return the likeliest token of each step (N, up to ``limit``), told those found so far.

        After its ``end`` an utterance has nothing but that.
        """
        look, state = self._look(frames), self.decoder.begin(frames)
        token = torch.full((len(frames),), start, device=frames.device)
        found: list[Tensor] = []
        for step in range(limit):
            state = self.decoder.step(self.decoder.embedding(token), state, look, step)
            likeliest = self.output(state.shown).argmax(dim=1)
            token = torch.where(token == end, end, likeliest)
            found.append(token)
            if (token == end).all():
                break
        return torch.stack(found, dim=1)

    def _look(self, frames: Tensor) -> Look:
        heard = self.encoder(frames)
        keys = self.attention.keys(heard.states)
        return lambda _, hidden: self.attention(hidden, keys, heard)


class Heard(NamedTuple):
    """Encoded utterances."""

    states: Tensor
    """(N, T', A)"""
    lengths: Tensor
    """Number of states of each utterance (N,)."""


class Encoder(nn.Module):
    """Bidirectional LSTMs, each of which takes two neighbouring frames at a time."""

    def __init__(self, bands: int, width: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.LSTM(4 * width if layer else 2 * bands, width, batch_first=True, bidirectional=True)
            for layer in range(layers)
        )
        for name, parameter in self.layers.named_parameters():
            _draw_gates(name, parameter)

    def forward(self, frames: Tensor) -> Heard:
        """Listen to frames (N, T, F)."""
        lengths = utterance_lengths(frames)
        states = frames[:, : int(lengths.max())]
        for layer in self.layers:
            states, lengths = _join_pairs(states), (lengths + 1) // 2
            # packed: what comes after an utterance's end must not be heard backwards
            packed = pack_padded_sequence(states, lengths.cpu(), batch_first=True, enforce_sorted=False)
            states, _ = pad_packed_sequence(layer(packed)[0], batch_first=True)
        return Heard(states, lengths)


class Attention(nn.Module):
    """Products of the decoder's state with each of the encoder's, and their softmax."""

    def __init__(self, state: int, heard: int, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(state, width)
        # without a bias: it would add the same to all scores, which a softmax does not see
        self.keys = nn.Linear(heard, width, bias=False)

    def forward(self, hidden: Tensor, keys: Tensor, heard: Heard) -> Tensor:
        """Return the context vectors (N, A): weighted means of the encoder's states."""
        scores: Tensor = (keys @ self.query(hidden).unsqueeze(2)).squeeze(2)
        over = torch.arange(keys.shape[1], device=keys.device) >= heard.lengths.unsqueeze(1)
        weights = scores.masked_fill(over, float("-inf")).softmax(dim=1)
        return (weights.unsqueeze(1) @ heard.states).squeeze(1)


class State(NamedTuple):
    """State of the decoder."""

    hidden: Tensor
    cell: Tensor
    context: Tensor
    shown: Tensor
    """Input of ``output`` (N, D), in (-1, 1)."""


class Decoder(nn.Module):
    """An LSTM over the previous tokens and contexts, written out so that it can be differentiated twice."""

    def __init__(self, tokens: int, embedding: int, context: int, width: int) -> None:
        super().__init__()
        self.context, self.width = context, width
        self.embedding = nn.Embedding(tokens, embedding)
        self.gates = nn.Linear(embedding + context + width, 4 * width)
        self.show = nn.Linear(width + context, width)
        with torch.no_grad():
            self.gates.bias[width : 2 * width] = 1.0  # of the forget gate: at first, remember

    def forward(self, embedded: Tensor, look: Look) -> Tensor:
        """Return what ``output`` sees (N, L, D) for embedded previous tokens (N, L, E)."""
        state, shown = self.begin(embedded), []
        for step, one in enumerate(embedded.unbind(dim=1)):
            state = self.step(one, state, look, step)
            shown.append(state.shown)
        return torch.stack(shown, dim=1)

    def begin(self, like: Tensor) -> State:
        """Return the state before the first token, for as many utterances as ``like`` has."""
        nothing = like.new_zeros(len(like), self.width)
        return State(nothing, nothing, like.new_zeros(len(like), self.context), nothing)

    def step(self, embedded: Tensor, state: State, look: Look, step: int) -> State:
        """Advance by one token (N, E)."""
        seen = torch.cat([embedded, state.context, state.hidden], dim=1)
        let_in, forget, value, let_out = self.gates(seen).chunk(4, dim=1)
        cell = forget.sigmoid() * state.cell + let_in.sigmoid() * value.tanh()
        hidden = let_out.sigmoid() * cell.tanh()
        context = look(step, hidden)
        return State(hidden, cell, context, self.show(torch.cat([hidden, context], dim=1)).tanh())


@torch.no_grad()
def _draw_gates(name: str, parameter: Tensor) -> None:
    """Draw the parameters of an LSTM large enough for its input to count: torch draws far smaller ones."""
    for gate in parameter.chunk(4):
        if "weight_ih" in name:
            nn.init.xavier_uniform_(gate)
        elif "weight_hh" in name:
            nn.init.orthogonal_(gate)
        else:
            gate.zero_()


def utterance_lengths(frames: Tensor) -> Tensor:
    """Return the number (N,) of frames (N, T, F) up to the last one that is not zero; at least one."""
    numbers = torch.arange(1, frames.shape[1] + 1, device=frames.device)
    return ((frames != 0).any(dim=2) * numbers).amax(dim=1).clamp(min=1)


def _join_pairs(states: Tensor) -> Tensor:
    """Return every two neighbours of (N, T, F) as one; an odd one is joined with zeros."""
    even = F.pad(states, (0, 0, 0, states.shape[1] % 2))
    return even.reshape(len(states), even.shape[1] // 2, -1)
