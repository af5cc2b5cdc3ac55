"""What a `result.json` holds, as types; a missing, null or misshapen value becomes None or empty.

Interrupted and failed runs leave partial files, and those are the runs whose
report is needed most. All tolerance sits here; the rest of the report reads
typed fields.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

Scores = tuple[float | None, ...]
"""One value per image; None where that image has no score."""


@dataclass(frozen=True)
class Failure:
    """One client that did not deliver in one round."""

    round: int
    client: str | None
    reason: str | None


@dataclass(frozen=True)
class Round:
    """One round of training; bytes are those of all clients together."""

    round: int
    accuracy: float | None
    validation_accuracy: float | None
    balanced_accuracy: float | None
    auroc: float | None
    """Of two classes alone."""
    wer: float | None
    """Word error rate, of speech alone."""
    loss: float | None
    train_loss: float | None
    uplink_bytes: float | None
    downlink_bytes: float | None
    uplink_blob_bytes: float | None
    downlink_blob_bytes: float | None
    uplink_to_bound: float | None
    """Bytes over their entropy bound, in rounds where it was measured."""
    downlink_to_bound: float | None
    clients: float | None
    failures: tuple[Failure, ...]
    attacked: tuple[str, ...]
    epsilon: float | None
    epsilon_server: float | None
    residual_norm: float | None
    gradient_norm: float | None
    """The largest of a client, where clients report it."""
    pruned_share: float | None
    dense_bytes: float | None
    """What the same clients would have exchanged as raw float32, both ways."""
    notes: tuple[str, ...]
    seconds: float | None

    @property
    def bytes_per_client(self) -> float | None:
        """What one client sent and got, in the mean over clients."""
        up, down = self.uplink_bytes, self.downlink_bytes
        return None if up is None or down is None or not self.clients else (up + down) / self.clients

    @property
    def dense_share(self) -> float | None:
        """What was sent and got, of what dense exchange would have taken."""
        up, down = self.uplink_bytes, self.downlink_bytes
        return None if up is None or down is None or not self.dense_bytes else (up + down) / self.dense_bytes


@dataclass(frozen=True)
class Exchange:
    """What each client sends in a round, where that is a vector."""

    scheme: str | None
    values: float | None
    of: float | None
    """How many numbers the whole model has."""
    hash: str | None
    by_layer: Mapping[str, int]
    """How many of the coordinates lie in each tensor, if they are the same in every round."""
    voted_in: int | None
    """The round in which clients voted on them; None: they did not."""
    picture: Path | None


@dataclass(frozen=True)
class ClientPrivacy:
    """The noise of client-level differential privacy."""

    noise_multiplier: float | None
    clip: float | None
    replayable: bool | None
    """Whether who knows the run's seed knows the noise."""


@dataclass(frozen=True)
class SecureSum:
    """Secure aggregation: the server sees sums, and no client's own vector."""

    against: str | None
    """The server that it withstands, such as `honest-but-curious server`."""
    min_clients: int | None


class TracePoint(NamedTuple):
    """One snapshot of a search."""

    iteration: int
    distance: float | None
    """Mean squared difference of the gradients."""
    layers: Mapping[str, float]
    """Likewise, by parameter."""
    mse: float | None


@dataclass(frozen=True)
class Read:
    """What a search for a sentence had found at one time."""

    iteration: int | None
    """None: at its end."""
    tokens: tuple[str, ...]
    accuracy: float | None


@dataclass(frozen=True)
class Sentence:
    """A sentence, and what an attack read of it as it went on."""

    true: tuple[str, ...] | None
    masked: tuple[bool, ...]
    """Which of its tokens the model was asked for."""
    reads: tuple[Read, ...]


