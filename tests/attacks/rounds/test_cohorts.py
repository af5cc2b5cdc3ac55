"""Sums over cohorts: single updates to rounding where the equations single them out, refusal elsewhere."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attacks.analytic import first_linear
from attacks.metrics import psnr
from attacks.rounds.cohorts import separate_cohorts, single_out
from fl_app.types import Observation


def updates_of(clients: int, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "w": torch.randn(3, 4, generator=generator).double(),
            "b": torch.randn(3, generator=generator).double(),
        }
        for _ in range(clients)
    ]


def summed(updates, cohort):
    return {name: sum(updates[client][name] for client in cohort) for name in updates[0]}


def test_two_cohorts_that_differ_in_one_client_give_its_update():
    updates = updates_of(5)
    cohorts = [(0, 1, 2, 3, 4), (0, 1, 2, 3)]
    found = separate_cohorts([summed(updates, c) for c in cohorts], cohorts)
    assert found.updates.keys() == {4}
    torch.testing.assert_close(found.updates[4], updates[4], atol=1e-12, rtol=0)
    assert found.hidden == (0, 1, 2, 3)
    # the difference of two sums, with a share of the smallest solution for the others
    assert found.amplified[4] == pytest.approx(2**0.5)


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 7), st.integers(0, 10**6), st.integers(1, 12))
def test_a_client_is_solved_for_exactly_if_its_unit_vector_is_a_combination_of_cohorts(clients, seed, rounds):
    generator = torch.Generator().manual_seed(seed)
    took_part = torch.rand(rounds, clients, generator=generator) < 0.5
    took_part[:, 0] |= ~took_part.any(dim=1)
    cohorts = [tuple(row.nonzero().flatten().tolist()) for row in took_part]
    updates = updates_of(clients, seed)
    found = separate_cohorts([summed(updates, c) for c in cohorts], cohorts)
    present = sorted({client for cohort in cohorts for client in cohort})
    matrix = took_part[:, present].double()
    rank = torch.linalg.matrix_rank(matrix)
    for place, client in enumerate(present):
        unit = torch.zeros(1, len(present)).double()
        unit[0, place] = 1
        inside = torch.linalg.matrix_rank(torch.cat([matrix, unit])) == rank
        assert (client in found.updates) == bool(inside)
        if inside:
            torch.testing.assert_close(found.updates[client], updates[client], atol=1e-6, rtol=0)
    assert found.unexplained < 1e-9


def test_updates_that_change_over_rounds_come_out_as_a_mean_and_the_change_shows():
    base, noise = updates_of(3, 1), [updates_of(3, seed) for seed in range(2, 40)]
    cohorts = [((0, 1), (1, 2), (0, 2), (0, 1, 2))[n % 4] for n in range(len(noise))]
    sums = []
    for cohort, drawn in zip(cohorts, noise, strict=True):
        one = [{n: base[c][n] + 0.1 * drawn[c][n] for n in base[c]} for c in range(3)]
        sums.append(summed(one, cohort))
    found = separate_cohorts(sums, cohorts)
    assert found.hidden == ()
    assert 0.02 < found.unexplained < 0.2
    for client, update in found.updates.items():
        away = (update["w"] - base[client]["w"]).norm() / base[client]["w"].norm()
        assert away < 0.1


def test_a_singled_out_update_is_attacked_like_any_other(observe):
    pixels = torch.rand(4, 1, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3)).double()
    own = [observe(model, pixels[c : c + 1], torch.tensor([c % 3])) for c in range(4)]

    def seen(cohort, **more):
        update = {n: t / len(cohort) for n, t in summed([o.update for o in own], cohort).items()}
        return Observation(**{**vars(own[cohort[-1]]), "update": update, "cohort": cohort, **more})

    whole = seen((0, 1, 2, 3), history=(seen((0, 1, 3)),))
    result = first_linear()(single_out(whole, 2))
    assert psnr(result.images, pixels[2:3]) > 110
    with pytest.raises(ValueError, match="client 0 is not singled out"):
        single_out(whole, 0)
    with pytest.raises(ValueError, match="some are not known"):
        single_out(replace(whole, cohort=None), 0)


def test_sums_without_their_cohorts_are_refused():
    with pytest.raises(ValueError, match="one cohort for each sum"):
        separate_cohorts([updates_of(1)[0]], [])
    with pytest.raises(ValueError, match="same parameters"):
        separate_cohorts([{"w": torch.ones(1)}, {"b": torch.ones(1)}], [(0,), (1,)])
