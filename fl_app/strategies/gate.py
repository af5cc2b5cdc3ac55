"""Single gate for client data: the server counts, averages and adopts nothing that has not passed it.

`admit` checks a reply on arrival, `check_update` checks an update when it is decoded, and `check_model`
checks a new model before it replaces the old one. A refusal affects one client's message or one round,
never the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor

from fl_app.privacy import Release
from fl_app.types import Update
from fl_app.wire import CodecError
from fl_app.wire.messages import EXAMPLES, Answer, MessageError, Reply

MOST_SAMPLES = 1 << 31
MOST_STEPS = 1 << 20
MOST_RELEASED_STEPS = 10_000
LARGEST = 1e10
"""Largest entry of an update or buffer: their sums stay within float32."""
LARGEST_METRIC = 1e12
"""Largest metric that a client may report: its square is still finite."""
SHARES = ("pruned_share",)
NORMS = ("residual_norm", "gradient_norm")
METRICS = ("loss", *NORMS, *SHARES)
EVALUATED = ("loss", "accuracy")
"""Metrics of this app's own evaluation."""
LONGEST_NAME = 64
"""Most characters in the name of a client's own metric."""
OVER_MEDIAN = 10.0
"""Multiple of the round's median at which unverified sample counts are capped."""

ExpectedRelease = Callable[[float, int], Release]
"""Release expected by the server's settings, from sampling rate and number of steps."""


class Unusable(ValueError):
    """A sum, or the model after it, that must not be adopted."""


