"""The benchmark of secure rounds counts what travels, and notices a wrong sum."""

import numpy as np
import pytest

from benchmarks import secure_round
from benchmarks.secure_round import Exchange, Measured, choose_clients, draw, run_ours, run_secaggplus
from fl_app.flower.internals import serialised_size
from fl_app.wire.messages import pack_secure

CLIENTS, SIZE = 5, 50
BITS = 24  # 5 clients of up to 2 / 2^-14 steps each: 163840 of 2^23


def expected_bytes(survivors):
    """Return bytes up and down by exchange, from the table in docs/secure-aggregation.md."""
    n = u = CLIENTS
    up = (114, 82 + 126 * u, 50 + SIZE * BITS // 8, 50 + 33 * u)
    down = (108 + 4 * n, 54 + 68 * u, 58 + 130 * u, 58 + 4 * survivors)
    return [tuple(in_flower(size) for size in way) for way in (up, down)]


def in_flower(size):
    return serialised_size(pack_secure(bytes(size)))


@pytest.mark.parametrize("dropped", [(), (3,)])
def test_our_bytes_are_those_of_the_documented_table(dropped):
    measured = run_ours(draw(CLIENTS, SIZE), dropped=dropped)
    up, down = expected_bytes(CLIENTS - len(dropped))
    stayed = [client for client in range(CLIENTS) if client not in dropped]
    for number, exchange in enumerate(measured.exchanges):
        assert {exchange.up[client] for client in stayed} == {up[number]}
        assert {exchange.down[client] for client in stayed} == {down[number]}
    assert (measured.up, measured.down) == (sum(up), sum(down))
    assert measured.apart == 0
    assert all(client not in measured.exchanges[2].up for client in dropped)


def test_secaggplus_sends_eight_bytes_a_value_and_no_model():
    short, long = (run_secaggplus(draw(CLIENTS, size), shares=CLIENTS) for size in (SIZE, SIZE + 10))
    assert long.up - short.up == 8 * 10
    assert long.down == short.down
    assert 0 < short.apart < CLIENTS, "each client rounds at random, by less than a step"


def test_secaggplus_with_fewer_neighbours_sums_the_same():
    measured = run_secaggplus(draw(CLIENTS, SIZE), shares=3)
    assert measured.protocol == "SecAgg+, 3 shares"
    assert measured.apart < CLIENTS


def test_a_wrong_sum_of_ours_is_an_error(monkeypatch):
    honest = secure_round.mask
    monkeypatch.setattr(
        secure_round,
        "mask",
        lambda state, message, vector, job: honest(state, message, -vector, job=job),
    )
    with pytest.raises(RuntimeError, match="our sum is off"):
        run_ours(draw(CLIENTS, SIZE))


def test_a_wrong_sum_of_secaggplus_is_an_error(monkeypatch):
    honest = secure_round._vector_app
    monkeypatch.setattr(
        secure_round, "_vector_app", lambda vectors, exchanges: honest(np.zeros_like(vectors), exchanges)
    )
    with pytest.raises(RuntimeError, match=r"the sum of SecAgg\+ is off"):
        run_secaggplus(draw(CLIENTS, SIZE), shares=CLIENTS)


def test_the_costs_of_a_round_are_means_over_those_who_stayed():
    exchanges = [
        Exchange({0: 1.0, 1: 3.0, 2: 50.0}, {0: 10, 1: 20, 2: 99}, {0: 1, 1: 2, 2: 9}, server=0.5)
    ] * 2
    measured = Measured("ours", 3, 1, frozenset({2}), exchanges)
    assert (measured.client_seconds, measured.slowest, measured.server_seconds) == (4.0, 6.0, 1.0)
    assert (measured.up, measured.down) == (30.0, 3.0)


@pytest.mark.parametrize(("seconds", "clients"), [(1, 20), (60, 40), (499, 90), (501, 100)])
def test_secaggplus_gets_as_many_clients_as_the_cube_allows(seconds, clients):
    # 2 s of the server and 20 times 0.1 s: 4 s, so 5^3 times that for 100 clients
    exchange = Exchange(dict.fromkeys(range(20), 0.1), server=2.0)
    fitting, expected = choose_clients(100, seconds, [Measured("SecAgg+", 20, 1, exchanges=[exchange])])
    assert fitting == clients
    assert expected == pytest.approx(500)


def test_the_whole_benchmark_prints_both_sides(capsys):
    secure_round.main(CLIENTS, SIZE)
    printed = capsys.readouterr().out
    assert printed.count("The sum is exact") == 2
    assert "1 vanish before they send a vector" in printed
    up, down = expected_bytes(CLIENTS)
    assert f"{sum(up):,}" in printed
    assert f"{sum(down):,}" in printed
    assert "ours / SecAgg+" in printed
    assert "was not run" not in printed


def test_growth_prints_a_row_for_each_cohort_beside_a_plain_upload(capsys):
    secure_round.print_growth([(CLIENTS, SIZE), (CLIENTS + 1, SIZE)])
    printed = capsys.readouterr().out
    up, down = expected_bytes(CLIENTS)
    assert f"{sum(up):,} (" in printed
    assert f"{sum(down):,}" in printed
    assert f"{sum(up) - up[2]:,}" in printed
    plain = secure_round.run_plain(draw(CLIENTS, SIZE))
    assert f"({plain.up:,.0f})" in printed
    assert plain.apart < 1e-2
