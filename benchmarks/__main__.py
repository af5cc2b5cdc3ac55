"""``python -m benchmarks [name …]``: all benchmarks, or those named."""

from __future__ import annotations

import sys

from benchmarks import attack_throughput, batch_statistics, engines, overhead, photographs, wire

ALL = {
    "overhead": overhead.main,
    "wire": wire.main,
    "engines": engines.main,
    "attack_throughput": attack_throughput.main,
    "photographs": photographs.main,
    "batch_statistics": batch_statistics.main,
}

if __name__ == "__main__":
    names = sys.argv[1:] or list(ALL)
    unknown = [name for name in names if name not in ALL]
    if unknown:
        sys.exit(f"benchmarks: unknown {', '.join(unknown)}; there are {', '.join(ALL)}")
    for name in names:
        ALL[name]()
