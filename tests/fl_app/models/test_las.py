"""Listen, attend and spell: what it hears, what it is told, and what attacks need of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fl_app.models import ModelSpec, build_model, las
from fl_app.models.layers import linear_layer, watched

BANDS, TOKENS, START = 6, 9, 1
SMALL = {"encoder": 5, "layers": 2, "embedding": 4, "attention": 3, "decoder": 7}


def make(**settings) -> nn.Module:
    torch.manual_seed(0)
    return las(TOKENS, (30, BANDS), **(SMALL | settings)).double()


def utterance(frames: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(1, frames, BANDS, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def tokens(*rows: list[int]) -> torch.Tensor:
    return torch.tensor(rows)


@pytest.mark.parametrize("frames", [1, 2, 5, 8, 13])
@pytest.mark.parametrize("layers", [1, 3])
def test_zeros_after_the_end_and_others_in_the_batch_change_nothing(frames, layers):
    model, previous = make(layers=layers), tokens([START, 4, 5])
    alone = model(utterance(frames), previous)
    padded = torch.cat([F.pad(utterance(frames), (0, 0, 0, 20 - frames)), utterance(20, seed=1)])
    together = model(padded, previous.expand(2, 3))
    torch.testing.assert_close(together[:1], alone)
    assert not torch.allclose(together[1:], alone)


def test_every_frame_is_heard_and_silence_within_is_none_of_the_end():
    model, previous = make(), tokens([START, 4])
    frames = utterance(9).requires_grad_()
    (heard,) = torch.autograd.grad(model(frames, previous).square().sum(), frames)
    assert (heard.abs().sum(dim=2) > 0).all()
    paused = utterance(9)
    paused[:, 4] = 0.0
    shorter = paused[:, [0, 1, 2, 3, 5, 6, 7, 8]]
    assert not torch.allclose(model(paused, previous), model(shorter, previous))


def test_a_token_depends_on_those_before_it_and_on_none_after():
    model, frames = make(), utterance(12)
    one, other = (model(frames, tokens(row)) for row in ([START, 4, 5, 6], [START, 4, 8, 6]))
    torch.testing.assert_close(one[:, :2], other[:, :2])
    assert not torch.allclose(one[:, 2], other[:, 2])
    assert not torch.allclose(one[:, 3], other[:, 3])


def test_the_decoder_is_an_lstm_as_torch_has_it():
    """The same gates in torch's cell, with its own order of inputs."""
    model = make()
    decoder, cell = model.decoder, nn.LSTMCell(4 + 10, 7).double()
    with torch.no_grad():
        cell.weight_ih.copy_(decoder.gates.weight[:, :14])
        cell.weight_hh.copy_(decoder.gates.weight[:, 14:])
        cell.bias_ih.copy_(decoder.gates.bias)
        cell.bias_hh.zero_()
    embedded, contexts = torch.randn(3, 4, 4).double(), torch.randn(3, 4, 10).double()
    hidden = memory = torch.zeros(3, 7).double()
    context, expected = torch.zeros(3, 10).double(), []
    for step in range(4):
        hidden, memory = cell(torch.cat([embedded[:, step], context], 1), (hidden, memory))
        context = contexts[:, step]
        expected.append(model.output(torch.tanh(decoder.show(torch.cat([hidden, context], 1)))))
    torch.testing.assert_close(model.decode(embedded, contexts), torch.stack(expected, 1))


def test_its_own_context_vectors_give_its_own_logits_without_any_frames():
    model, previous = make(), tokens([START, 3, 5, 5], [START, 8, 7, 2])
    frames = torch.cat([utterance(11, seed=3), utterance(11, seed=4)])
    with watched(model.attention) as calls:
        logits = model(frames, previous)
    contexts = torch.stack([call.output for call in calls], dim=1)
    assert contexts.shape == (2, 4, 2 * SMALL["encoder"])
    torch.testing.assert_close(model.decode(model.decoder.embedding(previous), contexts), logits)


def test_context_vectors_are_means_of_what_was_heard():
    """By its definition, utterance by utterance."""
    model, previous = make(), tokens([START], [START])
    frames = torch.cat([F.pad(utterance(6, seed=5), (0, 0, 0, 7)), utterance(13, seed=6)])
    with watched(model.attention) as calls, watched(model.encoder) as heard:
        model(frames, previous)
    states, lengths = heard[0].output
    assert lengths.tolist() == [2, 4]
    for i, length in enumerate(lengths.tolist()):
        query = model.attention.query.weight @ calls[0].input[i] + model.attention.query.bias
        scores = torch.stack([query @ (model.attention.keys.weight @ states[i, t]) for t in range(length)])
        weights = scores.exp() / scores.exp().sum()
        expected = sum(weights[t] * states[i, t] for t in range(length))
        torch.testing.assert_close(calls[0].output[i], expected)