@dataclass(frozen=True)
class Attack:
    """One attack on one update: of one client, or summed over several."""

    name: str
    adaptive: bool
    update: str
    """`undefended` for the raw update, `defended` for the one that was sent.

    With secure aggregation `masked` for what one client sent, and `sum` for what the
    server learns from all of them. `trained`: the defended one, its reconstruction
    compared with the images that the defense trained on instead; those are then its ``images``.
    """
    round: int | None
    client: str | None
    """None for a sum."""
    summed: int
    """How many clients' updates the attacked one is the mean of; 0: one client's own, or not known."""
    broadcaster: bool
    """Whether the client named the locations of the round (ADGP)."""
    manipulated: bool
    """Whether the server had sent the client another model than the round's."""
    batch_size: int | None
    granted: Mapping[str, object]
    labels_from: str | None
    psnr: Scores
    ssim: Scores
    lpips: Scores
    mse: Scores
    labels: Mapping[str, float]
    found_labels: tuple[int, ...]
    """The classes that an attack on labels alone named."""
    true_labels: tuple[int, ...]
    """Of every sample, where they are known and were not granted."""
    objective: float | None
    notes: tuple[str, ...]
    seconds: float | None
    images: Path | None
    truth: Path | None
    transcript: tuple[str, str | None] | None
    """What an attack read of an utterance or a sentence, and what it was."""
    sentence: Sentence | None
    trace: tuple[TracePoint, ...]
    trace_images: Path | None
    others: Mapping[str, float]
    """Further numbers of the entry, such as a word error rate, by name."""

    @property
    def scored(self) -> bool:
        """Whether there was a truth to compare with."""
        scores = (*self.psnr, *self.ssim, *self.lpips, *self.mse)
        return bool(self.labels or self.others) or any(value is not None for value in scores)


@dataclass(frozen=True)
class Run:
    """One run folder, read."""

    folder: Path
    status: str | None
    error: str | None
    config: Mapping[str, object]
    versions: Mapping[str, str]
    parameters: float | None
    buffers: float | None
    rounds: tuple[Round, ...]
    accuracy: float | None
    balanced_accuracy: float | None
    auroc: float | None
    wer: float | None
    best_accuracy: float | None
    """On the test samples, as every accuracy that is not called otherwise."""
    best_round: int | None
    best_chosen_by: str | None
    """`validation` for samples set aside for that, `test` for the test samples themselves."""
    uplink_bytes: float | None
    downlink_bytes: float | None
    dense_bytes: float | None
    """Raw float32 of parameters and buffers, both directions together."""
    epsilon: float | None
    epsilon_server: float | None
    epsilon_unit: str | None
    seconds: float | None
    attacks: tuple[Attack, ...]
    exchange: Exchange | None
    privacy: ClientPrivacy | None
    secure_sum: SecureSum | None
    notes: tuple[str, ...]

    def choice(self, group: str) -> str | None:
        """Return the option that was chosen in a config group, such as `defense`."""
        return as_text(as_mapping(self.config.get("choices")).get(group))

    def setting(self, *names: str) -> str | None:
        """Return one value of the config by its path, as text."""
        return as_text(self._at(*names))

    def amount(self, *names: str) -> float | None:
        """Return one number of the config by its path."""
        return as_number(self._at(*names))

    @property
    def budget(self) -> float | None:
        """The epsilon that was not to be passed against who sees only the models; None if there is none."""
        if (limit := self.amount("dp", "epsilon")) is not None:
            return limit
        # a set noise multiplier goes before it there
        noise = self.amount("defense", "noise_multiplier")
        return self.amount("defense", "epsilon") if noise is None else None

    @property
    def two_classes(self) -> bool:
        """Whether the task is to tell one class from another: balanced accuracy and AUROC say more there."""
        return self.auroc is not None or any(r.auroc is not None for r in self.rounds)

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

    def _at(self, *names: str) -> object:
        value: object = self.config
        for name in names:
            value = as_mapping(value).get(name)
        return value


