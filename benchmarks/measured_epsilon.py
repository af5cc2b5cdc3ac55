"""Epsilon measured from outside, of the mechanisms and of faulty variants of them.

``python -m benchmarks.measured_epsilon``. Each case releases the noisy sum of a cohort many times with
one client and without it, or the update of a client with one of its records and without. The claim is that
of one Gaussian release. A fault counts as caught if the measured distance of the two worlds refutes that
claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from fl_app.data import Samples
from fl_app.defenses import Defense, with_records
from fl_app.privacy import ClientLevel, NoiseGrid, NoiseShares, RecordLevel
from fl_app.privacy.client_level import clip_and_share, clip_vector
from fl_app.privacy.discrete_gaussian import Bits, Whole, sample_discrete_gaussian
from fl_app.privacy.distinguishing import Distinguished, Release, Statistic, along, distinguish, energy
from fl_app.privacy.gaussian_privacy import gaussian_epsilon
from fl_app.training import Job, LocalData, run_epochs

SIGMA = 2.0
CLIP = 0.5
SIZE = 16
DELTA = 1e-5
CONFIDENCE = 0.999
"""Confidence of the bounds: a sound mechanism is hardly ever accused."""
GRADIENT = torch.zeros(2, SIZE).index_fill(1, torch.tensor([0]), 1.0).flatten() * torch.tensor(
    [1.0, -1.0]
).repeat_interleave(SIZE)
"""Direction in which the record under test moves the weights."""
COHORT = 4
WHOLE_COHORT = 2
TRIALS = 4000
FEW_TRIALS = 1000
FEWEST_TRIALS = 200


@dataclass(frozen=True)
class Case:
    """One mechanism: its release in both worlds, the observer's statistic, and the claim."""

    name: str
    release: Release
    statistic: Statistic
    trials: int = TRIALS
    rounds: int = 1
    """Rounds in which the client may take part, or local steps of its record."""
    faulty: bool = True

    @property
    def claimed_distance(self) -> float:
        """Distance of the two worlds by the noise that is accounted for."""
        return float(np.sqrt(self.rounds)) / SIGMA

    @property
    def claimed(self) -> float:
        """The exact epsilon of the claim."""
        return gaussian_epsilon(self.claimed_distance, DELTA)

    def measure(self) -> Distinguished:
        """Tell the worlds apart."""
        return distinguish(
            self.release, self.statistic, trials=self.trials, delta=DELTA, confidence=CONFIDENCE
        )


class HalfNoise(ClientLevel):
    """Shares half of the noise."""

    def shares(self, cohort: int, threshold: int | None) -> NoiseShares:
        """Return shares of half of the noise."""
        return replace(super().shares(cohort, threshold), noise_multiplier=self.sigma / 2)


class NoClipping(ClientLevel):
    """Leaves vectors as long as they are."""

    def protect(
        self, values: Tensor, *, clip: float, shares: NoiseShares, generator: torch.Generator
    ) -> Tensor:
        """Add the noise for a bound to a vector that may be longer."""
        length = max(clip, float(values.norm()))
        return clip_and_share(
            values, clip=length, multiplier=shares.local * clip / length, noise=self._noise(generator)
        )


class NoTopUp(ClientLevel):
    """Leaves out the shares of those whose vector is not in the sum."""

    def missing(self, count: int, *, deviation: float, generator: torch.Generator) -> Tensor:
        """Return no noise."""
        return torch.zeros(count, dtype=torch.float64)


class UnboundedGrid(NoiseGrid):
    """Rounds upwards, with noise for the length before rounding."""

    @classmethod
    def of_step(cls, step: float, *, clip: float, multiplier: float, size: int) -> NoiseGrid:
        """Return a grid whose noise ignores rounding."""
        return cls(step, clip, size, int((multiplier * clip / step) ** 2))

    def protect(self, values: Tensor, bits: Bits) -> Whole:
        """Round every entry up."""
        rounded: Whole = np.ceil(values.numpy() / self.step).astype(np.int64)
        return rounded + sample_discrete_gaussian(self.variance, self.size, bits)


