"""Cost of each defense in accuracy: a table of the runs below some folders, paired by seed with none.

``python -m benchmarks.accuracy FOLDER …``. Accuracy is the mean over the last ten
evaluations of a run: a single one scatters by points. The interval is Student's,
over the seeds' differences to the undefended run of the same seed.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from math import sqrt
from pathlib import Path

from scipy.stats import t as student

LAST = 10


def main() -> None:
    """Print the table."""
    if len(sys.argv) < 2:
        sys.exit("benchmarks.accuracy: give the folders of finished runs")
    runs: dict[str, dict[int, dict[str, float]]] = defaultdict(dict)
    for folder in sys.argv[1:]:
        for path in sorted(Path(folder).rglob("result.json")):
            result = json.loads(path.read_text())
            if result["status"] == "finished":
                runs[result["config"]["choices"]["defense"]][result["config"]["seed"]] = _measure(result)
    if "none" not in runs:
        sys.exit("benchmarks.accuracy: there is no finished run with defense=none to compare with")
    print("| defense | seeds | accuracy % | against none, paired, 95 % | kB a round, up / down | ε |")
    print("|---|---|---|---|---|---|")
    order = sorted(runs, key=lambda name: (name != "none", -_mean(runs[name], "accuracy")))
    for name in order:
        print(_row(name, runs[name], runs["none"]))


def _measure(result: dict) -> dict[str, float]:
    rounds = result["rounds"]
    late = [row["accuracy"] for row in rounds if row["accuracy"] is not None][-LAST:]
    return {
        "accuracy": 100 * statistics.mean(late),
        "up": statistics.mean(row["uplink_bytes"] for row in rounds) / 1e3,
        "down": statistics.mean(row["downlink_bytes"] for row in rounds) / 1e3,
        "epsilon": rounds[-1]["epsilon"] or 0.0,
    }


def _row(name: str, runs: dict[int, dict[str, float]], plain: dict[int, dict[str, float]]) -> str:
    both = sorted(runs.keys() & plain.keys())
    differences = [runs[seed]["accuracy"] - plain[seed]["accuracy"] for seed in both]
    against = ""
    if name != "none" and len(differences) > 1:
        half = student.ppf(0.975, len(both) - 1) * statistics.stdev(differences) / sqrt(len(both))
        mean = statistics.mean(differences)
        against = f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"
    epsilon = _mean(runs, "epsilon")
    cells = [
        name,
        str(len(runs)),
        f"{_mean(runs, 'accuracy'):.1f}",
        against,
        f"{_mean(runs, 'up'):.0f} / {_mean(runs, 'down'):.0f}",
        f"{epsilon:.2f}" if epsilon else "",
    ]
    return f"| {' | '.join(cells)} |"


def _mean(runs: dict[int, dict[str, float]], key: str) -> float:
    return statistics.mean(run[key] for run in runs.values())


if __name__ == "__main__":
    main()