def parse_run(folder: Path, raw: Mapping[str, object]) -> Run:
    """Read the content of a `result.json` that lies in ``folder``."""
    rounds = tuple(_parse_round(entry, index) for index, entry in enumerate(as_entries(raw.get("rounds")), 1))
    summary = as_mapping(raw.get("summary"))
    model = as_mapping(raw.get("model"))
    parameters, buffers = as_number(model.get("parameters")), as_number(model.get("buffers"))

    def total(name: str, counted: float | None) -> float | None:
        # a run that was cut short has rounds but no summary yet
        stated = as_number(summary.get(name))
        return counted if stated is None else stated

    def latest(name: str) -> float | None:
        return next((value for r in reversed(rounds) if (value := getattr(r, name)) is not None), None)

    evaluated = [r for r in rounds if r.accuracy is not None]
    # its scores even where there is none: an older round's says nothing of the last one
    last, best = (evaluated[-1] if evaluated else None), _best(evaluated)
    return Run(
        folder=folder,
        status=as_text(raw.get("status")),
        error=as_text(raw.get("error")),
        config=as_mapping(raw.get("config")),
        versions={k: text for k, v in as_mapping(raw.get("versions")).items() if (text := as_text(v))},
        parameters=parameters,
        buffers=buffers,
        rounds=rounds,
        accuracy=total("accuracy", last.accuracy if last else None),
        balanced_accuracy=total("balanced_accuracy", last.balanced_accuracy if last else None),
        auroc=total("auroc", last.auroc if last else None),
        wer=total("wer", last.wer if last else None),
        best_accuracy=total("best_accuracy", best.accuracy if best else None),
        best_round=_whole(total("best_round", best.round if best else None)),
        best_chosen_by=as_text(summary.get("best_chosen_by")) or (_chosen_by(best) if best else None),
        uplink_bytes=total("uplink_bytes", _sum([r.uplink_bytes for r in rounds])),
        downlink_bytes=total("downlink_bytes", _sum([r.downlink_bytes for r in rounds])),
        dense_bytes=total("dense_bytes", _dense(parameters, buffers, rounds)),
        epsilon=total("epsilon", latest("epsilon")),
        epsilon_server=total("epsilon_server", latest("epsilon_server")),
        epsilon_unit=as_text(summary.get("epsilon_unit")) or as_text(raw.get("epsilon_unit")),
        seconds=total("seconds", _sum([r.seconds for r in rounds])),
        attacks=tuple(
            attack for entry in as_entries(raw.get("attacks")) for attack in _parse_attacks(folder, entry)
        ),
        exchange=_parse_exchange(folder, raw.get("exchange")),
        privacy=_parse_privacy(raw.get("privacy")),
        secure_sum=_parse_secure_sum(raw.get("secure_aggregation")),
        notes=as_texts(raw.get("notes")),
    )


def as_mapping(value: object) -> Mapping[str, object]:
    """Return ``value`` if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def as_number(value: object) -> float | None:
    """Return ``value`` as a float; None if it is no number, or not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return None if math.isnan(number) else number


def as_text(value: object) -> str | None:
    """Return a string, number or boolean as text, and None for all else."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) and as_number(value) is not None else None


def as_entries(value: object) -> list[Mapping[str, object]]:
    """Return the mappings of a list."""
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def as_texts(value: object) -> tuple[str, ...]:
    """Return a list's texts, or the one text there is."""
    items = value if isinstance(value, list) else [value]
    return tuple(text for item in items if (text := as_text(item)))


def inside(folder: Path, value: object) -> Path | None:
    """Return a path in ``folder``; None if it leads out of it or is none."""
    # a result file must not be able to pull other pictures of this machine into a page that gets passed on
    if not isinstance(value, str) or not value or "\0" in value:
        return None
    path = (folder / value).resolve()
    return path if path.is_relative_to(folder.resolve()) else None