def privacy(kind: type[ClientLevel] = ClientLevel, *, discrete: bool = False) -> ClientLevel:
    """Return the mechanism under test, without sampling: every client takes part."""
    return kind(
        rounds=1,
        rate=1.0,
        clients=COHORT,
        epsilon=None,
        noise_multiplier=SIGMA,
        secure=False,
        thresholds=discrete,
    )


def one_sum(
    level: ClientLevel,
    secret: Tensor,
    *,
    generator: torch.Generator,
    dropouts: int = 0,
    size: int = SIZE,
) -> Release:
    """Return the release of a cohort's sum: of ``secret``, if it is there, and of zeros; others drop out."""
    shares = level.shares(COHORT, None)

    def release(present: bool) -> Tensor:
        vectors = [secret] * present + [torch.zeros(size)] * (COHORT - 1 - dropouts)
        total = torch.zeros(size, dtype=torch.float64)
        for vector in vectors:
            total += level.protect(vector, clip=CLIP, shares=shares, generator=generator)
        if len(vectors) == COHORT:
            return total
        deviation = CLIP * shares.missing(len(vectors))
        return total + level.missing(size, deviation=deviation, generator=generator)

    return release


def one_whole_sum(level: ClientLevel, grid: NoiseGrid, secret: Tensor, generator: torch.Generator) -> Release:
    """Return the release of a cohort's sum in whole numbers, as under secure aggregation.

    The other clients' vectors are zero, so what they add is a share of noise each, as the server's top-up is.
    """

    def release(present: bool) -> Tensor:
        others = level.missing_whole(WHOLE_COHORT - present, grid, generator)
        own = level.protect_whole(secret, grid, generator) if present else 0
        return torch.from_numpy(others + own) * grid.step

    return release


def one_update(level: RecordLevel, generator: torch.Generator) -> Release:
    """Return the release of a client's local training with noise of records: of one record, or of none.

    The model is linear and has no bias: an empty record has a gradient of 0, and the gradient of the other
    one is far longer than the bound, always in the same direction.
    """
    model = nn.Sequential(nn.Flatten(), nn.Linear(SIZE, 2, bias=False))
    nn.init.zeros_(model[1].weight)
    rules = with_records(Defense(), level).rules
    train = run_epochs(steps=level.steps, batch_size=2)

    def release(present: bool) -> Tensor:
        inputs = torch.zeros(2, SIZE)
        inputs[0, 0] = 100.0 * present
        data = LocalData(Samples(inputs, torch.zeros(2, dtype=torch.int64)), (), (), 0, 0)
        # a step so small that no gradient changes its direction
        update = train(model, data, Job(1, 1e-6, generator, rules)).update
        return next(iter(update.values())).double().flatten() / 1e-6

    return release


def two_rounds(make: Callable[[torch.Generator], Release], seed: Callable[[], Iterator[int]]) -> Release:
    """Return the release of two rounds, with the client in the first one only."""

    def release(present: bool) -> Tensor:
        return torch.cat(
            [
                make(torch.Generator().manual_seed(one))(present and place == 0)
                for place, one in enumerate(seed())
            ]
        )

    return release


