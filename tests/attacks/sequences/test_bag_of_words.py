import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks.sequences import bag_of_words


@settings(max_examples=25, deadline=None)
@given(tokens=st.lists(st.integers(2, 39), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_all_tokens_are_found_and_counted(say, tokens, seed):
    found = bag_of_words()(say(tokens, seed).obs)
    assert found.rank == len(tokens)
    assert set(found.labels.tolist()) >= set(tokens)


def test_hardly_anything_else_is_found(say):
    sayings = [torch.randperm(38)[:5].add(2).tolist() for _ in range(20)]
    found = [bag_of_words()(say(tokens, seed).obs) for seed, tokens in enumerate(sayings)]
    exact = [set(f.labels.tolist()) == set(tokens) for f, tokens in zip(found, sayings, strict=True)]
    assert sum(exact) >= 19


@pytest.mark.parametrize("granted", [None, 1, 3])
def test_the_number_of_utterances_is_not_that_of_tokens(say, granted):
    said = say([7, 30, 7, 2])
    found = bag_of_words()(dataclasses.replace(said.obs, batch_size=granted))
    assert (found.rank, sorted(found.labels.tolist())) == (4, [2, 7, 30])


def test_batches_of_utterances_and_local_steps_give_one_bag(train):
    obs = train([[[3, 9, 2], [20, 3, 2]], [[30, 31, 2], [8, 9, 2]]])
    found = bag_of_words()(obs)
    assert found.rank == 12
    assert set(found.labels.tolist()) >= {2, 3, 8, 9, 20, 30, 31}
    assert len(found.labels) <= 9


def test_a_given_length_is_taken(say):
    found = bag_of_words(3)(say([5, 6, 2]).obs)
    assert found.rank == 3
    assert any("was given" in note for note in found.notes)
    with pytest.raises(ValueError, match="rank must be an integer above 0"):
        bag_of_words(0)


def test_a_length_that_is_granted_is_taken_unless_another_is_given(say):
    obs = say([5, 6, 9, 2]).obs
    told = dataclasses.replace(obs, length=2)
    assert bag_of_words()(told).labels.tolist() == bag_of_words(2)(obs).labels.tolist()
    assert bag_of_words(4)(told).labels.tolist() == bag_of_words(4)(obs).labels.tolist()
    assert sorted(bag_of_words(4)(told).labels.tolist()) == [2, 5, 6, 9]
    assert bag_of_words()(told).rank == 4  # that of the gradient, for the length error


def test_rows_as_they_are_tell_the_same_of_an_exact_gradient(say):
    for seed, tokens in enumerate(([7, 30, 7, 2], [5, 6, 2], [12, 33, 20, 8, 2])):
        obs = say(tokens, seed).obs
        scaled, plain = (bag_of_words(fallback=False, scale_rows=scale)(obs) for scale in (True, False))
        assert sorted(plain.labels.tolist()) == sorted(scaled.labels.tolist()) == sorted(set(tokens))
        assert plain.rule == scaled.rule == "hyperplanes"


def test_signs_of_the_bias_name_the_tokens_too_and_not_how_many(say):
    found = bag_of_words(way="bias")(say([7, 30, 7, 2]).obs)
    assert (found.rank, sorted(found.labels.tolist())) == (None, [2, 7, 30])
    with pytest.raises(ValueError, match="way must be one of hyperplanes, bias, got 'rows'"):
        bag_of_words(way="rows")
