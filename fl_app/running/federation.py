"""One whole run on the server: train, attack the sightings, report."""

from __future__ import annotations

import copy
import logging
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from safetensors.torch import save_file
from torch import Tensor, nn

from fl_app.adversary.active import ActiveServer
from fl_app.adversary.ascending import Ascend, AscendingServer
from fl_app.adversary.attacker import Attacker
from fl_app.adversary.liars import Liars, Lie, backdoor, flip, scale, with_trigger
from fl_app.adversary.participant import Participant
from fl_app.adversary.passive import PassiveServer, Public, Sighting
from fl_app.adversary.sightings import save_sightings
from fl_app.config.build import ServerParts, server_parts, share_moved_most
from fl_app.config.compose import ConfigError
from fl_app.config.trust import NOBODY, Trust
from fl_app.console.interruption import stopping_after_rounds
from fl_app.console.progress import track
from fl_app.data.dataset import Samples, normalise, pixels
from fl_app.data.traits import trait_of
from fl_app.flower.held_tensor import hold, release
from fl_app.flower.tapped import TappedGrid
from fl_app.report import plot_partition, write_report
from fl_app.running.attack import Rehearse, attack_sightings, check_attacked
from fl_app.running.bounds import describe_recovery
from fl_app.running.checkpoint import has_checkpoint
from fl_app.running.estimate import tell_estimate
from fl_app.running.measured_epsilon import describe_canaries
from fl_app.running.membership import MEMBERS, infer_members, promise_of
from fl_app.running.origin import origin_of
from fl_app.running.ownership import MODEL, claim, clear, remove_checkpoint, remove_drafts
from fl_app.running.properties import PROPERTY, Rehearsal, infer_properties
from fl_app.running.result import Results, run_folder
from fl_app.running.resume import LastingRun, Past, ResidentClients, read_past
from fl_app.running.room import make_room
from fl_app.running.shadows import ShadowTraining
from fl_app.running.vector_facts import describe_vectors, describe_weights, privacy_notes
from fl_app.seeding import SERVER
from fl_app.storage.plain_folder import remove_if_empty
from fl_app.storage.tree_file import sync
from fl_app.strategies import BudgetSpent, FedSGD
from fl_app.strategies.outcome import check_used
from fl_app.training import Evaluation, LocalData, Rules, batch_norm, parameters, task_of
from fl_app.types import Manipulated, Update
from fl_app.wire.messages import Order

logger = logging.getLogger(__name__)

_MARKED = 64
"""Images that a backdoor is planted with."""


def run_federation(
    grid: Grid, overrides: str, trust: Trust = NOBODY, *, client_app: ClientApp | None = None
) -> Path:
    """Run what ``overrides`` describe over ``grid``, as far as they are trusted; return the report's path.

    With ``client_app``, an attacker on membership trains shadow models in-process.

    An interrupted or failed run leaves its partial results in its folder,
    marked as such; the error is raised again.
    """
    parts = server_parts(overrides, trust)
    config = parts.config
    resumed, config["resume"] = config["resume"], None
    if resumed and not Path(resumed).is_dir():
        raise ConfigError(f"resume: {resumed}: there is no such folder")
    folder = run_folder(resumed or config["run_dir"], config["choices"]["defense"])
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with claim(folder):
            past = read_past(config, folder) if resumed else None
            if past is not None and past.is_finished:
                return _complete(parts, folder)
            make_room()
            shadows = None
            if client_app is not None:
                shadows = ShadowTraining(parts, overrides, trust, client_app, folder / "shadows")
            return _run(grid, parts, overrides, folder, past, shadows)
    finally:
        remove_if_empty(folder)


