import ast
import json

import pytest
import torch

from attacks.base import LabelSet, Reconstruction, Snapshot, Transcript
from attacks.score import aligned, score, score_trace
from fl_app.types import Truth


@pytest.fixture
def truth() -> Truth:
    return Truth(inputs=torch.rand(3, 3, 12, 12), labels=torch.tensor([2, 0, 2]))


def test_a_shuffled_perfect_recovery_scores_best_in_the_order_of_the_truth(truth):
    result = Reconstruction(truth.inputs[[2, 0, 1]], labels=torch.tensor([2, 2, 0]), objective=0.0)
    scores = score(result, truth)
    assert scores["matching"] == [1, 2, 0]
    assert scores["mse"] == [0.0] * 3
    assert scores["psnr"] == [120.0] * 3
    assert scores["ssim"] == pytest.approx([1.0] * 3)
    assert scores["labels"] == {"precision": 1.0, "recall": 1.0, "f1": 1.0, "exact": 1.0}
    torch.testing.assert_close(aligned(result, truth), truth.inputs)


def test_scores_are_json_without_special_numbers(truth):
    scores = score(Reconstruction(torch.rand(2, 3, 12, 12)), truth)
    assert json.loads(json.dumps(scores, allow_nan=False)) == scores
    assert scores["labels"] is None


def test_images_that_were_not_recovered_have_no_score_and_are_shown_black(truth):
    result = Reconstruction(truth.inputs[1:2])
    scores = score(result, truth)
    assert scores["matching"] == [None, 0, None]
    assert [value is None for value in scores["psnr"]] == [True, False, True]
    shown = aligned(result, truth)
    assert not shown[0].any()
    torch.testing.assert_close(shown[1], truth.inputs[1])


def test_nothing_recovered_is_scored_too(truth):
    scores = score(Reconstruction(torch.zeros(0, 3, 12, 12)), truth)
    assert scores["psnr"] == [None] * 3


def test_labels_of_a_reconstruction_are_compared_as_a_multiset(truth):
    result = Reconstruction(truth.inputs, labels=torch.tensor([2, 0, 0]))
    labels = score(result, truth)["labels"]
    assert labels["precision"] == pytest.approx(2 / 3)
    assert labels["recall"] == pytest.approx(2 / 3)
    assert labels["exact"] == 0.0


def test_a_label_set_without_counts_is_compared_as_a_set(truth):
    labels = score(LabelSet(torch.tensor([0, 2])), truth)["labels"]
    assert labels == {"precision": 1.0, "recall": 1.0, "f1": 1.0, "exact": 1.0}
    labels = score(LabelSet(torch.tensor([0, 1, 2, 3])), truth)["labels"]
    assert labels == {"precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3), "exact": 0.0}


def test_a_label_set_with_counts_is_compared_as_a_multiset(truth):
    right = LabelSet(torch.tensor([0, 2]), counts=torch.tensor([1, 2]))
    wrong = LabelSet(torch.tensor([0, 2]), counts=torch.tensor([2, 1]))
    assert score(right, truth)["labels"]["exact"] == 1.0
    assert score(wrong, truth)["labels"]["recall"] == pytest.approx(2 / 3)


def test_no_label_found_scores_zero(truth):
    labels = score(LabelSet(torch.zeros(0, dtype=torch.long)), truth)["labels"]
    assert labels == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "exact": 0.0}


def test_results_that_are_not_scored_here_are_refused(truth):
    with pytest.raises(TypeError, match="got str"):
        score("a text without tokens", truth)


def test_a_transcript_is_compared_token_by_token_and_word_by_word():
    # places 1 and 3 were masked (token 9 in the inputs), the model was asked for 5 and 7
    sentence = Truth(torch.tensor([[4, 9, 6, 9]]), torch.tensor([[-1, 5, -1, 7]]))
    words = {4: "we", 5: "##ll", 6: "said", 7: "he"}

    def spell(tokens):
        return " ".join(words[token] for token in tokens).replace(" ##", "")

    right = score(Transcript([4, 5, 6, 7]), sentence, spell=spell)["tokens"]
    assert right == {"accuracy": 1.0, "exact": 1.0, "error_rate": 0.0, "wer": 0.0}
    # "well said he" heard as "we said he": one token is missing, and one word of three is another
    shifted = score(Transcript([4, 6, 7]), sentence, spell=spell)["tokens"]
    assert shifted == {"accuracy": 0.25, "exact": 0.0, "error_rate": 0.25, "wer": pytest.approx(1 / 3)}


def test_tokens_that_were_granted_do_not_count():
    # the sentence is over after four places; the attacker knew 5 and 7
    sentence = Truth(torch.tensor([[4, 5, 6, 7, -1]]), torch.tensor([[-2, 5, -2, 7, -1]]))
    found = Transcript([9, 5, 6, 7])
    assert score(found, sentence)["tokens"]["accuracy"] == 0.75
    assert score(found, sentence, granted=True)["tokens"]["accuracy"] == 0.5
    assert score(found, sentence, granted=True)["tokens"]["error_rate"] == 0.25
    spoken = Truth(torch.rand(1, 9, 3), torch.tensor([[4, 5, -1, -1]]))
    assert score(Transcript([4, 5]), spoken, granted=True)["tokens"]["accuracy"] is None


def test_a_transcript_of_speech_is_compared_up_to_its_padding():
    spoken = Truth(torch.rand(1, 9, 3), torch.tensor([[4, 5, -1, -1]]))
    assert score(Transcript([4, 5]), spoken)["tokens"]["exact"] == 1.0
    assert score(Transcript([5, 5, 5]), spoken)["tokens"] == {
        "accuracy": 0.5,
        "exact": 0.0,
        "error_rate": 1.0,
        "wer": None,
    }


def test_the_bag_of_a_transcript_is_judged_unless_it_was_granted():
    spoken = Truth(torch.rand(1, 9, 3), torch.tensor([[4, 5, 6, -1]]))
    found = Transcript([6, 6, 4, 9])
    bag = score(found, spoken)["labels"]
    assert bag == {
        "precision": pytest.approx(2 / 3),
        "recall": pytest.approx(2 / 3),
        "f1": pytest.approx(2 / 3),
        "exact": 0,
    }
    assert score(Transcript([6, 5, 4, 4]), spoken)["labels"]["exact"] == 1
    assert score(found, spoken, granted=True)["labels"] is None


def test_a_transcript_needs_the_truth_of_one_sequence(truth):
    with pytest.raises(ValueError, match=r"labels \(1, L\), these are \(3,\)"):
        score(Transcript([1]), truth)


def test_no_other_module_of_the_attacks_can_see_the_truth(repository):
    knowing = [
        path.relative_to(repository / "attacks").as_posix()
        for path in (repository / "attacks").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and any(alias.name in ("Truth", "*") for alias in node.names)
    ]
    assert knowing == ["score.py"]


def test_snapshots_are_scored_as_images_are_in_the_mean_over_the_batch():
    inputs = 0.1 * torch.rand(2, 1, 8, 8)
    truth = Truth(inputs, torch.tensor([0, 1]))
    off = inputs.flip(0).clone()
    off[0, 0, 0, 0] += 0.8
    trace = [Snapshot(0, 1.0, 1.0, {}, off), Snapshot(5, 0.1, 0.1, {}, inputs)]
    first, last = score_trace(trace, truth)
    whole = score(Reconstruction(off), truth)
    assert first["mse"] == pytest.approx(0.64 / 64 / 2)
    assert first["ssim"] == pytest.approx(sum(whole["ssim"]) / 2)
    assert last["mse"] == 0
    assert first["mse"] > last["mse"]