def _parse_round(raw: Mapping[str, object], index: int) -> Round:
    number = _whole(raw.get("round"))
    position = index if number is None else number
    failures = raw.get("failures")
    attacked = raw.get("attacked")
    return Round(
        round=position,
        accuracy=as_number(raw.get("accuracy")),
        validation_accuracy=as_number(raw.get("validation_accuracy")),
        balanced_accuracy=as_number(raw.get("balanced_accuracy")),
        auroc=as_number(raw.get("auroc")),
        wer=as_number(raw.get("wer")),
        loss=as_number(raw.get("loss")),
        train_loss=as_number(raw.get("train_loss")),
        uplink_bytes=as_number(raw.get("uplink_bytes")),
        downlink_bytes=as_number(raw.get("downlink_bytes")),
        uplink_blob_bytes=as_number(raw.get("uplink_blob_bytes")),
        downlink_blob_bytes=as_number(raw.get("downlink_blob_bytes")),
        uplink_to_bound=as_number(raw.get("uplink_to_bound")),
        downlink_to_bound=as_number(raw.get("downlink_to_bound")),
        clients=as_number(raw.get("clients")),
        failures=tuple(
            Failure(position, as_text(as_mapping(entry).get("client")), _reason(entry))
            for entry in (failures if isinstance(failures, list) else [])
        ),
        attacked=as_texts(attacked),
        epsilon=as_number(raw.get("epsilon")),
        epsilon_server=as_number(raw.get("epsilon_server")),
        residual_norm=as_number(raw.get("residual_norm")),
        gradient_norm=as_number(raw.get("gradient_norm")),
        pruned_share=as_number(raw.get("pruned_share")),
        dense_bytes=as_number(raw.get("dense_bytes")),
        notes=as_texts(raw.get("notes")),
        seconds=as_number(raw.get("seconds")),
    )


def _whole(value: object) -> int | None:
    number = as_number(value)
    return None if number is None or math.isinf(number) else int(number)


def _reason(entry: object) -> str | None:
    return as_text(as_mapping(entry).get("reason")) if isinstance(entry, Mapping) else as_text(entry)


def _best(evaluated: list[Round]) -> Round | None:
    """Return the first round with the best accuracy on the validation samples, else on the test samples."""
    validated = [r for r in evaluated if r.validation_accuracy is not None]
    # max takes the first of equals
    return max(
        validated or evaluated,
        key=lambda r: (r.validation_accuracy if validated else r.accuracy) or 0.0,
        default=None,
    )


def _chosen_by(best: Round) -> str:
    return "test" if best.validation_accuracy is None else "validation"


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _dense(parameters: float | None, buffers: float | None, rounds: tuple[Round, ...]) -> float | None:
    clients = _sum([r.clients for r in rounds])
    if parameters is None or clients is None:
        return None
    return 2 * 4 * (parameters + (buffers or 0)) * clients


def _parse_exchange(folder: Path, raw: object) -> Exchange | None:
    if not isinstance(raw, Mapping):
        return None
    by_layer = {name: _whole(count) for name, count in as_mapping(raw.get("by_layer")).items()}
    return Exchange(
        scheme=as_text(raw.get("scheme")),
        values=as_number(raw.get("values")),
        of=as_number(raw.get("of")),
        hash=as_text(raw.get("hash")),
        by_layer={name: count for name, count in by_layer.items() if count is not None},
        voted_in=_whole(raw.get("voted_in")),
        picture=inside(folder, raw.get("picture")),
    )


def _parse_privacy(raw: object) -> ClientPrivacy | None:
    if not isinstance(raw, Mapping):
        return None
    replayable = raw.get("replayable")
    return ClientPrivacy(
        noise_multiplier=as_number(raw.get("noise_multiplier")),
        clip=as_number(raw.get("clip")),
        replayable=replayable if isinstance(replayable, bool) else None,
    )


def _parse_secure_sum(raw: object) -> SecureSum | None:
    if not isinstance(raw, Mapping):
        return None
    return SecureSum(against=as_text(raw.get("against")), min_clients=_whole(raw.get("min_clients")))