def _run(
    grid: Grid,
    parts: ServerParts,
    overrides: str,
    folder: Path,
    past: Past | None,
    shadows: ShadowTraining | None,
) -> Path:
    """Run, or go on with, the run in a claimed folder."""
    config = parts.config
    results = Results(folder, config, _sizes(parts))
    results.run.test_samples = _test_samples(parts)
    results.run.origin = origin_of([parts.dataset.test.inputs, parts.dataset.test.labels])
    describe_vectors(parts.strategy, parts.model, results)
    start = {name: p.detach().clone() for name, p in parameters(parts.model).items()}
    auditor = watch(parts)
    lasting = LastingRun(grid, parts, overrides, results, auditor, past)
    if past is None:
        clear(folder)
    else:
        remove_drafts(folder)
    with _logging_to(folder / "run.log"):
        trained = False
        try:
            lasting.begin()
            if isinstance(grid, ResidentClients):
                tell_estimate(parts)
            with stopping_after_rounds():
                sightings = _train(grid, parts, results, auditor, lasting)
                trained = True
            describe_vectors(parts.strategy, parts.model, results)  # clients may have voted on coordinates
            describe_weights(parts.strategy, start, share_moved_most(config), results)
            describe_canaries(parts.strategy, start, results)
            _save_model(parts.strategy, folder / MODEL)
            asks_members = parts.attacker is not None and parts.attacker.infers == MEMBERS
            if config["audit"]["store"] and not asks_members:
                for path in save_sightings(folder, sightings, parts.spec, parts.public):
                    sync(path)
            if asks_members:
                _infer_members(parts, auditor, results, shadows)
            elif parts.attacker is not None and parts.attacker.infers == PROPERTY:
                _infer_properties(parts, sightings, results)
            elif parts.attacker is not None:
                results.run.recovery = describe_recovery(
                    parts.strategy, sightings, parts.dataset.test, parts.attacker.mse_below
                )
                attack_sightings(
                    sightings, parts.attacker, parts.model, parts.public, results, rehearse=_rehearse(parts)
                )
                check_attacked(auditor, results)
            results.finish("finished")
        except BaseException as error:
            interrupted = isinstance(error, KeyboardInterrupt)
            if interrupted and trained:
                lasting.save_now()
            words = "interrupted by the user" if interrupted else f"{type(error).__name__}: {error}"
            results.fail("interrupted" if interrupted else "failed", words)
            if interrupted:  # somebody waits: the pages come with the resumed run
                raise KeyboardInterrupt(_how_to_go_on(folder)) from None
            with _never_in_the_way():
                _show(parts, folder)
            raise
        report = _show(parts, folder)
        lasting.end()
    return report


def _infer_members(
    parts: ServerParts, auditor: PassiveServer, results: Results, shadows: ShadowTraining | None
) -> None:
    if parts.attacker is None:
        return
    strategy, model = parts.strategy, parts.model
    model.load_state_dict(strategy.weights | strategy.buffers)
    batch_norm.set_evaluation(model, parts.config["bn"])
    infer_members(
        auditor,
        parts.attacker,
        model,
        parts.public,
        results,
        known=parts.population,
        train_shadows=shadows,
        promise=promise_of(strategy, parts.attacker.settings["viewpoint"]),
    )


def _rehearsal(parts: ServerParts) -> Rehearsal:
    """Return a client's work on samples of the attacker's own."""
    dataset, task = parts.dataset, task_of(parts.dataset)
    data = LocalData(
        parts.population, dataset.mean, dataset.std, parts.config["seed"], SERVER, task.predict, task.ask
    )
    return Rehearsal(parts.trainer, parts.defense, data)


def _rehearse(parts: ServerParts) -> Rehearse | None:
    """Return a client's work as an attacker can run it, if the defense changes training itself.

    Else its gradient and `Attacker.defend` say the same, and are computed for many images at once.
    """
    defense = parts.defense
    if defense.rules == Rules() or defense.scheme is not None or defense.transform.located is not None:
        return None
    rehearsal, seed = _rehearsal(parts), parts.config["seed"]

    def rehearse(model: nn.Module, order: Order, pixels: Tensor, labels: Tensor) -> Update:
        levels = (255 * pixels).round().clamp(0, 255).to(torch.uint8).cpu()
        samples = Samples(levels, labels.cpu())
        return rehearsal.update_of(copy.deepcopy(model), samples, order, defended=True, seed=seed)

    return rehearse


def _infer_properties(parts: ServerParts, sightings: list[Sighting], results: Results) -> None:
    if parts.attacker is None:
        return
    dataset, settings = parts.dataset, parts.attacker.settings
    infer_properties(
        sightings,
        parts.attacker,
        parts.model,
        parts.public,
        results,
        rehearsal=_rehearsal(parts),
        trait=trait_of(settings["property"], settings["holds"], dataset.num_classes, dataset.feature_names),
    )


def _complete(parts: ServerParts, folder: Path) -> Path:
    """Write the pages of a run that was killed after its result was there, and remove its checkpoint."""
    remove_drafts(folder)
    report = _show(parts, folder)
    remove_checkpoint(folder)
    return report


def _show(parts: ServerParts, folder: Path) -> Path:
    """Write the pictures and the report of a run, and return the report's path."""
    _show_partition(parts, folder / "partition.png")
    report = write_report(folder)
    logger.info("report: %s", report)
    return report


