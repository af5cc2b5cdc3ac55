"""The facts behind the bounds on reconstructions in a run with differential privacy."""

from __future__ import annotations

from pydantic import Field

from fl_app.results.rows import Row, Whole


class Exposed(Row):
    """The noisy releases that an image of one client may be in, as its observer saw them in the whole run."""

    client: Whole
    """-1 for the client of a sum that lost most."""
    participant: Whole | None = None
    """The client that observes, from the models that it got; null: the server."""
    signal: float | None = None
    """Sum of 1 / noise multiplier² over the steps that the image is certainly in; null: no noise."""
    noise_multiplier: float | None = None
    """Least noise of the steps that the image may be in; null: no such steps, or no noise."""
    rate: float = 0.0
    """Its largest chance to be in one of these steps."""
    steps: Whole = 0


class Recovery(Row):
    """The criterion by which an image counts as recovered, and the chance of a guess to meet it."""

    unit: str
    """`client` or `record`: the data that the noise hides."""
    discrete: bool = False
    """Whether the noise is a discrete Gaussian."""
    mse_below: float
    """The mean squared error below which an image is recovered."""
    candidates: Whole | None = None
    """Number of test images that represent all images; null: samples are no images."""
    prior: float | None = None
    """The largest share of them that one guess would recover."""
    prior_of_class: float | None = None
    """The same for an attacker who knows the class; the easiest class counts."""
    exposed: list[Exposed] = Field(default_factory=list)
