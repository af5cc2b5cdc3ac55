"""What one round was: the row that ends up in result.json."""

from __future__ import annotations

from dataclasses import dataclass, field

from fl_app.console.words import foreign


@dataclass
class Failure:
    """A client whose update did not enter the mean, and why."""

    client: int
    reason: str

    def __post_init__(self) -> None:
        """Keep of the reason, which may be the client's own words, what is printable and short."""
        self.reason = foreign(self.reason)


@dataclass(frozen=True)
class Begun:
    """What a round is about to ask for: if nothing more is heard of it, it may have been given."""

    round: int
    attempt: int
    """How often the round was begun before."""
    clients: list[int]
    unmasking: bool = False
    """Whether what secure aggregation hides is about to be revealed."""


@dataclass
class RoundRecord:
    """Counts of one round. Bytes are those of serialised message contents; blobs are their payload."""

    round: int
    clients: int = 0
    """How many updates entered the mean."""
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    uplink_blob_bytes: int = 0
    downlink_blob_bytes: int = 0
    dense_bytes: int = 0
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
    """What all rounds so far cost the client that lost most; None without differential privacy."""
    epsilon_server: float | None = None
    failures: list[Failure] = field(default_factory=list)
    attacked: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