@contextmanager
def _never_in_the_way() -> Iterator[None]:
    """Log an error of the pages of a run that has failed: they are no part of it."""
    try:
        yield
    except Exception as error:
        logger.error("the report of this run cannot be written: %s", error)


def watch(parts: ServerParts) -> PassiveServer:
    """Return the tap for the run's attack: passive, or one that manipulates models."""
    config, strategy = parts.config, parts.strategy
    # a property is one of the client's own batches
    asks_property = parts.attacker is not None and parts.attacker.infers == PROPERTY
    audit: dict[str, Any] = {
        "rounds": config["attack"]["rounds"],
        "clients": config["attack"]["clients"],
        "model": lambda: (strategy.weights, strategy.buffers),
        "read": strategy.see,
        "batch_size": None if asks_property else config["audit"]["batch_size"],
        "contrast": config["audit"]["contrast"],
        "masked": strategy.masked,
        "public": parts.public,
        "candidates": 0 if parts.game is None else parts.game.candidates,
    }
    if parts.game is not None and config["attack"]["viewpoint"] == "final":
        return PassiveServer(**audit, blind=True)
    if config["attack"].get("viewpoint") == "participant":
        by, clients = config["attack"]["by"], config["clients"]
        return Participant(by=by, clients_in_all=clients, undo=strategy.undo_step, **audit)
    if parts.attacker is not None and config["attack"].get("active"):
        ascend = _ascend(parts.attacker, parts.public)
        ascending = AscendingServer(spec=parts.spec, template=parts.model, ascend=ascend, **audit)
        strategy.exchange.gate.withheld = ascending.withholds
        return ascending
    manipulate = None if parts.attacker is None else parts.attacker.manipulate
    if manipulate is None:
        return PassiveServer(**audit)
    active = ActiveServer(spec=parts.spec, template=parts.model, manipulate=manipulate, **audit)
    strategy.exchange.gate.withheld = active.withholds
    return active


def _ascend(attacker: Attacker, public: Public) -> Ascend:
    """Return the attack's change of a model against candidates."""
    attack: Any = attacker.forms[max(attacker.forms)]
    return lambda model, candidates: cast(
        Manipulated, attack.manipulate(model, candidates, public.mean, public.std)
    )


def lying(grid: Grid, parts: ServerParts) -> Grid:
    """Return the grid with the lying clients of the config, if any."""
    config, strategy = parts.config, parts.strategy
    count = round(config["liars"] * config["clients"])
    if not count:
        return grid
    lies: dict[str, Lie] = {"flip": flip, "scale": scale}
    lie = lies.get(config["lie"])
    if lie is None:
        device, data = next(parts.model.parameters()).device, parts.dataset
        marked = with_trigger(pixels(data.test.inputs[:_MARKED], device))
        change = strategy.lr(1) if strategy.sends_changes else 0.0
        inputs = normalise(marked, data.mean, data.std)
        lie = backdoor(parts.model, lambda: strategy.weights, inputs, change=change)
    return TappedGrid(grid, Liars(frozenset(range(count)), lie, strategy.read))


def _train(
    grid: Grid, parts: ServerParts, results: Results, auditor: PassiveServer, lasting: LastingRun
) -> list[Sighting]:
    config, strategy = parts.config, parts.strategy
    strategy.on_sum = auditor.remember_sum
    with track("rounds", config["rounds"]) as advance:
        round_end = _RoundEnd(parts, results, advance, lasting)
        try:
            strategy.start(
                grid=TappedGrid(lying(grid, parts), auditor),
                # copies: evaluation writes into the model, and held tensors must not change
                initial_arrays=hold(
                    {name: t.clone() for name, t in parts.model.state_dict().items()}
                    | strategy.weights
                    | strategy.buffers
                ),
                num_rounds=config["rounds"] - strategy.done,
                timeout=strategy.exchange.deadline.seconds,
                evaluate_fn=round_end,
            )
        except BudgetSpent as spent:
            if not results.run.rounds:
                raise ValueError(
                    f"dp: {spent}: more noise, fewer rounds or a larger budget are needed"
                ) from None
            check_used(type(strategy).__name__, strategy.training_rounds)
            round_end.stop(str(spent))
    results.run.notes += _own_data_notes(strategy)
    results.run.notes += auditor.notes + privacy_notes(strategy, auditor.sightings)
    if moved := auditor.moved():
        results.run.notes.append(moved)
    return auditor.sightings


def _own_data_notes(strategy: FedSGD) -> list[str]:
    own = sorted(strategy.roster.own_data)
    if not own:
        return []
    return [
        f"clients with samples of their own: {', '.join(map(str, own))}; the server does not know how many "
        "of which class they have, the partition does not deal to them, and its picture leaves them out"
    ]


