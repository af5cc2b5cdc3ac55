"""The policy of a node's operator, as typed values."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Value = bool | int | float | str


class _Strict(BaseModel):
    """Table of the policy file; unknown keys and wrong types are errors."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class DefenseRule(_Strict):
    """One step of a defense that is strong enough."""

    name: str
    """The callable that builds it, such as ``dgp``."""
    at_least: dict[str, float] = {}
    at_most: dict[str, float] = {}
    equals: dict[str, Value] = {}


class Orders(_Strict):
    """Limits of the number of answers."""

    per_round: Count = 1
    """Answers to one round; the same answer to the same order once more does not count."""
    total: Count | None = None
    """Answers to all runs together; None: any number."""


class SecureAggregation(_Strict):
    """Whether updates leave in the clear, and which sums may be compared."""

    required: bool = False
    min_difference: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Clients by which two sums must differ, unless they are of the same clients."""


class DifferentialPrivacy(_Strict):
    """Noise and budget."""

    required: bool = False
    unit: Literal["client", "record", "any"] = "any"
    min_sigma: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.3
    """The least noise multiplier against the server, in every answer under differential privacy."""
    epsilon: Positive | None = None
    """The budget against the server, over all runs; None: none."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    max_cohort: Count = 1000
    """Clients that may share the noise: the more, the less each of them adds."""


class Audit(_Strict):
    """Consent to reveal samples."""

    allowed: bool = False
    runs: list[int] = []
    """Flower's numbers of the runs that may ask; empty: any that ``bundles`` lets in."""
    bundles: list[Annotated[str, Field(pattern=r"^[0-9a-f]{8,64}$")]] = []
    """Hashes of the app bundles that may ask; empty: any that ``runs`` lets in."""
    samples: Count = 64
    """The most samples that one answer may reveal."""


Bundle = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 of an app bundle."""


class AppRule(_Strict):
    """An app that may run: all that is given must be true of it."""

    id: str | None = None
    """``publisher/name``, as the SuperLink says."""
    version: str | None = None
    bundle: Bundle | None = None
    """Hash of the bundle's content, as this node computes it."""


class Applied(_Strict):
    """A mod that the node applies to every update."""

    name: str
    settings: dict[str, Value] = {}


class Apps(_Strict):
    """Any app whose replies the node itself checks, under ``fl-app-supernode``."""

    allowed: list[AppRule] = []
    """Apps that may run; empty: any."""
    trusted: list[Bundle] = []
    """Bundles that enforce this policy themselves; their replies pass unread."""
    apply: list[Applied] = []
    """Mods that the node applies, in this order."""
    messages: list[Literal["train", "evaluate", "query"]] = ["train", "evaluate"]
    """Kinds of messages that are answered."""
    records: list[str] = []
    """Names of records that replies may use beside Flower's usual ones."""
    returns: Literal["auto", "weights", "delta", "gradient"] = "auto"
    """Form of the arrays in replies."""
    weight: str = "num-examples"
    """Number that weighs a reply; it leaves although it is no metric."""
    most_weight: Count = 1_000_000
    digits: Annotated[int, Field(ge=1, le=17)] = 4
    """Significant digits of numbers that leave."""
    rounds: Count | None = None
    """Most rounds of one run; None: any number."""
    seconds: Positive = 3600.0
    """Time that an app has for an answer."""
    sandbox: list[str] = []
    """Command before the app's own, such as ``["unshare", "--net", "--"]``."""


class Policy(_Strict):
    """Limits of a node on the runs that it takes part in."""

    models: list[str] = []
    """Names or hashes of models; empty: any that the run names."""
    defenses: list[DefenseRule] = []
    """One of these must be at work; empty: any defense, or none."""
    min_batch: Count = 8
    min_samples: Count = 8
    """Samples that one answer is computed on, at least."""
    max_local_steps: Count = 10_000
    min_cohort: Count = 1
    max_bytes: Count = 1 << 30
    max_movement: Positive | None = 0.25
    """Largest movement of a model between two orders, relative to each tensor's size, times the square root
    of the local steps of a round; None: any. Not checked under DP."""
    metrics: list[str] = []
    """Numbers measured on the data that may leave beside the update."""
    buffers: bool = True
    """Whether statistics of layers (BatchNorm) may leave; under DP and secure aggregation they never do."""
    orders: Orders = Orders()
    secure_aggregation: SecureAggregation = SecureAggregation()
    dp: DifferentialPrivacy = DifferentialPrivacy()
    audit: Audit = Audit()
    apps: Apps = Apps()

    @property
    def needs_memory(self) -> bool:
        """Whether it has limits over all runs, which only a node with a folder of its own can keep."""
        return self.orders.total is not None or self.dp.epsilon is not None


DEFAULT = Policy()
"""Policy of nodes that neither trust runs nor name a file."""
