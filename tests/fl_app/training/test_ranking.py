"""Balanced accuracy and the area under the ROC curve, by their definitions and against scikit-learn."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from fl_app.training.ranking import auroc, balanced_accuracy

pairs = st.lists(
    st.tuples(st.sampled_from([-1.0, 0.0, 0.25, 0.5, 3.0]), st.integers(0, 1)), min_size=2, max_size=40
).filter(lambda rows: {label for _, label in rows} == {0, 1})


@settings(deadline=None)
@given(pairs)
def test_the_area_is_the_chance_of_the_right_order_with_ties_half(rows):
    scores, labels = (torch.tensor(column) for column in zip(*rows, strict=True))
    ones, zeros = scores[labels == 1], scores[labels == 0]
    wins = [1.0 if a > b else 0.5 if a == b else 0.0 for a in ones.tolist() for b in zeros.tolist()]
    assert auroc(scores, labels) == pytest.approx(sum(wins) / len(wins))
    assert auroc(scores, labels) == pytest.approx(roc_auc_score(labels, scores))
    assert auroc(-scores, labels) == pytest.approx(1 - auroc(scores, labels))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
@pytest.mark.filterwarnings("ignore::UserWarning")  # a class that is predicted, but never true
def test_balanced_accuracy_is_that_of_scikit_learn(rows):
    predictions, labels = (torch.tensor(column) for column in zip(*rows, strict=True))
    assert balanced_accuracy(predictions, labels) == pytest.approx(
        balanced_accuracy_score(labels, predictions)
    )


def test_a_guess_that_is_always_the_same_is_worth_nothing():
    labels = torch.tensor([0] * 9 + [1])
    assert balanced_accuracy(torch.zeros(10, dtype=torch.int64), labels) == 0.5
    assert auroc(torch.ones(10), labels) == 0.5


@pytest.mark.parametrize("labels", [[0, 0], [1, 1], [1, 2]])
def test_an_area_needs_both_classes_and_no_others(labels):
    with pytest.raises(ValueError, match="auroc: labels must be 0 and 1, both of them"):
        auroc(torch.tensor([0.1, 0.2]), torch.tensor(labels))


def test_what_has_no_order_or_no_partner_is_refused():
    with pytest.raises(ValueError, match="auroc: the values hold NaN"):
        auroc(torch.tensor([0.1, float("nan")]), torch.tensor([0, 1]))
    with pytest.raises(ValueError, match="balanced_accuracy: expected one value a label"):
        balanced_accuracy(torch.zeros(2), torch.zeros(3))
