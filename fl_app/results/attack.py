"""The row of one attack on one update."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PrivateAttr

from fl_app.results.paths import inside
from fl_app.results.rows import Row, Score, SparseRow, Whole

Metric = Literal["psnr", "ssim", "lpips", "mse"]
METRICS: tuple[Metric, ...] = ("psnr", "ssim", "lpips", "mse")
_OWN_PLACE = frozenset(
    {"round", "client", "summed", "batch_size", "objective", "seconds", "found", "bound", "bound_prior"}
    | {"candidates"}
)
"""Numbers that a report shows in columns of their own."""

Scores = list[float | None]
"""One value per image; None where that image has no score."""


def hash_settings(settings: Mapping[str, Any]) -> str:
    """Return a short name of an attack's settings, the same for its plain and its adaptive form."""
    shared = {key: value for key, value in settings.items() if key != "adaptive"}
    return hashlib.sha256(json.dumps(shared, sort_keys=True, default=str).encode()).hexdigest()[:8]


class Transcript(Row):
    """The text that an attack read of an utterance or a sentence, and the true one."""

    found: str | None = None
    true: str | None = None


class Read(Row):
    """The tokens that a search for a sentence had found at one time."""

    iteration: Whole | None = None
    """None: at its end."""
    tokens: list[str] = Field(default_factory=list)
    accuracy: float | None = None


class Sentence(Row):
    """A sentence, and the tokens that an attack read of it as it went on."""

    true: list[str] | None = None
    masked: list[bool] | None = None
    """The tokens that the model was asked for."""
    reads: list[Read] = Field(default_factory=list)


class TracePoint(Row):
    """One snapshot of a search; scores are means over its images."""

    iteration: Whole
    objective: float | None = None
    distance: float | None = None
    """Mean squared difference of the gradients."""
    layers: dict[str, float] = Field(default_factory=dict)
    """The same, by parameter."""
    mse: float | None = None
    psnr: float | None = None
    ssim: float | None = None
    lpips: float | None = None


class Trained(SparseRow):
    """Scores against the images that the defense trained on instead of the client's own."""

    psnr: Scores | None = None
    ssim: Scores | None = None
    lpips: Scores | None = None
    mse: Scores | None = None
    labels: dict[str, Score] | None = None
    matching: list[Whole | None] | None = None
    identified: list[bool | None] | None = None
    candidates: Whole | None = None
    identified_share: float | None = None
    identified_by: str | None = None
    registered_psnr: Scores | None = None
    images: str | None = None


