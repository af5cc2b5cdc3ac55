"""The result of a run: everything that its result.json says."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import Field, PrivateAttr

from fl_app.results.attack import Attack
from fl_app.results.membership import Membership
from fl_app.results.paths import inside
from fl_app.results.property import PropertyInference
from fl_app.results.recovery import Recovery
from fl_app.results.round import Round
from fl_app.results.rows import Row, SparseRow, Whole, absent
from fl_app.results.summary import Summary, summarise

SCHEMA = 1
"""The version of result.json; a reader refuses a later one."""
REPORT = "report.html"


class Model(Row):
    """Sizes of the model, in numbers."""

    parameters: Whole | None = None
    buffers: Whole | None = None


class Origin(Row):
    """The code, machine and data that a run's numbers come from."""

    commit: str | None = None
    """The commit of the code; None: it is no checkout of a repository."""
    changed: bool | None = None
    """Whether files that git tracks differed from that commit."""
    lock: str | None = None
    """Hash of the exact versions that the checkout names for development."""
    processor: str | None = None
    system: str | None = None
    threads: Whole | None = None
    """Threads of torch."""
    test_data: str | None = None
    """Hash of the samples and labels that accuracy is measured on."""


class Exchange(SparseRow):
    """The vector that each client sends in a round, where it is one."""

    scheme: str | None = None
    values: Whole | None = None
    of: Whole | None = None
    """The number of values of the whole model."""
    hash: str | None = None
    voted_in: Whole | None = None
    """The round in which clients voted on the coordinates; None: they did not."""
    by_layer: dict[str, Whole] = Field(default_factory=dict)
    """The number of coordinates in each tensor, if they are the same in every round."""
    picture: str | None = None


class RecordPrivacy(Row):
    """The noise of single records in the local steps of clients that also have client-level noise."""

    noise_multiplier: float | None = None
    clip: float | None = None
    """The bound of a record's gradient norm."""
    rate: float | None = None
    """The probability that a record is in a step."""
    steps: Whole | None = None
    """The local steps of a round."""
    delta: float | None = None
    adjacency: str | None = None
    """The federations that `epsilon_record` compares."""


class Privacy(Row):
    """The noise of client-level differential privacy."""

    unit: str = "client"
    noise_multiplier: float | None = None
    clip: float | None = None
    replayable: bool | None = None
    """Whether the run's seed gives the noise away."""
    mechanism: str | None = None
    """The distribution of the noise, such as `distributed discrete Gaussian`."""
    adjacency: str | None = None
    """The federations that epsilon compares: `add or remove one client`, or `replace one client`."""
    accountant: str | None = None
    separation: Whole | None = None
    """Rounds from one turn of a client to its next, where clients take turns: the server then adds all noise,
    and nothing protects from it."""
    honest: float | None = None
    """Share of each cohort that is assumed not to tell the server its noise, where secure aggregation makes
    `epsilon_server` depend on it."""
    records: RecordPrivacy | None = Field(default=None, exclude_if=absent)
    """The noise of single records beside; None: a record has its client's protection alone."""
    canaries: Whole | None = None
    """Random updates in the run by which epsilon was measured."""
    epsilon_measured: float | None = None
    """Epsilon that they show an observer of the first and the last model; an estimate."""
    epsilon_measured_interval: list[float] | None = None
    """Its interval of 95 % confidence."""


class SecureSum(Row):
    """Secure aggregation: the server sees sums, and no client's own vector."""

    against: str | None = None
    """The server that it withstands, such as `honest-but-curious server`."""
    min_clients: Whole | None = None


class Histogram(Row):
    """Values by size, with their norm and the mean of their magnitudes."""

    norm: float | None = None
    mean: float | None = None
    counts: list[Whole] = Field(default_factory=list)
    edges: list[float] = Field(default_factory=list)


class Weights(Row):
    """Distances that the weights moved that moved most, and their values at the end."""

    count: Whole | None = None
    norm: float | None = None
    mean: float | None = None
    largest: float | None = None
    counts: list[Whole] = Field(default_factory=list)
    edges: list[float] = Field(default_factory=list)
    values: Histogram = Histogram()


class Resumed(Row):
    """One time that the run was cut short and resumed."""

    round: Whole | None = None
    """The last round before."""
    at: str | None = None
    reason: str | None = None


