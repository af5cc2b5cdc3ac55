"""Rules of aggregation against brute force, and against liars in a federation."""

import itertools
import math
import statistics

import pytest
import torch
from federations import train
from hypothesis import given
from hypothesis import strategies as st

from fl_app.config.build import server_parts
from fl_app.config.compose import ConfigError
from fl_app.config.hash import hash_config
from fl_app.strategies.robust import (
    RULES,
    liars,
    rule_of,
    take_krum,
    take_median,
    take_norm_bounded,
    take_trimmed_mean,
)

numbers = st.floats(-100, 100, width=32)
rounds = st.integers(1, 9).flatmap(
    lambda n: st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=n, max_size=n)
)


def updates_of(rows):
    return [{"a": torch.tensor(row[:2]).double(), "b": torch.tensor([row[2]]).double()} for row in rows]


def flat(update):
    return torch.cat([update["a"], update["b"]]).tolist()


@given(rounds)
def test_the_median_is_that_of_every_entry(rows):
    expected = [statistics.median(column) for column in zip(*rows, strict=True)]
    assert flat(take_median(updates_of(rows))) == pytest.approx(expected)


@given(rounds, st.integers(0, 4))
def test_the_trimmed_mean_leaves_the_ends_out(rows, cut):
    if 2 * cut >= len(rows):
        with pytest.raises(ValueError, match="cannot cut"):
            take_trimmed_mean(updates_of(rows), cut)
        return
    expected = [statistics.mean(sorted(column)[cut : len(rows) - cut]) for column in zip(*rows, strict=True)]
    assert flat(take_trimmed_mean(updates_of(rows), cut)) == pytest.approx(expected, abs=1e-9)


@given(rounds, st.integers(0, 3))
def test_krum_takes_the_update_nearest_to_its_neighbours(rows, bad):
    def score(i):
        away = sorted(math.dist(rows[i], row) ** 2 for j, row in enumerate(rows) if j != i)
        return sum(away[: max(1, len(rows) - bad - 2)])

    best = min(score(i) for i in range(len(rows)))
    chosen = flat(take_krum(updates_of(rows), bad))
    assert chosen in rows
    assert score(rows.index(chosen)) == pytest.approx(best, rel=1e-6, abs=1e-3)


@given(rounds, st.data())
def test_a_bounded_mean_counts_nobody_longer_than_the_median(rows, data):
    weights = data.draw(st.lists(st.floats(0.5, 9), min_size=len(rows), max_size=len(rows)))
    lengths = [math.hypot(*row) for row in rows]
    bound = statistics.median(lengths)
    scaled = [
        [entry * min(1.0, bound / length) if length else entry for entry in row]
        for row, length in zip(rows, lengths, strict=True)
    ]
    expected = [
        sum(w * row[k] for w, row in zip(weights, scaled, strict=True)) / sum(weights) for k in range(3)
    ]
    assert flat(take_norm_bounded(updates_of(rows), weights)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("clients", "share", "expected"), [(10, 0.2, 2), (10, 0.4, 4), (5, 0.1, 1), (3, 0.4, 1)]
)
def test_liars_are_rounded_up_and_a_minority(clients, share, expected):
    assert liars(clients, share) == expected


@pytest.mark.parametrize("rule", RULES[1:])
def test_huge_liars_move_no_rule_far(rule):
    generator = torch.Generator().manual_seed(0)
    honest = [{"w": 1 + 0.1 * torch.randn(50, generator=generator)} for _ in range(8)]
    lied = [{"w": torch.full((50,), -1e6)}, {"w": torch.full((50,), 1e6)}]
    for order in itertools.islice(itertools.permutations([*honest, *lied]), 0, 3):
        found = rule_of(rule, 0.2)(list(order), [1.0] * 10)["w"]
        assert float((found - 1).abs().mean()) < 0.5


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("defense", ["none", "dgp", "adgp", "fl_std", "fl_top"])
def test_every_plain_strategy_takes_every_rule(rule, defense):
    federated, _ = train(f"rounds=2 aggregate={rule} defense={defense}")
    assert [record.clients for record in federated.strategy.records] == [5, 5]
    assert all(torch.isfinite(tensor).all() for tensor in federated.strategy.weights.values())


def test_the_plain_mean_is_bit_for_bit_what_it_was():
    plain, _ = train("rounds=2 defense=none")
    assert plain.strategy.aggregate is None
    known = {"aggregate": "mean", "withstand": 0.2, "liars": 0.0, "lie": "flip"}
    config = plain.config
    assert hash_config(config) == hash_config({k: v for k, v in config.items() if k not in known})
    assert hash_config(config) != hash_config(config | {"aggregate": "median"})


@pytest.mark.parametrize("other", ["secagg=on", "dp=client"])
def test_a_rule_is_refused_where_nobody_sees_single_updates_or_noise_is_for_sums(other):
    with pytest.raises(ConfigError, match="aggregate=median"):
        server_parts(f"defense=fl_std aggregate=median {other}")


@pytest.mark.parametrize("setting", ["aggregate=best", "withstand=0.5", "liars=1", "lie=charm"])
def test_other_settings_are_refused(setting):
    with pytest.raises(ConfigError):
        server_parts(f"defense=none {setting}")
