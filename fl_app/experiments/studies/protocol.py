"""Protocol of a paper: a file that fixes the role of each claim and the differences that matter.

A claim that the protocol does not name is exploratory. The protocol fixes the number of tests in a
family, so a verdict does not depend on which other studies were run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fl_app.config.compose import ConfigError
from fl_app.experiments.papers import PAPERS
from fl_app.results.study import Role

FOLDER = Path(__file__).with_name("protocols")
PRIMARY: Role = "primary"
SECONDARY: Role = "secondary"
CHECK: Role = "check"
EXPLORATORY: Role = "exploratory"
REPEATS: Role = "repeats another"
_DIGITS = 12


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Margin(_Strict):
    """The smallest difference of a metric that matters."""

    margin: float = Field(gt=0)
    reason: str


class PrimaryClaim(_Strict):
    """A sentence of the paper that the reproduction is judged by."""

    claim: str
    """STUDY/NAME of the claim."""
    quote: str
    place: str
    """Page or section of the paper."""
    unit: str
    n: int | None = Field(gt=0)
    """Units of the power analysis (90 % at α = 0.001, twice the spread seen); None: there is none yet."""
    test: str
    attackers: str
    """The attackers and their effort; "none" of a claim on accuracy or bytes."""


class Protocol(_Strict):
    """The protocol of one paper."""

    paper: str
    written: str
    """The date, and what was known by then."""
    margins: Mapping[str, Margin] = Field(default_factory=dict)
    """By metric."""
    primary: Sequence[PrimaryClaim] = ()
    secondary: Sequence[str] = ()
    checks: Sequence[str] = ()
    """Tests of our own apparatus."""
    repeats: Mapping[str, str] = Field(default_factory=dict)
    """Claims that are the same test on the same cells as another one, by that one."""

    def role_of(self, study: str, name: str) -> Role:
        """Return the role of a claim of a study."""
        claim = f"{study}/{name}"
        if claim in self.repeats:
            return REPEATS
        if claim in (entry.claim for entry in self.primary):
            return PRIMARY
        return SECONDARY if claim in self.secondary else CHECK if claim in self.checks else EXPLORATORY

    def size_of(self, role: Role) -> int | None:
        """Return the number of tests in a family; None of one that the protocol does not fix."""
        sizes = {PRIMARY: len(self.primary), SECONDARY: len(self.secondary), CHECK: len(self.checks)}
        return sizes.get(role)

    def margin_of(self, metric: str) -> float | None:
        """Return the smallest difference of a metric that matters; None if the protocol has none."""
        found = self.margins.get(metric)
        return None if found is None else found.margin


def family_size(protocol: Protocol, study: str, name: str) -> int | None:
    """Return the number of tests in the family of a claim; None if no protocol fixes it.

    A test that repeats another one has the family of that one, so that both have one verdict.
    """
    twin = protocol.repeats.get(f"{study}/{name}")
    if twin is None:
        return protocol.size_of(protocol.role_of(study, name))
    others = (read_protocol(paper)[0] for paper in PAPERS)
    return next((size for other in others if (size := other.size_of(other.role_of(*twin.split("/"))))), None)


@cache
def read_protocol(paper: str) -> tuple[Protocol, str]:
    """Return the protocol of a paper and the hash of its file."""
    file = FOLDER / f"{paper}.yaml"
    content = file.read_bytes()
    try:
        protocol = Protocol.model_validate(yaml.safe_load(content))
    except ValidationError as error:
        raise ConfigError(f"{file.name}: {error}") from error
    names = [*(entry.claim for entry in protocol.primary), *protocol.secondary, *protocol.checks]
    if twice := sorted({name for name in names if names.count(name) > 1 or name in protocol.repeats}):
        raise ConfigError(f"{file.name}: a claim has one role, {twice[0]} has two")
    return protocol, hashlib.sha256(content).hexdigest()[:_DIGITS]
