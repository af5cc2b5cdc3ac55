"""Epsilon, like for like, against an accountant without any code of Opacus' (PyPI: dp-accounting)."""

import logging
import math

import pytest

from fl_app.privacy import Ledger, Release
from fl_app.privacy.accounting import ACCOUNTANTS, BROKEN_ORDERS, WHOLE_ORDERS
from fl_app.privacy.gaussian_privacy import gaussian_epsilon

dp_accounting = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
GRID = [
    (1 / 60, 1.35, 60, 1e-5),
    (1 / 60, 1.35, 200, 1e-5),
    (0.1, 1.0, 20, 1e-5),
    (0.1, 2.0, 100, 1e-6),
    (0.01, 0.8, 300, 1e-5),
    (1.0, 5.0, 10, 1e-5),
]


def epsilon(accountant, rate: float, sigma: float, steps: int, delta: float) -> float:
    logging.getLogger("absl").setLevel(logging.ERROR)  # orders that do not converge are left out, and told
    one = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
    return accountant.compose(dp_accounting.SelfComposedDpEvent(one, steps)).get_epsilon(delta)


def ours(accountant: str, *release: float) -> float:
    ledger = Ledger(accountant)
    ledger.charge(0, Release(*release))
    return ledger.epsilon()


@pytest.mark.parametrize(("rate", "sigma", "steps", "delta"), GRID)
def test_renyi_against_renyi_at_the_same_orders(rate, sigma, steps, delta):
    from dp_accounting import rdp

    orders = sorted(map(float, (*BROKEN_ORDERS, *WHOLE_ORDERS)))
    theirs = epsilon(rdp.RdpAccountant(orders), rate, sigma, steps, delta)
    assert ours("rdp", rate, sigma, steps, delta) == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize(("rate", "sigma", "steps", "delta"), [g for g in GRID if g[2] != 60])
def test_loss_distributions_against_loss_distributions(rate, sigma, steps, delta):
    """Opacus adds its error bound of 0.01, which is 2 % of an epsilon of 0.5: the smallest is left out."""
    from dp_accounting import pld

    theirs = epsilon(pld.PLDAccountant(), rate, sigma, steps, delta)
    got = ours("prv", rate, sigma, steps, delta)
    assert got == pytest.approx(theirs, rel=0.02)
    assert got > theirs  # an upper bound of it


ODD = [
    (1.0, 1.0, 1, 1e-15),
    (1.0, 1.0, 1, 0.5),
    (0.999, 1.0, 3, 1e-5),
    (1e-4, 1.0, 1, 1e-5),
    (0.5, 0.5, 1, 1e-5),
    (0.5, 2.0, 1, 1e-15),
    (0.02, 1.3, 200, 1e-12),
    (0.02, 1.3, 200, 0.4),
    (1.0, 50.0, 1, 1e-3),
]
"""Everybody or hardly anybody, one step, a delta of nearly nothing and one that promises nothing."""


@pytest.mark.parametrize(("rate", "sigma", "steps", "delta"), ODD)
def test_no_accountant_is_below_the_loss_distributions_at_odd_settings(rate, sigma, steps, delta):
    from dp_accounting import pld

    theirs = pld.PLDAccountant(value_discretization_interval=1e-4)  # an upper bound, by up to one interval
    least = epsilon(theirs, rate, sigma, steps, delta) - steps * 1e-4
    if least == math.inf:  # delta is below the rounding errors of theirs
        least = 3.2002936  # of one step at rate 0.5, sigma 2 and delta 1e-15, by integrals of 50 digits
    if rate == 1:
        least = min(least, gaussian_epsilon(steps**0.5 / sigma, delta))  # where it is known exactly
    by_name = {name: ours(name, rate, sigma, steps, delta) for name in ACCOUNTANTS}
    for name, found in by_name.items():
        assert 0 <= found < 30, f"{name}: {found}"
        assert found >= least * (1 - 1e-9), f"{name}: {found} < {least}"
    assert by_name["auto"] == min(by_name.values())
