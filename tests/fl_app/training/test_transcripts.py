"""What a speech task asks of a model, and how its answers are judged; other tasks are as they were."""

from __future__ import annotations

import pytest
import torch
from tone_corpus import write_corpus
from torch import nn
from torch.nn import functional as F

from fl_app.data import PADDING, Dataset, Samples, photos, speech
from fl_app.models import las
from fl_app.text.word_errors import word_error_rate
from fl_app.training import LocalData, backpropagate, cross_entropy, evaluate, task_of
from fl_app.training.predictions import classify

CPU = torch.device("cpu")


@pytest.fixture
def data(tmp_path) -> Dataset:
    return speech(write_corpus(tmp_path, speakers=4), mels=12)


@pytest.fixture
def model(data) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"encoder": 6, "layers": 2, "embedding": 5, "attention": 4, "decoder": 8}
    return las(data.num_classes, data.in_shape, **sizes).double()


@torch.no_grad()
def every_token(data: Dataset, model: nn.Module, samples: Samples) -> list[tuple[torch.Tensor, int]]:
    """The logits of each token and the token, of one utterance after another, without any padding."""
    found = []
    for frames, row in zip(samples.inputs.double(), samples.labels, strict=True):
        spoken = row[row != PADDING].tolist()
        previous = torch.tensor([[data.vocabulary.start, *spoken[:-1]]])
        found += list(zip(model(frames[None], previous)[0], spoken, strict=True))
    return found


def test_the_loss_is_the_mean_over_all_tokens_and_over_nothing_else(data, model):
    local = LocalData(data.train, data.mean, data.std, 0, 0, task_of(data).predict)
    chosen = torch.tensor([3, 0, 11, 7])
    batch = local.batch(chosen, CPU, torch.float64)
    each = [
        F.cross_entropy(z[None], torch.tensor([y]))
        for z, y in every_token(data, model, data.train.take(chosen))
    ]
    torch.testing.assert_close(cross_entropy(model, batch), sum(each) / len(each))


def test_scores_are_those_of_one_utterance_after_another(data, model):
    samples = data.test
    found = task_of(data).evaluate(model, samples)
    tokens = every_token(data, model, samples)
    assert found.accuracy == pytest.approx(sum(int(z.argmax()) == y for z, y in tokens) / len(tokens))
    losses = [float(F.cross_entropy(z[None], torch.tensor([y]))) for z, y in tokens]
    assert found.loss == pytest.approx(sum(losses) / len(losses))
    said, heard = [], []
    for frames, row in zip(samples.inputs.double(), samples.labels, strict=True):
        told = [data.vocabulary.start]
        while len(told) <= samples.labels.shape[1] and told[-1] != data.vocabulary.end:
            told.append(int(model(frames[None], torch.tensor([told]))[0, -1].argmax()))
        heard.append(data.vocabulary.decode(told))
        said.append(data.vocabulary.decode(row[row != PADDING].tolist()))
    assert found.wer == word_error_rate(said, heard)
    assert found.auroc is found.balanced_accuracy is None


def test_a_model_that_always_ends_hears_no_word_and_one_that_knows_all_makes_no_error(data, model):
    with torch.no_grad():
        model.output.bias[data.vocabulary.end] = 1e3
    assert task_of(data).evaluate(model, data.test).wer == 1.0

    class Oracle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.output = nn.Linear(1, 1)

        def forward(self, frames, previous):
            labels = data.test.labels[:, : previous.shape[1]].clamp(min=0)
            return F.one_hot(labels, data.num_classes).float()

        def recognise(self, frames, *, start, end, limit):
            return torch.where(data.test.labels == PADDING, end, data.test.labels)

    perfect = task_of(data).evaluate(Oracle(), data.test)
    assert (perfect.accuracy, perfect.wer) == (1.0, 0.0)


def test_images_are_trained_and_judged_bit_for_bit_as_a_plain_model_is():
    data = photos(train_per_class=3, test_per_class=2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10))
    task = task_of(data)
    assert task.predict is classify
    assert task.evaluate(model, data.test) == evaluate(model, data.test, data.mean, data.std)
    assert task.evaluate(model, data.test).wer is None
    batch = LocalData(data.train, data.mean, data.std, 0, 0).batch(torch.arange(9), CPU, torch.float32)
    value, gradient = backpropagate(model, batch, cross_entropy, None)
    plain = F.cross_entropy(model(batch.inputs), batch.labels)
    assert value == plain.item()
    for found, expected in zip(
        gradient.values(), torch.autograd.grad(plain, list(model.parameters())), strict=True
    ):
        assert torch.equal(found, expected)


FRAMES, SPEAKERS = torch.randn(2, 5, 3), torch.tensor([0, 1])


@pytest.mark.parametrize(
    ("inputs", "labels", "sources", "message"),
    [
        (FRAMES, torch.tensor([0, 1]), SPEAKERS, r"labels must be int64 \(N, L\)"),
        (FRAMES, torch.tensor([[0], [1]]), None, "utterances and sentences must have sources"),
        (FRAMES, torch.tensor([[0], [1]]), SPEAKERS[:1], r"sources must be int64 \(N,\)"),
        (FRAMES, torch.tensor([[0, 1], [-1, -1]]), SPEAKERS, "a row of tokens must begin with one"),
        (FRAMES, torch.tensor([[0, -1, 1], [1, 1, 1]]), SPEAKERS, "-1 after its end alone"),
    ],
)
def test_utterances_are_checked_when_they_are_made(inputs, labels, sources, message):
    with pytest.raises(ValueError, match=f"Samples: .*{message}"):
        Samples(inputs, labels, sources)


def test_a_data_set_of_speech_needs_its_vocabulary_and_the_names_of_its_speakers(data):
    plain = {"train": data.train, "test": data.test, "num_classes": 31, "in_shape": data.in_shape}
    plain |= {"name": "tones", "mean": (), "std": (), "class_names": data.class_names}
    with pytest.raises(ValueError, match="Dataset tones"):
        Dataset(**plain, source_names=data.source_names)
    with pytest.raises(ValueError, match=r"sources must be in 0\.\.1, got"):
        Dataset(**plain, source_names=data.source_names[:2], vocabulary=data.vocabulary)
    assert Dataset(**plain, source_names=data.source_names, vocabulary=data.vocabulary).group_names


@pytest.mark.slow
def test_it_learns_to_hear_words_of_speakers_it_has_never_heard(tmp_path):
    words = ["lo", "low", "▁low", "mi", "mid", "▁mid", "to", "top", "▁top"]
    pieces = ["<unk>", "<s>", "</s>", "▁", *"lowmidtp", *words]
    (tmp_path / "pieces.txt").write_text("\n".join(pieces), encoding="utf-8")
    data = speech(write_corpus(tmp_path / "corpus", speakers=10), tmp_path / "pieces.txt", mels=20)
    sizes = {"encoder": 16, "layers": 2, "embedding": 8, "attention": 16, "decoder": 32}
    model, task = las(data.num_classes, data.in_shape, **sizes), task_of(data)
    local = LocalData(data.train, data.mean, data.std, 0, 0, task.predict)
    assert task.evaluate(model, data.test).wer >= 0.8
    for step in range(200):
        batch = local.batch(local.window(16 * step, 16), CPU, torch.float32)
        _, gradient = backpropagate(model, batch, cross_entropy, None)
        with torch.no_grad():
            for name, p in model.named_parameters():
                p -= gradient[name]
    assert task.evaluate(model, data.test).wer < 0.3