def gradient_match(model: nn.Module, embedded: torch.Tensor, contexts: torch.Tensor) -> torch.Tensor:
    """The squared norm of the gradient of what an attack sees: decoder and output."""
    names = [
        p for n, p in model.named_parameters() if n.startswith(("decoder.gates", "decoder.show", "output"))
    ]
    logits = model.decode(embedded, contexts)
    loss = F.cross_entropy(logits.flatten(0, 1), tokens([3, 5, 2]).flatten())
    return sum((g**2).sum() for g in torch.autograd.grad(loss, names, create_graph=True))


def test_the_gradient_of_the_decoders_gradient_is_that_of_finite_differences():
    model = make()
    embedded, contexts = (torch.randn(1, 3, n).double().requires_grad_() for n in (4, 10))
    assert torch.autograd.gradcheck(lambda e, c: gradient_match(model, e, c), (embedded, contexts))


def test_the_gradient_of_the_last_layer_has_the_rank_of_the_transcript():
    model = las(200, (30, BANDS), **(SMALL | {"decoder": 24})).double()
    labels = tokens([17, 3, 90, 17, 2])
    previous = torch.cat([tokens([START]), labels[:, :-1]], dim=1)
    loss = F.cross_entropy(model(utterance(25), previous).flatten(0, 1), labels.flatten())
    (gradient,) = torch.autograd.grad(loss, [model.output.weight])
    assert int(torch.linalg.matrix_rank(gradient)) == 5


def test_output_is_the_last_layer_and_sees_numbers_of_both_signs():
    model = make()
    name, layer = linear_layer(model, who="test")
    assert (name, layer.out_features) == ("output", TOKENS)
    assert [n for n, _ in model.named_parameters()][-2:] == ["output.weight", "output.bias"]
    assert not list(model.buffers())
    with watched(model.output) as calls:
        model(utterance(10), tokens([START, 4, 5, 6]))
    assert calls[0].input.min() < 0 < calls[0].input.max()
    assert calls[0].input.abs().max() < 1


def test_every_parameter_learns():
    model = make(layers=3)
    loss = F.cross_entropy(
        model(utterance(20), tokens([START, 4, 5])).flatten(0, 1), tokens([4, 5, 2]).flatten()
    )
    for name, gradient in zip(
        dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True
    ):
        assert gradient.abs().max() > 1e-12, name


@pytest.mark.parametrize("end", [0, 2, 4])
def test_what_it_recognises_is_the_likeliest_token_each_time_and_nothing_after_its_end(end):
    torch.manual_seed(7)
    model = las(TOKENS, (30, BANDS), **SMALL).double()
    with torch.no_grad():
        for p in model.parameters():
            p *= 3.0  # so that tokens and utterances differ
    frames = torch.cat([utterance(14, seed=i) for i in range(6)])
    found = model.recognise(frames, start=START, end=end, limit=8)
    lengths = set()
    for row, one in zip(found.tolist(), frames.split(1), strict=True):
        told = [START]
        while len(told) < 9 and told[-1] != end:
            told.append(int(model(one, tokens(told))[0, -1].argmax()))
        assert row == told[1:] + [end] * (found.shape[1] - len(told) + 1)
        lengths.add(len(told) - 1)
    assert len(lengths) > 1
    assert found.shape[1] == max(lengths)


def test_is_on_the_list_of_models_and_checks_its_settings():
    spec = ModelSpec("fl_app.models.las", {"num_classes": 5, "in_shape": [9, BANDS], **SMALL})
    assert build_model(spec)(torch.rand(2, 9, BANDS), tokens([1], [1])).shape == (2, 1, 5)
    with pytest.raises(
        ValueError, match=r"las: in_shape must be two positive integers \(T, F\), got \(3, 8, 8\)"
    ):
        las(5, (3, 8, 8))
    with pytest.raises(ValueError, match="las: decoder must be a positive integer, got 0"):
        las(5, (9, 8), decoder=0)
    with pytest.raises(ValueError, match="las: the bands of in_shape must be a positive integer, got 0"):
        las(5, (9, 0))
