"""The summary of a run's rounds."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from fl_app.results.round import Round
from fl_app.results.rows import Row, Whole, absent


class Summary(Row):
    """Scores of the last evaluated round, of the best one, and totals of all rounds."""

    accuracy: float | None = None
    balanced_accuracy: float | None = None
    auroc: float | None = None
    wer: float | None = None
    best_accuracy: float | None = None
    """On the test samples, as every accuracy that is not called otherwise."""
    best_round: Whole | None = None
    best_chosen_by: str | None = None
    """`validation` for samples set aside for that, `test` for the test samples themselves."""
    uplink_bytes: Whole | None = None
    downlink_bytes: Whole | None = None
    uplink_blob_bytes: Whole | None = None
    downlink_blob_bytes: Whole | None = None
    dense_bytes: Whole | None = None
    """Raw float32 of parameters and buffers, both directions together."""
    residual_bound: float | None = None
    """The bound of a residual's square, by the largest gradient and share so far."""
    epsilon: float | None = None
    epsilon_server: float | None = None
    epsilon_unit: str | None = None
    """The unit of these two, `client` or `record`."""
    epsilon_adjacency: str | None = Field(default=None, exclude_if=absent)
    """The federations that `epsilon` compares, such as `add or remove one client`. `epsilon_server` compares
    them with and without one."""
    epsilon_record: float | None = Field(default=None, exclude_if=absent)
    """The cost to a single record, where both units have noise of their own."""
    seconds: float | None = None


def summarise(rounds: Sequence[Round]) -> Summary:
    """Count the rounds together; ``seconds`` are those that the rounds took."""
    evaluated = [row for row in rounds if row.accuracy is not None]
    # its scores even where there is none: an older round's says nothing of the last one
    last = evaluated[-1] if evaluated else Round(round=0)
    best = _best(evaluated)
    end = rounds[-1] if rounds else Round(round=0)
    seconds = [row.seconds for row in rounds if row.seconds is not None]
    return Summary(
        accuracy=last.accuracy,
        balanced_accuracy=last.balanced_accuracy,
        auroc=last.auroc,
        wer=last.wer,
        best_accuracy=None if best is None else best.accuracy,
        best_round=None if best is None else best.round,
        best_chosen_by=None if best is None else "test" if best.validation_accuracy is None else "validation",
        uplink_bytes=_total([row.uplink_bytes for row in rounds]),
        downlink_bytes=_total([row.downlink_bytes for row in rounds]),
        uplink_blob_bytes=_total([row.uplink_blob_bytes for row in rounds]),
        downlink_blob_bytes=_total([row.downlink_blob_bytes for row in rounds]),
        dense_bytes=_total([row.dense_bytes for row in rounds]),
        epsilon=end.epsilon,
        epsilon_server=end.epsilon_server,
        epsilon_record=end.epsilon_record,
        seconds=sum(seconds) if seconds else None,
    )


def _best(evaluated: Sequence[Round]) -> Round | None:
    """Return the best round by the validation samples, else by the test samples; the first one of equals.

    Chosen by the test samples themselves, its accuracy is optimistically biased.
    """
    validated = [row for row in evaluated if row.validation_accuracy is not None]
    if validated:
        return max(validated, key=lambda row: row.validation_accuracy or 0.0)
    return max(evaluated, key=lambda row: row.accuracy or 0.0, default=None)


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known or not counts else None
