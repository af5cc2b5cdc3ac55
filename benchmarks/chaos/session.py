"""One session of chaos: its folder, the undisturbed runs to compare with, and the counts."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.chaos import faults
from benchmarks.chaos.invariants import check_whole, is_complete, load
from benchmarks.chaos.processes import emptied, start, warm

SMALL = (
    "data.train_per_class=6 data.test_per_class=3 clients=4 batch_size=4 rounds=5 lr=0.1 threads=1 model=mlp "
    "model.hidden=[8] data.size=12 evaluate_every=2 baseline=false checkpoint=true"
)
_NOISE = "training.steps=2 defense=fl_top defense.share=0.1 dp=client dp.epsilon=null dp.noise_multiplier=1"
MASKED = "dp and secagg"
ATTACKED = "attacked"
CONFIGS = {
    "dgp": "attack=none defense=dgp dp=none",
    "adgp": "attack=none defense=adgp dp=none",
    ATTACKED: "defense=dgp attack=idlg_label attack.rounds=[1,3] attack.clients=[0,2] dp=none",
    "dp": f"attack=none {_NOISE}",
    MASKED: f"attack=none {_NOISE} secagg=on secagg.min_clients=3",
}
_TRIES = 4


class Outcome(NamedTuple):
    """What came of one seed."""

    tried: str
    """The fault, or the first of several."""
    met: list[str]
    """All faults that met a run at work."""
    wrong: list[str]
    config: str = ""


@dataclass
class Chaos:
    """One session."""

    home: Path
    longest: float = 3.0
    """Seconds of an undisturbed run."""
    done: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[str, str]] = field(default_factory=list)
    """The fault that was tried, and what is wrong."""
    _bases: dict[str, tuple[Path, int]] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder of the run that is disturbed; always the same, so that its config is composed once."""
        return self.home / "run"

    def base(self, config: str) -> tuple[Path, int]:
        """Return the undisturbed run of a config, and the number of its operations on files."""
        if config not in self._bases:
            counted = self.home / "operations"
            warm(overrides(config), self.folder)
            began = time.monotonic()
            child = start(
                overrides(config),
                emptied(self.folder),
                self.home / "base.log",
                faults.count(self.folder, counted),
            )
            if code := child.wait():
                raise RuntimeError(f"chaos: the undisturbed run ended with {code}:\n{child.said()[-2000:]}")
            self.longest = time.monotonic() - began
            whole = self.folder.rename(self.home / f"base {config}")
            self._bases[config] = whole, int(counted.read_text())
        return self._bases[config]

    def note(self, seed: int, outcome: Outcome) -> None:
        """Count an outcome, and print what is wrong with it."""
        if not outcome.met:
            self.missed[outcome.tried] += 1
        self.done.update(outcome.met)
        for what in outcome.wrong:
            self.wrong.append((outcome.tried, what))
            print(f"seed {seed}: {outcome.tried}, {outcome.config}: {what}", flush=True)

    def whole(self, folder: Path, config: str, code: int | str, log: Path) -> list[str]:
        """Resume a run, or start it anew, until it is complete; return what it lacks then."""
        base, _ = self.base(config)
        wanted = load(base)["config_hash"]
        before = len(log.read_text(errors="replace")) if log.exists() else 0
        for _ in range(_TRIES):
            if is_complete(folder) and load(folder)["config_hash"] == wanted:
                code = 0
                break
            code = start(overrides(config), folder, log).wait()
        said = log.read_text(errors="replace")[before:]
        return check_whole(folder, base, code, said, repeats=config != MASKED)


def overrides(config: str) -> list[str]:
    """Return the overrides of a config."""
    return shlex.split(f"{SMALL} {CONFIGS[config]}")
