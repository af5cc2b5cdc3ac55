import torch

from attacks.sequences.settled import Settled


def labels(*rows: list[int]) -> dict[str, torch.Tensor]:
    return {"labels": torch.nn.functional.one_hot(torch.tensor(rows), 4).double()}


def test_all_guesses_must_have_kept_their_tokens_for_long_enough():
    settled = Settled(2)
    seen = [[[0, 1], [2, 3]], [[0, 1], [2, 2]], [[0, 1], [2, 2]], [[0, 1], [2, 2]]]
    assert [settled(labels(*rows)) for rows in seen] == [False, False, False, True]


def test_weights_that_move_without_another_token_are_no_change():
    settled = Settled(1)
    first = labels([1, 2])
    assert not settled(first)
    assert settled({"labels": 0.3 * first["labels"] + 0.1})
