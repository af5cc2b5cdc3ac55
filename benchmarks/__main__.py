"""``python -m benchmarks [name …]``: all quick benchmarks, or those named.

The others are commands of their own, as in ``python -m benchmarks.leakage``: accuracy, active_leakage,
batch_statistics, broadcaster, communication, detector, earlier_rounds, fuzz, fuzz_guided, imprint, labels,
leakage, learned, measured_epsilon, peers, photographs, realistic, rgap, speech_leakage, streams and
trained_labels.
"""

from __future__ import annotations

import sys

from benchmarks import attack_throughput, engines, guard, overhead, secure_round, wire

ALL = {
    "overhead": overhead.main,
    "wire": wire.main,
    "engines": engines.main,
    "attack_throughput": attack_throughput.main,
    "secure_round": secure_round.main,
    "guard": guard.main,
}

if __name__ == "__main__":
    names = sys.argv[1:] or list(ALL)
    unknown = [name for name in names if name not in ALL]
    if unknown:
        sys.exit(f"benchmarks: unknown {', '.join(unknown)}; there are {', '.join(ALL)}")
    for name in names:
        ALL[name]()