@dataclass
class Gate:
    """Bounds for replies, from the server's own knowledge of the run."""

    release: ExpectedRelease | None = None
    """Expected release; None: no differential privacy of records, and no reply may claim any."""
    dealt: Mapping[int, int] = field(default_factory=dict)
    """Number of samples dealt to each client."""
    own_data: Set[int] = frozenset()
    """Clients that use their own samples instead."""
    metrics: Sequence[str] | None = METRICS
    """Names of the metrics to keep; None: any."""
    withheld: Callable[[int, int], bool] = lambda server_round, client: False
    """Returns whether the server itself withholds a client's answer from the mean of a round."""
    _told: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Sampling rate and steps of every client's first release; they are constant within a run."""

    def admit(self, reply: Reply, *, server_round: int, client: int, counts: bool) -> Reply:
        """Return a reply of ``client`` with the metrics to keep; raise a MessageError if it is refused.

        ``counts``: whether the update is weighted by samples.
        """
        answer = reply.answer
        if (answer.round, answer.client) != (server_round, client):
            raise MessageError(
                f"expected an answer of client {client} to round {server_round}, "
                f"got one of client {answer.client} to round {answer.round}"
            )
        if answer.left_out and not self.withheld(server_round, client):
            raise MessageError("left_out is the server's to say")
        self._check_counts(answer, counts=counts)
        if not answer.need_model:
            self._check_release(client, reply.release)
        return Reply(answer, reply.update, reply.buffers, _kept(reply.metrics, self.metrics), reply.release)

    def admit_evaluation(self, client: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """Return the metrics of a client's evaluation to keep, and its samples; raise a MessageError."""
        samples, most = metrics.get(EXAMPLES, 0.0), self._most_samples(client)
        if not 0 <= samples <= most:
            raise MessageError(f"samples must be 0 to {most}, got {samples:g}")
        kept = _kept(metrics, None if self.metrics is None else EVALUATED)
        if self.metrics is not None and not 0 <= kept.get("accuracy", 0.0) <= 1:
            raise MessageError(f"accuracy must be 0 to 1, got {kept['accuracy']:g}")
        return kept | {EXAMPLES: samples}

    def _check_counts(self, answer: Answer, *, counts: bool) -> None:
        if not 0 <= answer.steps <= MOST_STEPS:
            raise MessageError(f"steps must be 0 to {MOST_STEPS}, got {answer.steps}")
        least = 1 if counts and not (answer.need_model or answer.left_out) else 0
        if answer.samples < least:
            raise MessageError(f"samples must be at least {least}, got {answer.samples}")
        most = self._most_samples(answer.client)
        if answer.samples > most:
            raise MessageError(f"samples must be at most {most}, got {answer.samples}")

    def _check_release(self, client: int, release: Release | None) -> None:
        if (release is None) != (self.release is None):
            told = "none" if release is None else "one"
            raise MessageError(f"a release of differential privacy must be as this run has it, got {told}")
        if release is None or self.release is None:
            return
        if release.steps > MOST_RELEASED_STEPS:
            raise MessageError(f"a release has at most {MOST_RELEASED_STEPS} steps, got {release.steps}")
        mechanism = (release.sample_rate, release.steps)
        if self._told.get(client, mechanism) != mechanism:
            raise MessageError("a client's sampling rate and steps stay the same in all rounds")
        if release != self.release(*mechanism):
            raise MessageError("noise and delta of a release must be those of the server's settings")
        self._told[client] = mechanism

    def weights(self, claimed: Mapping[int, float]) -> dict[int, float]:
        """Return the weight of each client; cap unverifiable claims by the median."""
        cap = OVER_MEDIAN * median(claimed.values()) if claimed else math.inf
        return {client: w if self._was_dealt(client) else min(w, cap) for client, w in claimed.items()}

    def _most_samples(self, client: int) -> int:
        return self.dealt[client] if self._was_dealt(client) else MOST_SAMPLES

    def _was_dealt(self, client: int) -> bool:
        return client in self.dealt and client not in self.own_data


def check_update(update: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
    """Raise a CodecError for an update or buffers that would spoil a mean."""
    for tensors in (update, buffers):
        bad = first_above(tensors, LARGEST)
        if bad is not None:
            finite = bool(torch.isfinite(tensors[bad]).all())
            raise CodecError(
                f"{bad} holds an entry above {LARGEST:g}" if finite else f"{bad} holds NaN or infinity"
            )
    for name, tensor in buffers.items():
        if _never_negative(name) and tensor.numel() and bool((tensor < 0).any()):
            raise CodecError(f"{name} holds a negative number")


def check_model(weights: Update, buffers: Update) -> None:
    """Raise `Unusable` for a model that no client could train."""
    for tensors in (weights, buffers):
        bad = first_above(tensors, math.inf)
        if bad is not None:
            raise Unusable(f"{bad} would hold NaN or infinity")


def first_above(tensors: Mapping[str, Tensor], limit: float) -> str | None:
    """Return the name of the first tensor with an entry that is NaN or at least ``limit``, else None."""
    floats = {name: t for name, t in tensors.items() if t.numel() and t.is_floating_point()}
    if not floats:
        return None
    # one pass for all: the largest magnitude is below the limit only if all entries are
    norms = torch._foreach_norm(list(floats.values()), math.inf)
    alike = len({norm.dtype for norm in norms}) == 1
    largest = torch.stack(norms if alike else [norm.double() for norm in norms]).tolist()
    return next((name for name, value in zip(floats, largest, strict=True) if not value < limit), None)


def _never_negative(name: str) -> bool:
    return name.rsplit(".", 1)[-1] in ("running_var", "num_batches_tracked")


def _kept(metrics: Mapping[str, float], names: Sequence[str] | None) -> dict[str, float]:
    """Return the metrics to keep: allowed names with values in their range."""

    def fits(name: str, value: float) -> bool:
        if name in SHARES:
            return 0 <= value <= 1
        return (0 if name in NORMS else -LARGEST_METRIC) <= value <= LARGEST_METRIC

    if names is None:
        names = [name for name in metrics if len(name) <= LONGEST_NAME and name.isprintable()]
    return {name: metrics[name] for name in names if name in metrics and fits(name, metrics[name])}
