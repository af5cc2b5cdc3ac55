"""Sentences with holes: who is asked for what, and that neither padding nor company changes an answer."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fl_app.data import PADDING, UNASKED, Samples, text
from fl_app.models import bert_mlm
from fl_app.seeding import SERVER, generator_for
from fl_app.text import english
from fl_app.training import LocalData, task_of
from fl_app.training.masking import fill_in, hide_tokens
from fl_app.training.reading import evaluate_reading

CLS, SEP, MASK = (english().sign(name) for name in ("[CLS]", "[SEP]", "[MASK]"))


@pytest.fixture(scope="module")
def data():
    return text()


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return bert_mlm(2000, (32,), layers=2, width=16, heads=2, inner=32).double()


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("share", [0.01, 0.15, 0.5, 0.99])
def test_as_many_tokens_are_hidden_as_the_share_says_and_never_the_signs(data, share):
    sentences = data.train.inputs
    shown, labels = hide_tokens(english(), share)(sentences, drawn())
    hidden = labels >= 0
    for row, holes in zip(sentences, hidden, strict=True):
        inner = sum(token not in (PADDING, CLS, SEP) for token in row.tolist())
        assert int(holes.sum()) == max(1, round(share * inner))
    assert not torch.isin(sentences[hidden], torch.tensor([PADDING, CLS, SEP])).any()
    assert (shown[hidden] == MASK).all()


def test_what_is_hidden_and_what_is_shown_make_the_sentence(data):
    sentences = data.train.inputs
    shown, labels = hide_tokens(english(), 0.3)(sentences, drawn())
    assert torch.equal(torch.where(labels >= 0, labels, shown), sentences)
    assert torch.equal(labels == PADDING, sentences == PADDING)
    assert set(labels[labels < 0].tolist()) == {PADDING, UNASKED}


def test_every_place_is_hidden_equally_often():
    sentence = torch.tensor([[CLS, *range(100, 110), SEP]]).expand(4000, -1)
    _, labels = hide_tokens(english(), 0.2)(sentence, drawn())
    shares = (labels >= 0).double().mean(dim=0)
    # five standard deviations of a share of 4,000 draws
    assert (shares[1:-1] - 0.2).abs().max() < 5 * (0.2 * 0.8 / 4000) ** 0.5


def test_a_batch_draws_its_holes_from_the_generator_that_it_is_given(data):
    task = task_of(data)
    local = LocalData(data.train, (), (), 7, 3, task.predict, task.ask)

    def batch(generator):
        return local.batch(torch.arange(6), torch.device("cpu"), torch.float32, generator=generator)

    one, same, other = batch(drawn(1)), batch(drawn(1)), batch(drawn(2))
    assert torch.equal(one.inputs, same.inputs)
    assert not torch.equal(one.inputs, other.inputs)
    assert torch.equal(one.pixels, data.train.inputs[:6])
    assert one.trained is one.pixels
    assert torch.equal(batch(None).inputs, batch(None).inputs)


def test_padding_and_company_change_no_answer(data, model):
    shown, labels = hide_tokens(english(), 0.2)(data.train.inputs[:5], drawn())
    together, asked = fill_in(model, shown, labels)
    alone = []
    for row, targets in zip(shown, labels, strict=True):
        whole = row != PADDING
        alone.append(model(row[None, whole])[0][targets[whole] >= 0])
    torch.testing.assert_close(together, torch.cat(alone))
    assert torch.equal(asked, labels[labels >= 0])


def test_tokens_and_places_that_are_not_there_have_no_gradient(data, model):
    shown, labels = hide_tokens(english(), 0.2)(data.train.inputs[:5], drawn())
    loss = F.cross_entropy(*fill_in(model, shown, labels))
    tokens, places = torch.autograd.grad(loss, (model.tokens.weight, model.positions.weight))
    occurring = shown[shown >= 0].unique()
    assert torch.equal(tokens.any(dim=1).nonzero().flatten(), occurring)
    assert places.any(dim=1).sum() == (shown != PADDING).sum(dim=1).max()


def test_scores_are_those_of_the_hidden_tokens_and_the_same_each_time(data, model):
    ask, dot = hide_tokens(english(), 0.15), english().encode(".")[0]
    generator = generator_for(0, 0, SERVER, "masks")
    asked = torch.cat([ask(part, generator)[1] for part in data.test.inputs.split(64)])
    hidden = asked[asked >= 0]

    class SaysDot(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = torch.nn.Parameter(torch.zeros(1))

        def forward(self, ids):
            return 20.0 * F.one_hot(torch.full_like(ids, dot), 2000)

    found = evaluate_reading(SaysDot(), data.test, ask)
    share = int((hidden == dot).sum()) / len(hidden)
    assert 0 < share < 1
    assert found.accuracy == pytest.approx(share)
    assert found.loss == pytest.approx(20 * (1 - share), rel=1e-3)
    assert found.balanced_accuracy is found.auroc is found.wer is None
    assert evaluate_reading(model, data.test, ask) == evaluate_reading(model, data.test, ask)


@pytest.mark.parametrize(
    ("inputs", "labels", "message"),
    [
        (torch.tensor([[2, 3]]), torch.tensor([[2, 4]]), "the labels of sentences must be the sentences"),
        (torch.tensor([[2, -1, 3]]), torch.tensor([[2, -1, 3]]), "-1 after its end alone"),
        (torch.tensor([[2, 3]]), torch.tensor([2]), r"labels must be int64 \(N, L\)"),
    ],
)
def test_sentences_are_checked_when_they_are_made(inputs, labels, message):
    with pytest.raises(ValueError, match=f"Samples: .*{message}"):
        Samples(inputs, labels, torch.tensor([0]))
