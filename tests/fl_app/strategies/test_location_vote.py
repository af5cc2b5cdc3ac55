"""A vote on locations: the most named win, ties are drawn, and outliers show."""

from collections import Counter

import torch
from hypothesis import given
from hypothesis import strategies as st

from fl_app.seeding import generator_for
from fl_app.strategies.location_vote import agreement, vote


def ballot(n: int, chosen: list[int]) -> dict[str, torch.Tensor]:
    mask = torch.zeros(n, dtype=torch.bool)
    mask[chosen] = True
    return {"w": mask}


@given(
    st.integers(1, 20).flatmap(
        lambda n: st.integers(1, n).flatmap(
            lambda count: st.lists(
                st.permutations(range(n)).map(lambda order: (n, list(order[:count]))), min_size=1, max_size=5
            )
        )
    )
)
def test_no_loser_has_more_votes_than_a_winner(ballots):
    n, count = ballots[0][0], len(ballots[0][1])
    elected = vote([ballot(n, chosen) for _, chosen in ballots], generator_for(0, 1, 0, "ties"))["w"]
    votes = Counter(i for _, chosen in ballots for i in chosen)
    winners = [votes[i] for i in range(n) if elected[i]]
    losers = [votes[i] for i in range(n) if not elected[i]]
    assert len(winners) == count
    assert not losers or min(winners) >= max(losers)


def test_ties_are_drawn_anew_in_every_round():
    ballots = [ballot(100, list(range(0, 20))), ballot(100, list(range(50, 70)))]
    first, again, later = (vote(ballots, generator_for(0, r, -1, "ties"))["w"] for r in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, later)
    assert 0 < int(first[:20].sum()) < 20


def test_agreement_is_the_upper_median_of_common_shares():
    ballots = {3: ballot(10, [0, 1, 2, 3]), 5: ballot(10, [0, 1, 2, 4]), 8: ballot(10, [6, 7, 8, 0])}
    assert agreement(ballots) == {3: 0.75, 5: 0.75, 8: 0.25}


def test_two_that_agree_only_with_each_other_do_not_pass_for_the_majority():
    honest = {i: ballot(10, [0, 1, 2, 3 + i]) for i in range(3)}
    colluding = {i: ballot(10, [6, 7, 8, 9]) for i in (7, 8)}
    agreed = agreement(honest | colluding)
    assert all(agreed[i] == 0.75 for i in honest)
    assert all(agreed[i] == 0.0 for i in colluding)
