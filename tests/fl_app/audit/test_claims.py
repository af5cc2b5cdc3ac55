"""Seeded flaws are all found, and honest apps are clean."""

import math

import pytest

from fl_app.audit.epsilon import composed_epsilon
from fl_app.privacy import Ledger, Release

SEEDED = {
    ("local_dp",): {"sensitivity-is-not-the-clipping-norm", "epsilon-not-composed"},
    ("central_dp", "flaw='cohort'"): {"cohort-is-not-as-declared", "epsilon-is-large"},
    ("central_dp", "flaw='weights'"): {"weighted-mean-under-dp"},
    ("central_dp", "flaw='integers'"): {"noise-on-integers"},
    ("central_dp", "flaw='clipping'"): {"clipping-mod-missing"},
    ("central_dp", "flaw='noise'"): {"no-noise"},
    ("central_dp", "flaw='weak'"): {"epsilon-is-large"},
    ("opacus_dp", "flaw='forgotten'"): {"epsilon-not-composed"},
    ("opacus_dp", "flaw='sampling'"): {"sampling-is-not-poisson"},
}
HONEST = [
    ("central_dp", "flaw='none'"),
    ("opacus_dp", "flaw='none'"),
    ("cnn_batchnorm",),
    ("head_only",),
    ("lora",),
    ("legacy",),
    ("custom_records",),
    ("tabular",),
    ("gradients",),
    ("mods_in_train",),
    ("numpy_only",),
]


def alarms(report):
    return {finding.rule for finding in report.findings if finding.severity != "low"}


def run(audit, app):
    return audit(*app, nodes=4 if app[0] == "central_dp" else None)


def test_the_confusion_table_has_no_error(audit):
    flawed = {app: alarms(run(audit, app)) for app in SEEDED}
    clean = {app: alarms(run(audit, app)) for app in HONEST}
    missed = {app: SEEDED[app] - found for app, found in flawed.items() if SEEDED[app] - found}
    extra = {app: found - SEEDED.get(app, set()) for app, found in (flawed | clean).items()}
    assert not missed
    assert not {app: found for app, found in extra.items() if found}


@pytest.mark.parametrize("app", SEEDED)
def test_each_finding_names_file_value_and_computed_value(audit, app):
    for finding in run(audit, app).findings:
        path, _, line = finding.file.rpartition(":")
        assert path.endswith("_app.py")
        assert int(line) > 1
        assert finding.found


def test_the_true_epsilon_of_a_wrong_sensitivity_is_computed(audit):
    report = audit("local_dp")
    (claim,) = report.claims
    noise = 0.001 * math.sqrt(2 * math.log(1.25 / 1e-5)) / 0.9
    assert claim.computed["noise"] == pytest.approx(noise)
    assert claim.computed["epsilon of one update"] == pytest.approx(composed_epsilon([(noise, 1.0, 1)], 1e-5))
    assert claim.computed["rounds"] == 20


def test_a_forgotten_accountant_is_composed_over_all_rounds(audit):
    (finding,) = [f for f in audit("opacus_dp", "flaw='forgotten'").findings if f.severity == "high"]
    (claim,) = audit("opacus_dp", "flaw='forgotten'").claims
    assert claim.computed["steps of all rounds"] == 12
    true = composed_epsilon([(1.2, 0.25, 12)], 1e-3)
    assert claim.computed["epsilon of all rounds"] == pytest.approx(true)
    assert claim.declared["epsilon"] < true
    assert f"{true:.4g}" in finding.computed


@pytest.mark.parametrize(("sigma", "rate", "steps"), [(1.0, 0.1, 50), (2.0, 0.5, 3), (4.0, 1.0, 3)])
def test_composed_epsilon_agrees_with_another_accountant(sigma, rate, steps):
    ledger = Ledger(accountant="rdp")
    ledger.charge(0, Release(sample_rate=rate, noise_multiplier=sigma, steps=steps, delta=1e-5))
    ours = composed_epsilon([(sigma, rate, steps)], 1e-5)
    assert ours <= ledger.epsilon() * 1.02
    assert ours >= ledger.epsilon() * (0.7 if rate == 1 else 0.9)


def test_no_noise_has_no_epsilon():
    assert composed_epsilon([(0.0, 1.0, 1)], 1e-5) == math.inf