def _show_partition(parts: ServerParts, path: Path) -> None:
    """Draw the clients' samples by class, as far as the server dealt them."""
    own = sorted(parts.strategy.roster.own_data & set(range(len(parts.histogram))))
    if len(own) == len(parts.histogram):
        return
    histogram = parts.histogram.clone()
    histogram[own] = 0
    plot_partition(histogram, parts.dataset.group_names, path, what=parts.dataset.group_kind)


@dataclass
class _RoundEnd:
    """Callback of Flower after every round: evaluate, note the row, move the bar."""

    parts: ServerParts
    results: Results
    advance: Callable[[int, str], None]
    lasting: LastingRun

    def __post_init__(self) -> None:
        self._start = time.perf_counter()
        self._accuracy: float | None = None

    def __call__(self, server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if server_round == 0:
            if not self.parts.strategy.done:
                self.lasting.round_ended(0)
            return None
        self.parts.strategy.exchange.refuse_failure()
        server_round += self.parts.strategy.done
        seconds = time.perf_counter() - self._start
        config = self.parts.config
        tested = validated = None
        if server_round % config["evaluate_every"] == 0 or server_round == config["rounds"]:
            tested, validated = self._evaluate(arrays)
            self._accuracy = tested.accuracy
            self.parts.strategy.measure_bounds()
            logger.info("round %d: %s", server_round, _in_words(tested))
        record = self.parts.strategy.records[-1]
        self.results.add_round(record, tested=tested, validated=validated, seconds=seconds)
        shown = [] if self._accuracy is None else [f"accuracy {self._accuracy:.1%}"]
        if record.epsilon is not None:
            of_record = "" if record.epsilon_record is None else f", record {record.epsilon_record:.3g}"
            shown.append(f"ε {record.epsilon:.2f}, server {record.epsilon_server:.3g}{of_record}")
        self.advance(server_round, ", ".join(shown))
        self.lasting.round_ended(server_round)
        self._start = time.perf_counter()
        return None if tested is None else MetricRecord({"accuracy": tested.accuracy})

    def stop(self, reason: str) -> None:
        """End before the last round: evaluate the current model, and note the reason."""
        logger.info("%s", reason)
        self.results.run.notes.append(reason)
        strategy = self.parts.strategy
        tested, validated = self._evaluate(strategy.whole_model())
        self.results.score_last_round(tested, validated)

    def _evaluate(self, arrays: ArrayRecord) -> tuple[Evaluation, Evaluation | None]:
        """Return the model's scores on the test samples, and on those for validation."""
        model, dataset, validation = self.parts.model, self.parts.dataset, self.parts.validation
        model.load_state_dict(release(arrays))
        batch_norm.set_evaluation(model, self.parts.config["bn"])
        evaluate = task_of(dataset).evaluate
        return evaluate(model, dataset.test), None if validation is None else evaluate(model, validation)


def _in_words(tested: Evaluation) -> str:
    known = {name: score for name, score in asdict(tested).items() if score is not None}
    return ", ".join(f"{name.replace('_', ' ')} {score:.4f}" for name, score in known.items())


def _save_model(strategy: FedSGD, path: Path) -> None:
    tensors = release(strategy.whole_model())
    # copies: the format refuses two names of one tensor
    save_file({name: t.clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}, path)
    sync(path)  # the checkpoint goes once the result is there


def _how_to_go_on(folder: Path) -> str:
    if has_checkpoint(folder):
        return f"saved in {folder}; continue with: fl-app {shlex.quote(f'resume={folder}')}"
    return f"{folder} has no finished round that is saved; start again with the same command"


def _test_samples(parts: ServerParts) -> int | None:
    """Return the number of test samples if each has one label; of tokens and words no count is known."""
    labels = parts.dataset.test.labels
    return len(labels) if labels.ndim == 1 else None


def _sizes(parts: ServerParts) -> dict[str, int]:
    return {
        "parameters": sum(p.numel() for p in parts.model.parameters()),
        "buffers": sum(b.numel() for b in parts.model.buffers()),
    }


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    loggers = [logging.getLogger(name) for name in ("fl_app", "attacks")]
    for each in loggers:
        each.addHandler(handler)
        each.setLevel(min(each.level or logging.INFO, logging.INFO))
    try:
        yield
    finally:
        for each in loggers:
            each.removeHandler(handler)
        with suppress(OSError):  # of a full disk; it must not take the place of the run's own error
            handler.close()
