"""Distances from what was seen, against the formulas written out."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attacks.optimisation.evidence import Evidence
from attacks.optimisation.objectives import cosine_distance, squared_distance
from attacks.optimisation.problem import Problem, as_problem
from attacks.optimisation.withheld import Withheld
from attacks.rounds.course import Rounds


@pytest.fixture
def problem(observe, small_lenet) -> Problem:
    return as_problem(observe(small_lenet, torch.rand(1, 3, 8, 8).double(), torch.tensor([1])), who="test")


def entries(problem: Problem, seed: int) -> Tensor:
    return torch.randn(problem.target.shape, generator=torch.Generator().manual_seed(seed)).double()


def known(problem: Problem, seed: int) -> Problem:
    sent = entries(problem, seed) > 0.3
    return replace(problem, target=problem.target * sent, sent=sent)


def test_unmasked_all_entries_count(problem):
    pair = [known(problem, 1), known(problem, 2)]
    guess = torch.stack([entries(problem, 3), entries(problem, 4)])
    found = Evidence.of(pair).distance(squared_distance, masked=False, withheld=1.0)(guess)
    expected = [(g - p.target).square().sum() for g, p in zip(guess, pair, strict=True)]
    torch.testing.assert_close(found, torch.stack(expected))


def test_masked_only_those_count_that_were_sent(problem):
    pair = [known(problem, 1), known(problem, 2)]
    guess = torch.stack([entries(problem, 3), entries(problem, 4)])
    found = Evidence.of(pair).distance(cosine_distance, masked=True, withheld=1.0)(guess)
    expected = [
        1 - F.cosine_similarity(g[p.sent], p.target[p.sent], dim=0) for g, p in zip(guess, pair, strict=True)
    ]
    torch.testing.assert_close(found, torch.stack(expected))


@pytest.mark.parametrize("masked", [False, True])
def test_what_was_sent_before_is_taken_off_first(problem, masked):
    problem = known(problem, 1)
    before = entries(problem, 5)
    later = replace(problem, rounds=Rounds((), memory=1.0, before=before))
    guess = entries(problem, 3)[None]
    found = Evidence.of([later]).distance(squared_distance, masked=masked, withheld=0.0)(guess)
    difference = guess[0] - before - problem.target
    expected = (difference[problem.sent] if masked else difference).square().sum()
    torch.testing.assert_close(found, expected[None])


def test_the_rule_holds_for_what_is_left_after_that_and_where_something_is_known(problem):
    problem = known(problem, 1)
    before = entries(problem, 5)
    bound = torch.where(entries(problem, 6) > 0, 1e-3, torch.inf).double()
    nothing = torch.full_like(bound, torch.inf)
    ruled = replace(problem, rounds=Rounds((), memory=1.0, before=before), withheld=Withheld(bound, nothing))
    guess = entries(problem, 3) + problem.target * 50
    found = Evidence.of([ruled]).distance(squared_distance, masked=True, withheld=0.2)(guess[None])
    rest, sent, target = guess - before, problem.sent, problem.target
    scale = (rest[sent] @ target[sent] / rest[sent].square().sum()).clamp_min(0)
    assert scale > 0
    excess = ((scale * rest).abs() - bound).clamp_min(0)[~sent]
    penalty = excess.square().sum() / target[sent].square().sum()
    expected = (rest[sent] - target[sent]).square().sum() + 0.2 * penalty
    assert penalty > 0
    torch.testing.assert_close(found, expected[None])


@pytest.mark.parametrize(("masked", "weight"), [(False, 1.0), (True, 0.0)])
def test_without_a_mask_or_a_weight_no_rule_is_applied(problem, masked, weight):
    problem = known(problem, 1)
    zero = torch.zeros_like(problem.target)
    ruled = replace(problem, withheld=Withheld(zero, torch.full_like(zero, torch.inf)))
    guess = entries(problem, 3)[None]
    found, plain = (
        Evidence.of([one]).distance(squared_distance, masked=masked, withheld=weight)(guess)
        for one in (ruled, problem)
    )
    assert torch.equal(found, plain)


def test_a_problem_with_a_rule_does_not_bind_its_neighbour(problem):
    problem = known(problem, 1)
    zero = torch.zeros_like(problem.target)
    ruled = replace(problem, withheld=Withheld(zero, torch.full_like(zero, torch.inf)))
    guess = (problem.target + 0.1 * entries(problem, 3)).expand(2, -1)
    with_rule, without = Evidence.of([ruled, problem]).distance(squared_distance, masked=True, withheld=1.0)(
        guess
    )
    (plain,) = Evidence.of([problem]).distance(squared_distance, masked=True, withheld=1.0)(guess[:1])
    assert with_rule > without
    torch.testing.assert_close(without, plain)


def test_rows_are_those_of_the_chosen_guesses(problem):
    pair = [known(problem, 1), known(problem, 2)]
    chosen = Evidence.of(pair).rows(torch.tensor([1]))
    for one, two in zip(chosen, Evidence.of(pair[1:]), strict=True):
        assert torch.equal(one, two)
