"""``python -m benchmarks.fuzz --inputs 1000000 --seed 0``: damaged inputs for every decoder of foreign bytes.

A decoder may accept an input or refuse it with its one exception; anything else is a defect. So is memory
that no input could need: the address space is limited, and what asks for more fails.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fuzz_decoders import Decoder, all_decoders
from fl_app.console.progress import track

SPARE_MEMORY = 1 << 30
"""Bytes of address space that decoding may take beside what the process has."""
_LOOK_EVERY = 256


@dataclass
class Tally:
    """Outcomes of one decoder's inputs."""

    name: str
    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    wrong: dict[str, Any] = field(default_factory=dict)
    """One input for every kind of exception that should not have come."""
    slowest: float = 0.0
    seconds: float = 0.0
    memory: int = 0
    """Bytes by which the process has grown at most."""


def fuzz(
    decoder: Decoder,
    inputs: int,
    *,
    seed: int,
    until: float = float("inf"),
    advance: Callable[[int], None] = lambda done: None,
) -> Tally:
    """Give a decoder damaged inputs, fewer than ``inputs`` if the time ``until`` (monotonic) has passed."""
    draw, tally = random.Random(f"{decoder.name} {seed}"), Tally(decoder.name)
    before, start = peak_memory(), time.monotonic()
    for number in range(inputs):
        damaged = decoder.damage(draw.choice(decoder.examples), draw)
        try_one(decoder, damaged, tally)
        if number % _LOOK_EVERY == 0:
            advance(number)
            if time.monotonic() > until:
                break
    tally.seconds, tally.memory = time.monotonic() - start, peak_memory() - before
    return tally


def try_one(decoder: Decoder, damaged: Any, tally: Tally) -> None:
    """Let a decoder read one input and note what came of it."""
    start = time.perf_counter()
    try:
        decoder.read(damaged)
        tally.accepted += 1
    except decoder.refusal:
        tally.refused += 1
    except Exception as error:  # the very thing that is looked for
        tally.wrong.setdefault(f"{type(error).__name__}: {error}"[:120], damaged)
    tally.inputs += 1
    tally.slowest = max(tally.slowest, time.perf_counter() - start)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="in all, shared out among the decoders")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after that long")
    parser.add_argument("--only", default="", help="decoders whose name has this in it")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        decoders = [decoder for decoder in all_decoders(Path(folder)) if args.only in decoder.name]
        limit_memory()
        tallies = _fuzz_all(decoders, args.inputs, args.seed, time.monotonic() + args.seconds)
    print(table(tallies))
    for tally in tallies:
        for what, example in tally.wrong.items():
            print(f"\n{tally.name}: {what}\n  {example!r:.300}")
    if any(tally.wrong for tally in tallies):
        sys.exit(1)


def table(tallies: Sequence[Tally]) -> str:
    """Return the counts as a Markdown table, with their sum."""
    rows = [
        "| decoder | inputs | refused | accepted | wrong exceptions | slowest, ms | grew by, MB |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    total = Tally("all")
    for tally in tallies:
        total.inputs += tally.inputs
        total.refused += tally.refused
        total.accepted += tally.accepted
        total.slowest = max(total.slowest, tally.slowest)
        total.memory += tally.memory
        rows.append(_row(tally, len(tally.wrong)))
    return "\n".join([*rows, _row(total, sum(len(tally.wrong) for tally in tallies))])


def _row(tally: Tally, wrong: int) -> str:
    return (
        f"| {tally.name} | {tally.inputs:,} | {tally.refused:,} | {tally.accepted:,} | {wrong} "
        f"| {1000 * tally.slowest:.0f} | {tally.memory / 1e6:.0f} |"
    )


def _fuzz_all(decoders: Sequence[Decoder], inputs: int, seed: int, until: float) -> list[Tally]:
    weight = sum(decoder.weight for decoder in decoders)
    tallies = []
    with track("fuzzing", inputs) as advance:
        for decoder in decoders:
            done, share = sum(tally.inputs for tally in tallies), decoder.weight / weight

            def show(number: int, done: int = done, name: str = decoder.name) -> None:
                advance(done + number, name)

            tallies.append(fuzz(decoder, round(inputs * share), seed=seed, until=until, advance=show))
            if not sys.stderr.isatty():
                print(f"{tallies[-1].name}: {tallies[-1].inputs} inputs", file=sys.stderr, flush=True)
    return tallies


def peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        limit = pages * resource.getpagesize() + SPARE_MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


if __name__ == "__main__":
    main()