def cases(seed: int = 0) -> list[Case]:
    """Return the sound mechanisms and the faults."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.zeros(SIZE, dtype=torch.float64)
    first[0] = CLIP
    long, wide = 3 * first, torch.zeros(2000, dtype=torch.float64)
    wide[0] = CLIP
    spread = clip_vector(torch.ones(2304), CLIP)
    share = privacy().shares(WHOLE_COHORT, None).local
    whole = privacy(discrete=True)
    fitted = NoiseGrid.fit(clip=CLIP, multiplier=share, size=SIZE)
    coarse = CLIP / 12
    unbounded = UnboundedGrid.of_step(coarse, clip=CLIP, multiplier=share, size=len(spread))
    bounded = NoiseGrid.of_step(coarse, clip=CLIP, multiplier=share, size=len(spread))

    def sound(one: torch.Generator) -> Release:
        return one_sum(privacy(), first, generator=one)

    def fresh() -> Iterator[int]:
        return iter(torch.randint(1 << 40, (2,), generator=generator).tolist())

    def reused() -> Iterator[int]:
        return iter(torch.randint(1 << 40, (1,), generator=generator).tolist() * 2)

    def contrast(release: Tensor) -> float:
        return float(release[0] - release[SIZE])

    along_first = along(first)
    of_records = RecordLevel(rounds=1, steps=3, rate=1.0, delta=DELTA, noise_multiplier=SIGMA)
    of_record = along(GRADIENT)
    return [
        Case("Gaussian", sound(generator), along_first, faulty=False),
        Case(
            "Gaussian, two of four drop out",
            one_sum(privacy(), first, generator=generator, dropouts=2),
            along_first,
            faulty=False,
        ),
        Case("Gaussian, two rounds", two_rounds(sound, fresh), contrast, rounds=2, faulty=False),
        Case(
            "Gaussian, size of the noise",
            one_sum(privacy(), wide, generator=generator, size=len(wide)),
            energy,
            FEW_TRIALS,
            faulty=False,
        ),
        Case(
            "discrete Gaussian",
            one_whole_sum(whole, fitted, first, generator),
            along_first,
            FEW_TRIALS,
            faulty=False,
        ),
        Case(
            "discrete Gaussian, coarse step",
            one_whole_sum(whole, bounded, spread, generator),
            along(spread),
            FEWEST_TRIALS,
            faulty=False,
        ),
        Case("record, three local steps", one_update(of_records, generator), of_record, FEW_TRIALS, 3, False),
        Case(
            "record, noise halved",
            one_update(replace(of_records, noise_multiplier=SIGMA / 2), generator),
            of_record,
            FEW_TRIALS,
            3,
        ),
        Case(
            "record, clipped at three times the bound",
            one_update(replace(of_records, clip=3.0, noise_multiplier=SIGMA / 3), generator),
            of_record,
            FEW_TRIALS,
            3,
        ),
        Case("noise halved", one_sum(privacy(HalfNoise), first, generator=generator), along_first),
        Case(
            "noise halved, discrete",
            one_whole_sum(whole, replace(fitted, variance=fitted.variance // 4), first, generator),
            along_first,
            FEW_TRIALS,
        ),
        Case(
            "clipping left out, an update of three times the bound",
            one_sum(privacy(NoClipping), long, generator=generator),
            along_first,
        ),
        Case("noise reused in the next round", two_rounds(sound, reused), contrast, rounds=2),
        Case(
            "noise of two dropouts missing",
            one_sum(privacy(NoTopUp), first, generator=generator, dropouts=2),
            along_first,
        ),
        Case(
            "noise of the client's own share missing in its absence",
            one_sum(privacy(NoTopUp), wide, generator=generator, size=len(wide)),
            energy,
            FEW_TRIALS,
        ),
        Case(
            "rounded up, without the bound of the length",
            one_whole_sum(whole, unbounded, spread, generator),
            along(spread),
            FEWEST_TRIALS,
        ),
    ]


def main() -> None:
    """Print the table."""
    print(f"sigma {SIGMA:g}, delta {DELTA:g}, confidence {CONFIDENCE:.1%}\n")
    print("| mechanism | trials | claimed ε | measured ε | at least | at least, without μ | refuted |")
    print("|---|---|---|---|---|---|---|")
    for case in cases():
        found = case.measure()
        print(
            f"| {case.name} | 2 × {case.trials:,} | {case.claimed:.2f} | {found.gaussian.estimate:.2f} "
            f"| {found.gaussian.low:.2f} | {found.lower_bound:.2f} "
            f"| {'yes' if found.refutes(case.claimed_distance) else 'no'} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
