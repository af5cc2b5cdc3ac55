"""Epsilon, like for like, against an accountant without any code of Opacus' (PyPI: dp-accounting)."""

import logging

import pytest

from fl_app.privacy import Ledger, Release
from fl_app.privacy.accounting import BROKEN_ORDERS, WHOLE_ORDERS

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