class Attack(SparseRow):
    """One attack on one update: of one client, or summed over several.

    Further keys are scores of the attack's own.
    """

    name: str = Field(default="attack", alias="attack")
    adaptive: bool = False
    """Whether the attack knows of the defense and adapts to it."""
    update: str = "defended"
    """`undefended` for the raw update, `defended` for the one that was sent.

    With secure aggregation `masked` for one client's message, and `sum` for the server's view of all.
    """
    round: Whole | None = None
    client: Whole | None = None
    """Negative for a sum: see ``sender``."""
    summed: Whole = 0
    """The number of clients whose mean was attacked; 0: one client's own update, or not known."""
    participant: Whole | None = None
    """The client that attacks, where it is not the server."""
    batch_size: Whole | None = None
    model: str | None = None
    """Hash of the weights and buffers that the update was computed with."""
    samples: list[str] | None = None
    """Hash of each true sample, in the order of the scores."""
    manipulated: bool = False
    """Whether the server had sent the client another model than the round's."""
    broadcaster: bool | None = None
    """Whether the client named the locations of the round (ADGP)."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """All settings of the attack; empty in runs of before they were stated."""
    granted: dict[str, Any] = Field(default_factory=dict)
    """Knowledge of the attacker beside the model and the update."""
    labels_from: str | None = None
    """`granted` or `inferred`."""
    update_distance: float | None = None
    """Distance of the attacked update from the raw one, relative to its norm."""
    objective: float | None = None
    notes: list[str] = Field(default_factory=list)
    gave_up: str | None = None
    """The reason why there is no result; None: there is one."""
    psnr: Scores | None = None
    ssim: Scores | None = None
    lpips: Scores | None = None
    mse: Scores | None = None
    labels: dict[str, Score] | None = None
    """`precision`, `recall`, `f1` and `exact` of the labels that were not granted."""
    matching: list[Whole | None] | None = None
    """Position of the reconstruction of each true image."""
    token_accuracy: float | None = None
    token_exact: float | None = None
    token_error_rate: float | None = None
    token_wer: float | None = None
    identified: list[bool | None] | None = None
    """Whether each true image is the one among ``candidates`` that its reconstruction is nearest to."""
    candidates: Whole | None = None
    identified_share: float | None = None
    identified_by: str | None = None
    """The measure of nearness."""
    registered_psnr: Scores | None = None
    """PSNR after the best shift and flip of the reconstruction."""
    trained: Trained | None = None
    recovered: float | None = None
    """The share of images recovered to the last level, under a manipulated model."""
    found: float | None = None
    """The share of images whose error is below ``recovery.mse_below``, under differential privacy."""
    bound: float | None = None
    """The most that any attack on the same releases can expect to find; null: none was computed."""
    bound_prior: float | None = None
    """The chance to find an image by guessing as often as the attack did."""
    bound_note: str | None = None
    """The reason why there is no bound."""
    images: str | None = None
    """A picture below the run's folder; likewise ``truth`` and ``trace_images``."""
    truth: str | None = None
    found_labels: list[Whole] | None = None
    """The classes that an attack on labels alone named."""
    label_counts: list[Whole] | None = None
    true_labels: list[Whole] | None = None
    """The class of every sample, where they are known and were not granted."""
    rule: str | None = None
    """The rule of an attack on labels that answered, `none` if none could; None: it has one alone."""
    rank: Whole | None = None
    rank_error: Whole | None = None
    transcript: Transcript | None = None
    variables: Whole | None = None
    tokens_by_iteration: Sentence | None = None
    iterations: Whole | None = None
    iterations_mse: Whole | None = None
    """The first iteration whose images count as found."""
    trace: list[TracePoint] = Field(default_factory=list)
    trace_images: str | None = None
    seconds: float | None = None

    _folder: Path = PrivateAttr(default=Path())

    @cached_property
    def settings_hash(self) -> str:
        """Name of its settings: two entries share it if nothing but the form differs."""
        return hash_settings(self.settings)

    @property
    def exceeds_bound(self) -> bool:
        """Whether more was found than the noise should allow."""
        return self.found is not None and self.bound is not None and self.found > self.bound

    @property
    def sender(self) -> int | None:
        """The client that sent the attacked update; None for a sum."""
        return None if self.update == "sum" else self.client

    @property
    def texts(self) -> tuple[str, str | None] | None:
        """The text that the attack read, and the true one, if it read any."""
        said = self.transcript
        return None if said is None or said.found is None else (said.found, said.true)

    @property
    def sentence(self) -> Sentence | None:
        """The sentence that the attack read, if it read one."""
        found = self.tokens_by_iteration
        return found if found is not None and found.reads else None

    @property
    def label_scores(self) -> Mapping[str, float]:
        """Scores of labels; empty without any."""
        return self.labels or {}

    @property
    def others(self) -> Mapping[str, float]:
        """Further numbers of the entry, such as a word error rate, by name."""
        values = {name: getattr(self, name) for name in type(self).model_fields} | (self.model_extra or {})
        return {
            name: float(value)
            for name, value in values.items()
            if isinstance(value, int | float) and not isinstance(value, bool) and name not in _OWN_PLACE
        }

    @property
    def scored(self) -> bool:
        """Whether there was a truth to compare with."""
        values = [value for metric in METRICS for value in self.scores(metric)]
        return bool(self.labels or self.others) or any(value is not None for value in values)

    @property
    def against_trained(self) -> Attack | None:
        """The same attack, compared with the images that the defense trained on, if it trained on others.

        Its ``update`` is `trained`, and those are its ``images``.
        """
        if self.trained is None:
            return None
        return self.model_copy(update=vars(self.trained) | {"update": "trained", "trained": None})

    def lies_in(self, folder: Path) -> None:
        """Take ``folder`` for that of the run."""
        self._folder = folder

    def file(self, key: Literal["images", "truth", "trace_images"]) -> Path | None:
        """Return the path of one of its pictures; None if it has none, or one outside of the run's folder."""
        return inside(self._folder, getattr(self, key))

    def scores(self, metric: str) -> Sequence[float | None]:
        """Return the scores of its images; empty without images."""
        values: Scores | None = getattr(self, metric)
        return values or []

    def as_row(self) -> dict[str, Any]:
        """Return a flat row: scores are means over the images that have one, notes are joined."""
        means: dict[str, float | None] = {}
        for metric in METRICS:
            known = [value for value in self.scores(metric) if value is not None]
            means[metric] = statistics.fmean(known) if known else None
        return super().as_row() | means | {"notes": "; ".join(self.notes)}
