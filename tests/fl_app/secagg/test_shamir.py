import itertools
from collections import Counter

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.secagg.shamir import PRIME, SECRET_BYTES, SHARE_BYTES, join_shares, split_secret, weigh_points

SMALL = 7


def secrets_that_fit(shares: dict[int, int], threshold: int, prime: int) -> Counter:
    """The oracle: try every polynomial, count by its value at zero."""
    found: Counter = Counter()
    for coefficients in itertools.product(range(prime), repeat=threshold):
        if all(
            sum(c * point**power for power, c in enumerate(coefficients)) % prime == share
            for point, share in shares.items()
        ):
            found[coefficients[0]] += 1
    return found


@pytest.mark.parametrize("threshold", [1, 2, 3, 4])
def test_any_threshold_shares_fit_one_secret_and_one_less_fit_all(threshold):
    points = [1, 2, 4, 6]
    for secret in (0, 1, 6):
        shares = dict(
            zip(points, split_secret(secret, threshold=threshold, points=points, prime=SMALL), strict=True)
        )
        for chosen in itertools.combinations(points, threshold):
            known = {point: shares[point] for point in chosen}
            assert secrets_that_fit(known, threshold, SMALL) == {secret: 1}
            assert join_shares(list(known.values()), weigh_points(chosen, prime=SMALL), SMALL) == secret
            known.pop(chosen[0])
            assert secrets_that_fit(known, threshold, SMALL) == dict.fromkeys(range(SMALL), 1)


def test_every_polynomial_is_as_likely_as_any_other():
    drawn = Counter(tuple(split_secret(3, threshold=2, points=[1, 2], prime=SMALL)) for _ in range(7000))
    assert len(drawn) == SMALL
    # 1000 each are expected; the standard deviation is 29
    assert all(800 < count < 1200 for count in drawn.values())


@settings(max_examples=30)
@given(
    st.integers(0, 2**256 - 1),
    st.lists(st.integers(1, 10_000), min_size=1, max_size=30, unique=True),
    st.data(),
)
def test_large_secrets_come_back_from_any_threshold_shares(secret, points, data):
    threshold = data.draw(st.integers(1, len(points)))
    shares = dict(zip(points, split_secret(secret, threshold=threshold, points=points), strict=True))
    chosen = data.draw(st.permutations(points))[:threshold]
    assert join_shares([shares[point] for point in chosen], weigh_points(chosen)) == secret
    assert all(share < 256**SHARE_BYTES for share in shares.values())


def test_a_wrong_share_gives_another_secret():
    shares = split_secret(5, threshold=3, points=[1, 2, 3])
    assert join_shares([shares[0], shares[1] ^ 1, shares[2]], weigh_points([1, 2, 3])) != 5


def test_the_prime_is_the_first_above_all_secrets():
    assert sympy.nextprime(256**SECRET_BYTES - 1) == PRIME


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"threshold": 0}, r"threshold must be in \[1, 2\], got 0"),
        ({"threshold": 3}, r"threshold must be in \[1, 2\], got 3"),
        ({"points": [1, 1]}, "points must be different"),
        ({"points": [0, 1]}, "points must be different and in"),
        ({"points": [1, 1 + SMALL], "prime": SMALL}, "points must be different and in"),
        ({"secret": PRIME}, "not a number below the prime"),
    ],
)
def test_impossible_sharings_are_refused(change, complaint):
    arguments = {"secret": 1, "threshold": 2, "points": [1, 2]} | change
    with pytest.raises(ValueError, match=complaint):
        split_secret(arguments.pop("secret"), **arguments)
