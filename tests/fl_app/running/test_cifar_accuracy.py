"""What DGP costs in accuracy on real images: nothing that three paired seeds can show."""

import json
import statistics
import subprocess
import sys
from math import sqrt

import pytest

T_95_TWO_DEGREES = 4.303
"""Half-width of Student's 95 % interval for three samples, in standard errors."""


def late_accuracy(path) -> float:
    """Mean over the last ten evaluations, in points: a single one scatters by two points."""
    rounds = json.loads(path.read_text())["rounds"]
    return 100 * statistics.mean([row["accuracy"] for row in rounds if row["accuracy"] is not None][-10:])


@pytest.mark.slow
def test_dgp_with_error_feedback_stays_within_noise_of_no_defense(shared_data, tmp_path):
    subprocess.run(
        [
            sys.executable,
            *("-m", "fl_app", "-m", "data=imagefolder", f"data.root={shared_data / 'cifar10'}"),
            *("defense=none,dgp", "seed=0,1,2", "rounds=400", "lr=0.1", "evaluate_every=10"),
            *("attack=none", "threads=1", f"hydra.sweep.dir={tmp_path}"),
        ],
        check=True,
        timeout=3600,
        cwd=tmp_path,
    )
    runs = {
        name: [late_accuracy(path) for path in sorted(tmp_path.glob(f"*-{name}-s*/result.json"))]
        for name in ("none", "dgp")
    }
    differences = [dgp - none for dgp, none in zip(runs["dgp"], runs["none"], strict=True)]
    assert len(differences) == 3
    mean, error = statistics.mean(differences), statistics.stdev(differences) / sqrt(3)
    low, high = mean - T_95_TWO_DEGREES * error, mean + T_95_TWO_DEGREES * error
    assert low > -2.5
    assert high < 2.5
