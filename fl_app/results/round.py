"""The row of one round of training."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from fl_app.console.words import foreign
from fl_app.results.rows import Row, Whole, absent

Said = Annotated[str, AfterValidator(foreign)]
"""Words that may be a client's own: what is printable and short of them."""


class Failure(Row):
    """A client whose update did not enter the mean, and the reason."""

    client: Whole | None = None
    reason: Said | None = None


class Round(Row):
    """Scores and counts of one round; bytes are those of all clients together.

    Bytes are those of serialised message contents; blobs are their payload. A count is null only in
    files that do not have it.
    """

    round: Whole
    accuracy: float | None = None
    """On the test samples, in rounds that were evaluated; likewise the following scores."""
    loss: float | None = None
    balanced_accuracy: float | None = None
    auroc: float | None = None
    """Area under the ROC curve; two classes only."""
    wer: float | None = None
    """Word error rate, of speech alone."""
    validation_accuracy: float | None = None
    client_accuracy: float | None = None
    """The mean over the clients that evaluated the model on their own samples, by their number."""
    client_loss: float | None = None
    clients: Whole | None = None
    """The number of updates that entered the mean."""
    uplink_bytes: Whole | None = None
    downlink_bytes: Whole | None = None
    uplink_blob_bytes: Whole | None = None
    downlink_blob_bytes: Whole | None = None
    dense_bytes: Whole | None = None
    """Raw float32 parameters and buffers, both ways, for the same clients."""
    uplink_to_bound: float | None = None
    """One update's bytes over their entropy bound, in rounds where it was measured."""
    downlink_to_bound: float | None = None
    """The same for what one client got; a part that is empty has no bound."""
    train_loss: float | None = None
    residual_norm: float | None = None
    """The mean of the clients' residual norms."""
    gradient_norm: float | None = None
    """The largest norm of a client's gradient, where clients report it (``client.norms``)."""
    pruned_share: float | None = None
    """The largest share that a client held back, of the square of its gradient with its residual."""
    epsilon: float | None = None
    """The cost of all rounds so far to the client that lost most; null without differential privacy."""
    epsilon_server: float | None = None
    """The same against the server."""
    epsilon_record: float | None = Field(default=None, exclude_if=absent)
    """The cost to a record of the client that took part most, where records have noise of their own beside
    client-level noise; against everybody."""
    failures: list[Failure] = Field(default_factory=list)
    attacked: list[Whole] = Field(default_factory=list)
    """The clients whose updates were left out of the mean, as the server had sent them another model."""
    notes: list[str] = Field(default_factory=list)
    seconds: float | None = None

    @classmethod
    def begin(cls, number: int) -> Round:
        """Return the row of a round in which nothing was sent yet."""
        return cls(
            round=number,
            clients=0,
            uplink_bytes=0,
            downlink_bytes=0,
            uplink_blob_bytes=0,
            downlink_blob_bytes=0,
            dense_bytes=0,
        )

    def count_up(self, sent: int = 0, *, blob: int = 0) -> None:
        """Count the bytes of a message from a client, and those of its payload."""
        self.uplink_bytes = (self.uplink_bytes or 0) + sent
        self.uplink_blob_bytes = (self.uplink_blob_bytes or 0) + blob

    def count_down(self, sent: int = 0, *, blob: int = 0) -> None:
        """Count the bytes of a message to a client, and those of its payload."""
        self.downlink_bytes = (self.downlink_bytes or 0) + sent
        self.downlink_blob_bytes = (self.downlink_blob_bytes or 0) + blob

    @property
    def bytes_per_client(self) -> float | None:
        """The bytes that one client sent and got, in the mean over clients."""
        up, down = self.uplink_bytes, self.downlink_bytes
        return None if up is None or down is None or not self.clients else (up + down) / self.clients

    @property
    def dense_share(self) -> float | None:
        """The bytes that were sent and got, of those of a dense exchange."""
        up, down = self.uplink_bytes, self.downlink_bytes
        return None if up is None or down is None or not self.dense_bytes else (up + down) / self.dense_bytes

    def as_row(self) -> dict[str, Any]:
        """Return a flat row: failures and attacked clients are counted, notes are joined."""
        counts = {"failures": len(self.failures), "attacked": len(self.attacked)}
        return super().as_row() | counts | {"notes": "; ".join(self.notes)}
