"""``python -m benchmarks.fuzz_guided --inputs 1000000``: inputs that follow the decoders' branches (atheris).

Same decoders, refusals and memory limit as `benchmarks.fuzz`. Each decoder has a process of its own, whose
inputs grow out of those that reached new lines of ``fl_app``. A process that dies counts as a defect.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import atheris

with contextlib.redirect_stderr(io.StringIO()), atheris.instrument_imports(include=["fl_app"]):
    from benchmarks.fuzz import Tally, limit_memory, peak_memory, table, try_one
    from benchmarks.fuzz_decoders import Decoder, all_decoders
    from benchmarks.fuzz_mutations import LONGEST

LONGEST_SECONDS = 30
"""For one input; libFuzzer ends a process that takes longer."""
MOST_DRAWS = 512
"""Bytes of an input that stands for draws: damage takes fewer."""


class Choices(random.Random):
    """Draws that are read off an input, so that a change of the input is a change of one decision."""

    def __init__(self, blob: bytes) -> None:
        super().__init__(0)
        self._bits, self._left = int.from_bytes(blob, "little"), 8 * len(blob)

    def getrandbits(self, k: int) -> int:
        """Take the next ``k`` bits; after the last one, only zeros come."""
        taken, self._bits = self._bits & ((1 << k) - 1), self._bits >> k
        return taken

    def random(self) -> float:
        """Take 16 bits as a number from 0 to 1."""
        return self.getrandbits(16) / (1 << 16)


def main(arguments: Sequence[str] | None = None) -> None:
    """Fuzz all decoders, one after the other, and print the counts."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz_guided", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000, help="in all, shared out among the decoders")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after that long")
    parser.add_argument("--only", default="", help="decoders whose name has this in it")
    args = parser.parse_args(arguments)
    until = time.monotonic() + args.seconds
    logging.disable(logging.CRITICAL)  # writing a warning takes longer than the decoder that gives it
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        decoders = [decoder for decoder in all_decoders(Path(folder)) if args.only in decoder.name]
        weight = sum(decoder.weight for decoder in decoders)
        tallies = []
        for number, decoder in enumerate(decoders):
            corpus = Path(folder) / f"corpus-{number}"
            inputs = max(1, round(args.inputs * decoder.weight / weight))
            tallies.append(fuzz_apart(decoder, inputs, corpus=corpus, seed=args.seed, until=until))
            print(f"{decoder.name}: {tallies[-1].inputs} inputs", file=sys.stderr, flush=True)
    print(table(tallies))
    for tally in tallies:
        for what, example in tally.wrong.items():
            print(f"\n{tally.name}: {what}\n  {example}")
    if any(tally.wrong for tally in tallies):
        sys.exit(1)


def fuzz_apart(decoder: Decoder, inputs: int, *, corpus: Path, seed: int, until: float) -> Tally:
    """Fuzz one decoder in a process of its own; a process that ends without its counts is a wrong end."""
    result = corpus.with_suffix(".json")
    child = os.fork()
    if child == 0:
        try:
            _fuzz_here(decoder, inputs, corpus, seed, until, result)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if result.exists():
        return Tally(**json.loads(result.read_text()))
    return Tally(decoder.name, wrong={f"the process ended with status {status}": ""})


def _fuzz_here(decoder: Decoder, inputs: int, corpus: Path, seed: int, until: float, result: Path) -> None:
    corpus.mkdir()
    of_bytes = isinstance(decoder.examples[0], bytes)
    for number, example in enumerate(decoder.examples if of_bytes else range(8)):
        start = example if of_bytes else random.Random(number).randbytes(64)
        (corpus / str(number)).write_bytes(start)
    limit_memory()
    tally, before, began = Tally(decoder.name), peak_memory(), time.monotonic()

    def read_one(blob: bytes) -> None:
        draw = Choices(blob)
        try_one(decoder, blob if of_bytes else decoder.damage(draw.choice(decoder.examples), draw), tally)
        if tally.inputs >= inputs or time.monotonic() > until:
            tally.seconds, tally.memory = time.monotonic() - began, peak_memory() - before
            tally.wrong = {what: f"{example!r:.300}" for what, example in tally.wrong.items()}
            result.write_text(json.dumps(asdict(tally)))
            os._exit(0)

    def mutate(blob: bytes, most: int, number: int) -> bytes:
        """Let libFuzzer change one half; the other half keeps valid checksums as `benchmarks.fuzz` does."""
        if number % 2:
            return bytes(atheris.Mutate(blob, most))
        return bytes(decoder.damage(blob, random.Random(number))[:most])

    longest = LONGEST if of_bytes else MOST_DRAWS
    arguments = [sys.argv[0], str(corpus), f"-seed={seed}", f"-timeout={LONGEST_SECONDS}", "-verbosity=0"]
    options: dict[str, Callable[..., Any]] = {"custom_mutator": mutate} if of_bytes else {}
    atheris.Setup([*arguments, "-rss_limit_mb=0", f"-max_len={longest}"], read_one, **options)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