def _parse_attacks(folder: Path, raw: Mapping[str, object]) -> list[Attack]:
    """Return the attack, and once more with its scores against what was trained on, if that was another."""
    trained = as_mapping(raw.get("trained"))
    against = [_parse_attack(folder, {**raw, **trained, "update": "trained"})] if trained else []
    return [_parse_attack(folder, raw), *against]


def _parse_attack(folder: Path, raw: Mapping[str, object]) -> Attack:
    others = {
        name: number
        for name, value in raw.items()
        if name not in Attack.__dataclass_fields__ and (number := as_number(value)) is not None
    }
    update = as_text(raw.get("update")) or "defended"
    return Attack(
        name=as_text(raw.get("attack")) or "attack",
        adaptive=raw.get("adaptive") is True,
        update=update,
        round=_whole(raw.get("round")),
        client=None if update == "sum" else as_text(raw.get("client")),
        summed=_whole(raw.get("summed")) or 0,
        broadcaster=raw.get("broadcaster") is True,
        manipulated=raw.get("manipulated") is True,
        batch_size=_whole(raw.get("batch_size")),
        granted=as_mapping(raw.get("granted")),
        labels_from=as_text(raw.get("labels_from")),
        psnr=_scores(raw.get("psnr")),
        ssim=_scores(raw.get("ssim")),
        lpips=_scores(raw.get("lpips")),
        mse=_scores(raw.get("mse")),
        labels=_label_scores(raw.get("labels")),
        found_labels=_numbers(raw.get("found_labels")),
        true_labels=_numbers(raw.get("true_labels")),
        objective=as_number(raw.get("objective")),
        notes=as_texts(raw.get("notes")),
        seconds=as_number(raw.get("seconds")),
        images=inside(folder, raw.get("images")),
        truth=inside(folder, raw.get("truth")),
        transcript=_transcript(as_mapping(raw.get("transcript"))),
        sentence=_sentence(as_mapping(raw.get("tokens_by_iteration"))),
        trace=_trace(raw.get("trace")),
        trace_images=inside(folder, raw.get("trace_images")),
        others=others,
    )


def _scores(value: object) -> Scores:
    return tuple(as_number(item) for item in value) if isinstance(value, list) else ()


def _transcript(raw: Mapping[str, object]) -> tuple[str, str | None] | None:
    found = as_text(raw.get("found"))
    return None if found is None else (found, as_text(raw.get("true")))


def _sentence(raw: Mapping[str, object]) -> Sentence | None:
    reads = tuple(
        Read(_whole(read.get("iteration")), _tokens(read.get("tokens")), as_number(read.get("accuracy")))
        for read in as_entries(raw.get("reads"))
    )
    true, masked = raw.get("true"), raw.get("masked")
    if not reads:
        return None
    return Sentence(
        true=_tokens(true) if isinstance(true, list) else None,
        masked=tuple(hidden is True for hidden in masked) if isinstance(masked, list) else (),
        reads=reads,
    )


def _tokens(raw: object) -> tuple[str, ...]:
    # none is left out: each has its place
    return tuple(as_text(token) or "" for token in raw) if isinstance(raw, list) else ()


def _trace(raw: object) -> tuple[TracePoint, ...]:
    points = []
    for entry in map(as_mapping, raw if isinstance(raw, list) else []):
        layers = {name: as_number(value) for name, value in as_mapping(entry.get("layers")).items()}
        iteration = _whole(entry.get("iteration"))
        if iteration is not None:
            known = {name: value for name, value in layers.items() if value is not None}
            distance, mse = as_number(entry.get("distance")), as_number(entry.get("mse"))
            points.append(TracePoint(iteration, distance, known, mse))
    return tuple(points)


def _numbers(raw: object) -> tuple[int, ...]:
    return tuple(value for value in raw if type(value) is int) if isinstance(raw, list) else ()


def _label_scores(value: object) -> dict[str, float]:
    # `exact` may be written as a boolean
    numbers = {
        name: float(v) if isinstance(v, bool) else as_number(v) for name, v in as_mapping(value).items()
    }
    return {name: number for name, number in numbers.items() if number is not None}