class Run(Row):
    """One run. `fl_app.results.load_run` reads it from its folder, `fl_app.run` fills and writes it."""

    model_config = SparseRow.model_config

    schema_version: Whole = Field(default=SCHEMA, alias="schema")
    status: str | None = None
    """`running`, `finished`, `failed` or `interrupted`."""
    error: str | None = None
    config: dict[str, Any] = Field(default_factory=dict)
    """All settings; ``config["choices"]`` names the options chosen in the config groups."""
    config_hash: str | None = None
    versions: dict[str, str] = Field(default_factory=dict)
    origin: Origin | None = Field(default=None, exclude_if=absent)
    model: Model = Model()
    test_samples: Whole | None = Field(default=None, exclude_if=absent)
    """The number of samples that accuracy is measured on; None where it is of something else."""
    rounds: list[Round] = Field(default_factory=list)
    summary: Summary = Summary()
    attacks: list[Attack] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    exchange: Exchange | None = Field(default=None, exclude_if=absent)
    secure_aggregation: SecureSum | None = Field(default=None, exclude_if=absent)
    privacy: Privacy | None = Field(default=None, exclude_if=absent)
    recovery: Recovery | None = Field(default=None, exclude_if=absent)
    """The facts behind the bounds of attacks under differential privacy."""
    membership: list[Membership] | None = Field(default=None, exclude_if=absent)
    """Attacks that ask whether single records were trained on."""
    properties: list[PropertyInference] | None = Field(default=None, exclude_if=absent)
    """Attacks that ask for a property of the samples behind updates."""
    resumed: list[Resumed] | None = Field(default=None, exclude_if=absent)
    run: str | None = Field(default=None, exclude_if=absent)
    """The key by which clients with a memory know the run again."""
    weights: Weights | None = Field(default=None, exclude_if=absent)

    _folder: Path = PrivateAttr(default=Path())

    @property
    def folder(self) -> Path:
        """The folder that the run lies in."""
        return self._folder

    @property
    def report(self) -> Path:
        """The path of the run's page."""
        return self.folder / REPORT

    def lies_in(self, folder: Path) -> Self:
        """Take ``folder`` for that of the run, and return the run."""
        self._folder = folder
        for attack in self.attacks:
            attack.lies_in(folder)
        return self

    def file(self, name: str | None) -> Path | None:
        """Return the path of a file that a row names; None if it leads out of the folder."""
        return inside(self.folder, name)

    @property
    def totals(self) -> Summary:
        """The summary; a value that it lacks is counted from the rounds, as for a run that was cut short."""
        if not self.rounds:
            return self.summary
        counted = summarise(self.rounds)
        counted.dense_bytes = counted.dense_bytes or self._dense_bytes()
        stated = {key: value for key, value in self.summary if value is not None}
        return counted.model_copy(update=stated)

    @cached_property
    def comparisons(self) -> list[Attack]:
        """The attacks, each once more if it was also compared with images that the defense trained on."""
        pairs = ((attack, attack.against_trained) for attack in self.attacks)
        return [attack for pair in pairs for attack in pair if attack is not None]

    def choice(self, group: str) -> str | None:
        """Return the option that was chosen in a config group, such as `defense`."""
        return self.setting("choices", group)

    def setting(self, *names: str) -> str | None:
        """Return one value of the config by its path, as text."""
        value = self._at(*names)
        if isinstance(value, bool):
            return "true" if value else "false"
        return str(value) if isinstance(value, str | int | float) else None

    def amount(self, *names: str) -> float | None:
        """Return one number of the config by its path."""
        value = self._at(*names)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        return None if abs(value) > 2**1023 else float(value)

    @property
    def budget(self) -> float | None:
        """The epsilon that was not to be passed against an observer of the models only; None: no limit."""
        if (limit := self.amount("dp", "epsilon")) is not None:
            return limit
        # a set noise multiplier goes before it there
        noise = self.amount("defense", "noise_multiplier")
        return self.amount("defense", "epsilon") if noise is None else None

    @property
    def two_classes(self) -> bool:
        """Whether the task is to tell one class from another: balanced accuracy and AUROC say more there."""
        return self.summary.auroc is not None or any(r.auroc is not None for r in self.rounds)

    @property
    def defense(self) -> str:
        """Everything that protects updates, in one label; `none` if nothing does, `unknown` if not said."""
        extras = [
            f"{group}={chosen}"
            for group, off in (("dp", "none"), ("secagg", "off"))
            if (chosen := self.choice(group)) not in (None, off)
        ]
        defense = self.choice("defense") or "unknown"
        return " + ".join(extras if defense == "none" and extras else [defense, *extras])

    def _dense_bytes(self) -> int | None:
        """Return the bytes of a dense exchange with the same clients; None if they are not known."""
        if self.model.parameters is None or all(r.clients is None for r in self.rounds):
            return None
        values = self.model.parameters + (self.model.buffers or 0)
        return 2 * 4 * values * sum(r.clients or 0 for r in self.rounds)

    def _at(self, *names: str) -> object:
        value: object = self.config
        for name in names:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value
