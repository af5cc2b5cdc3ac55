"""The composition root: config in, built objects out. Nothing below this sees a config."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import torch
from hydra.errors import InstantiationException
from hydra.utils import get_method, instantiate
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from fl_app.adversary.attacker import Attacker
from fl_app.adversary.passive import Chosen, Public
from fl_app.client.client import ClientParts
from fl_app.client.inspection import Inspection
from fl_app.client.own_attack import OwnAttack
from fl_app.client.secure import SecureSettings
from fl_app.config.bounds import check_shape
from fl_app.config.compose import ConfigError, compose
from fl_app.config.describe import describe
from fl_app.config.fitting import check_crowd, check_fit, check_samples
from fl_app.config.trust import NOBODY, Trust, compose_sent
from fl_app.data import (
    Dataset,
    DataUnavailable,
    Facts,
    Game,
    Samples,
    Vocabulary,
    facts_of,
    game_of,
    label_histogram,
    own_samples,
    pixels,
    split_validation,
)
from fl_app.data.balance import balance
from fl_app.data.partition import by_owner
from fl_app.data.pool import from_pool
from fl_app.data.traits import trait_of
from fl_app.defenses import Defense, protect, with_records
from fl_app.models import MOST_ENTRIES, ModelSpec, build_model, check_size
from fl_app.models.stored import load_weights
from fl_app.seeding import SERVER, generator_for, seed_for, seeded
from fl_app.strategies import FedSGD, SecureAggregation
from fl_app.strategies.arguments import ConfiguredRun
from fl_app.strategies.robust import Rule, rule_of
from fl_app.text import WordPiece
from fl_app.training import LocalData, PublicRound, Trainer, parameters, task_of
from fl_app.types import Known, Manipulated, RoundContext, Trace, Update

OF_EVERY_ATTACK = ("name", "rounds", "clients", "viewpoint", "by", "grant", "known_images")
"""Keys of the attack group that the run reads itself; all others are arguments of the attack."""
KNOWN_IMAGES = ("none", "test", "held_out")
_NO_ATTACK = "attack: choose one; attack=none attacks nothing"


_JOB = ("model", "training", "defense", "data", "partition", "batch_size", "balance", "bn", "dtype", "seed")
"""Settings that decide what a client's training order comes to."""
_PLACES = ("root", "download")
_SHARED_NOISE = (
    *("_target_", "epsilon", "delta", "noise_multiplier", "clip", "rounds", "rate", "clients"),
    *("sampling", "accountant", "records"),
)
"""Settings of ``dp`` on which the amount of every client's noise depends."""
_MOVED_MOST = 0.005
_OWN_STEPS = 300
"""Steps of the search by which a node attacks its own update, at most."""
_OTHERS = 99
"""Test images beside the right one, among which it is to be picked."""


@dataclass(frozen=True)
class ServerParts:
    """Parts of a server."""

    config: dict[str, Any]
    dataset: Dataset
    validation: Samples | None
    """Those that choose the best round; they are not among the test samples."""
    histogram: Tensor
    """Number of samples by client (rows) and class or speaker (columns)."""
    model: nn.Module
    spec: ModelSpec
    strategy: FedSGD
    public: Public
    attacker: Attacker | None
    population: Samples
    """Public samples that the attacker has."""
    game: Game | None
    """Rule of a membership audit."""
    trainer: Trainer
    defense: Defense


@dataclass(frozen=True)
class OwnData:
    """Samples of a client's own, instead of a part of what all clients share."""

    root: str
    facts: str
    """The server's facts on the task."""


@lru_cache(maxsize=2)
def client_parts(overrides: str, trust: Trust = NOBODY, own: OwnData | None = None) -> ClientParts:
    """Build the parts that the clients of this process share; ``own`` names a client's own data."""
    # such a client never reads the server's folder of samples
    cfg = compose_sent(overrides, trust, places=False, unread=() if own is None else ("data.root",))
    _prepare_process(cfg, most=None if trust.whole else os.cpu_count())
    defense = _defense(cfg)
    if own is None:
        dataset, _ = _task(cfg, defense)
        spec, data_of = _spec(cfg, dataset, defense), _local_data(cfg, dataset)
    else:
        facts = Facts.from_json(own.facts)
        if not trust.whole:
            check_shape(facts.in_shape)
        spec, data_of = _spec(cfg, facts, defense), _own_data(cfg, Path(own.root), facts)
    if not trust.whole:
        _check_size(spec)
    privacy = _build(cfg, "dp")
    return ClientParts(
        model=spec,
        trainer=_build(cfg, "training"),
        defense=defense,
        data_of=data_of,
        device=_device(cfg.device),
        dtype=getattr(torch, cfg.dtype),
        seed=cfg.seed,
        start=lru_cache(maxsize=1)(lambda: _weights(_model(cfg, spec, defense))),
        settings=_hash_job_settings(cfg),
        facts=facts_of(dataset).to_json() if own is None else own.facts,
        privacy=privacy,
        plan=describe(cfg, spec, defense, privacy),
        secure=_secure_settings(cfg),
        training=cfg.client.mode == "train",
        bn=cfg.bn,
        norms=cfg.client.norms,
        pin_model=cfg.client.pin_model,
        own_attack=_own_attack(cfg, spec),
        game=_game(cfg),
        inspection=_inspection(cfg, spec),
    )


def server_parts(overrides: str, trust: Trust = NOBODY) -> ServerParts:
    """Build the parts of a server, anew each time: a strategy has a history."""
    # the server reads and writes files of the user who starts the run
    cfg = compose_sent(overrides, trust, places=True)
    _prepare_process(cfg)
    # here too: parts that clients cannot build are an error of the run, not of every client
    defense, trainer = _defense(cfg), _build(cfg, "training")
    dataset, public = _task(cfg, defense)
    if dataset.vocabulary is not None:
        _check_tokens(cfg, defense, "text" if isinstance(dataset.vocabulary, WordPiece) else "transcripts")
    spec = _spec(cfg, dataset, defense)
    if not trust.whole:
        _check_size(spec)
    model = _model(cfg, spec, defense)
    schedule = _build(cfg, "schedule")
    shared = defense.server or {}
    for name in shared.keys() & cfg.strategy.keys():
        raise ConfigError(f"strategy.{name}: is a setting of the defense; set defense.{name}")
    strategy = _build(
        cfg,
        "strategy",
        model,
        schedule,
        clients=cfg.clients,
        fraction_train=cfg.fraction,
        fraction_evaluate=cfg.fraction_evaluate,
        exchange_buffers=cfg.bn == "sync",
        timeout=cfg.timeout,
        wait=cfg.wait,
        seed=cfg.seed,
        aggregate=_rule(cfg),
        run=ConfiguredRun(
            spec, facts_of(dataset).to_json(), _hash_job_settings(cfg), release=defense.release
        ),
        **shared,
        **_vector_parts(cfg, defense, model, public, schedule(1)),
    )
    if cfg.attack.get("viewpoint") == "participant" and not strategy.reversible:
        raise ConfigError(
            "attack.viewpoint: a participant tells the mean from two models only if the server keeps nothing "
            f"between rounds, got {cfg.strategy._target_}"
        )
    known = _known(cfg, dataset, public)
    config = cast(dict[str, Any], OmegaConf.to_container(cfg))
    config["attack"]["rounds"] = attacked_rounds(config["attack"]["rounds"], cfg.rounds)
    population = public.train if public is not None and _knows_held_out(cfg) else dataset.test
    _check_question(cfg, defense, dataset)
    manipulation = partial(_manipulation, cfg, model, dataset, known, strategy.sends_changes, defense.traces)
    dataset, validation = _split(cfg, dataset)
    histogram = label_histogram(
        dataset.train.groups, _partition(cfg, dataset, cfg.clients), len(dataset.group_names)
    )
    strategy.exchange.gate.dealt = dict(enumerate(histogram.sum(1).tolist()))
    return ServerParts(
        config=config,
        dataset=dataset,
        validation=validation,
        histogram=histogram,
        model=model,
        spec=spec,
        strategy=strategy,
        public=Public(
            num_classes=dataset.num_classes,
            input_shape=dataset.in_shape,
            mean=dataset.mean,
            std=dataset.std,
            defense=defense.traces,
            training=cfg.client.mode == "train",
            local_batch_size=cfg.training.get("batch_size"),
            vocabulary=dataset.vocabulary,
            features=tuple(dataset.feature_names or ()),
        ),
        attacker=_attacker(
            cfg, manipulation, dataset.vocabulary, known, _defend(cfg, defense), _others(population)
        ),
        population=population,
        game=_game(cfg),
        trainer=trainer,
        defense=defense,
    )


def _check_question(cfg: DictConfig, defense: Defense, dataset: Dataset) -> None:
    """Refuse a property that samples do not have, now and not after training."""
    if not cfg.attack.get("property"):
        return
    if defense.scheme is not None:
        raise ConfigError(
            f"attack.property: defense={cfg.choices.defense} sends vectors, of which no examples can be made"
        )
    try:
        trait_of(cfg.attack.property, cfg.attack.holds, dataset.num_classes, dataset.feature_names)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _game(cfg: DictConfig) -> Game | None:
    """Return the rule by which audited clients deal candidates, the same on the server and on clients."""
    attack = cfg.attack
    if "_target_" not in attack or not attack.get("candidates"):
        return None
    clients = attack.clients if isinstance(attack.clients, str) else list(attack.clients)
    if attack.viewpoint == "participant":
        clients = [client for client in range(cfg.clients) if client != attack.by]
    return game_of(attack.candidates, clients, cfg.clients, cfg.seed)


def _knows_held_out(cfg: DictConfig) -> bool:
    return bool(cfg.attack.get("known_images") == "held_out")


def _rule(cfg: DictConfig) -> Rule | None:
    try:
        rule = rule_of(cfg.aggregate, cfg.withstand)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if (rule is not None or cfg.liars) and cfg.secagg.enabled:
        raise ConfigError(
            f"aggregate={cfg.aggregate} liars={cfg.liars}: under secagg=on single updates are hidden; "
            "expected aggregate=mean liars=0"
        )
    if rule is not None and cfg.choices.dp != "none":
        raise ConfigError(
            f"aggregate={cfg.aggregate}: the noise of dp={cfg.choices.dp} is measured for a sum; "
            "expected aggregate=mean"
        )
    return rule


def attack_parts(
    overrides: str,
    spec: ModelSpec,
    vocabulary: Vocabulary | WordPiece | None = None,
    in_shape: tuple[int, ...] = (),
) -> tuple[Attacker, nn.Module]:
    """Build the attacker and the trained model for an attack on a finished run.

    Images that the attacker has come from the overrides' own ``data`` and must have the shape ``in_shape``.
    """
    cfg = compose(overrides)
    _prepare_process(cfg)
    known = None
    if cfg.attack.get("known_images", "none") != "none":
        known = _known(cfg, *_task(cfg, _defense(cfg)))
    if known is not None and tuple(known.images.shape[1:]) != in_shape:
        raise ConfigError(
            f"attack.known_images: expected images of shape {in_shape}, got {tuple(known.images.shape[1:])} "
            f"from data={cfg.choices.data}: choose the run's data"
        )
    attacker = _attacker(cfg, vocabulary=vocabulary, known=known)
    if attacker is None:
        raise ConfigError(_NO_ATTACK)
    try:
        # a run's folder may come from elsewhere: of other models only the one that is asked for is built
        model = build_model(spec, allowed=[cfg.model._target_], most=MOST_ENTRIES)
    except ValueError as error:
        raise ConfigError(f"model: {error}") from error
    return attacker, model.to(device=_device(cfg.device), dtype=getattr(torch, cfg.dtype))


def lone_attack(
    overrides: str, *, adaptive: bool, defense: Mapping[str, Any] | None = None
) -> tuple[Callable[..., Any], tuple[Trace, ...]]:
    """Build an attack on an update that no run has seen, and return it with the traces of the defense.

    The defense is that of the overrides, or of the config ``defense``.

    ``adaptive``: in the form that knows the defense, where the attack has one.
    """
    cfg = compose(overrides)
    _prepare_process(cfg)
    if "_target_" not in cfg.attack:
        raise ConfigError(_NO_ATTACK)
    node = cfg if defense is None else OmegaConf.create({"defense": dict(defense)})
    return _attack(cfg, adaptive), _protected(node).traces


def attacked_rounds(chosen: Any, rounds: int) -> Chosen:
    """Return the numbers of the chosen rounds, in order, or "all"; ``last`` is the run's final round."""
    if chosen == "all":
        return "all"
    listed = [chosen] if chosen == "last" else chosen
    return sorted({rounds if number == "last" else number for number in listed})


def attack_node(cfg: DictConfig) -> DictConfig:
    """Return the factory of the attack with its arguments: the group without the keys of every attack."""
    node = cast(dict[str, Any], OmegaConf.to_container(cfg.attack, resolve=True))
    return OmegaConf.create({key: value for key, value in node.items() if key not in OF_EVERY_ATTACK})


def _attacker(
    cfg: DictConfig,
    manipulation: Callable[[Any], Callable[[nn.Module], Manipulated] | None] | None = None,
    vocabulary: Vocabulary | WordPiece | None = None,
    known: Known | None = None,
    defend: Callable[[Update], Update] | None = None,
    others: Tensor | None = None,
) -> Attacker | None:
    """Build the attack in the forms that are asked for; one without a choice has its own form alone.

    ``manipulation`` turns an active attack into its change of a model; without it, the attack can
    only read a run's observations. Of two forms, the adaptive one plants and both read.
    """
    if "_target_" not in cfg.attack:
        return None
    wanted = cfg.attack.get("adaptive")
    spell = None if vocabulary is None else vocabulary.decode
    forms = {form: _attack(cfg, form) for form in ((False, True) if wanted == "both" else (bool(wanted),))}
    return Attacker(
        name=cfg.attack.name,
        forms=forms,
        grant_labels=cfg.attack.grant.labels,
        grant_length=cfg.attack.grant.get("length", False),
        # by name: this package never imports the attacks
        score=_score(cfg, forms[max(forms)], spell, others),
        score_trace=partial(get_method("attacks.score.score_trace"), lpips_net=cfg.audit.lpips),
        infers=getattr(forms[max(forms)], "infers", ""),
        candidates=cfg.attack.get("candidates") or 0,
        shadows=cfg.attack.get("shadows") or 0,
        mse_below=cfg.audit.mse_below,
        aligned=get_method("attacks.score.aligned"),
        spell=spell,
        pieces=() if vocabulary is None else vocabulary.pieces,
        settings=_stated(cfg),
        known=known,
        defend=defend,
        manipulate=None if manipulation is None else manipulation(forms[max(forms)]),
    )


def _others(population: Samples) -> Tensor | None:
    """Return the images among which a rebuilt one must point to its own; None if samples are no images."""
    if population.inputs.dtype != torch.uint8:
        return None
    count = min(len(population), _OTHERS)
    return pixels(population.inputs[torch.arange(count, device="cpu") * len(population) // count], "cpu")


def _score(cfg: DictConfig, attack: Any, spell: Any, others: Tensor | None) -> Callable[..., Any]:
    if hasattr(attack, "infers"):
        # a property is scored over all updates of a run
        return get_method("attacks.score.score_members")
    return partial(get_method("attacks.score.score"), lpips_net=cfg.audit.lpips, spell=spell, others=others)


def _stated(cfg: DictConfig) -> dict[str, Any]:
    """Return the settings of the attack that its results state: all but the updates that it is aimed at."""
    settings = cast(dict[str, Any], OmegaConf.to_container(cfg.attack, resolve=True))
    return {key: value for key, value in settings.items() if key not in ("name", "rounds", "clients")}


def _manipulation(
    cfg: DictConfig,
    model: nn.Module,
    dataset: Dataset,
    known: Known | None,
    deltas: bool,
    traces: tuple[Trace, ...],
    attack: Any,
) -> Callable[[nn.Module], Manipulated] | None:
    """Return the attack's change of a model before a client gets it; None for a passive attack."""
    if not hasattr(attack, "manipulate") or cfg.attack.get("candidates"):
        return None  # what is asked of candidates waits until they are known
    if known is None:  # a server has images to test with, whatever the attack's own settings are
        known = _images_of(dataset.test)
    manipulate = partial(
        attack.manipulate,
        in_shape=dataset.in_shape,
        public=known.images,
        mean=dataset.mean,
        std=dataset.std,
        deltas=deltas,
        defense=traces,
    )
    try:
        manipulate(model)  # now, not in the attacked round
    except ValueError as error:
        raise ConfigError(f"attack: {error}") from error
    return manipulate


def _known(cfg: DictConfig, dataset: Dataset, public: Dataset | None) -> Known | None:
    """Return the images that the attacker has, none of any client; None if it has none."""
    chosen = cfg.attack.get("known_images", "none")
    if chosen not in KNOWN_IMAGES:
        raise ConfigError(f"attack.known_images: expected one of {', '.join(KNOWN_IMAGES)}, got {chosen}")
    if chosen == "none":
        return None
    return _images_of(public.train if chosen == "held_out" and public is not None else dataset.test)


def _images_of(samples: Samples) -> Known:
    return Known(pixels(samples.inputs, torch.device("cpu"), torch.float32), samples.labels)


def _defend(cfg: DictConfig, defense: Defense) -> Callable[[Update], Update] | None:
    """Return the defense of an update in a first round, if nothing but the update decides it."""
    transform = defense.transform
    if defense.scheme is not None or transform.located is not None:
        return None

    def defend(update: Update) -> Update:
        context = RoundContext(1, SERVER, generator_for(cfg.seed, 0, SERVER, "rehearsal"))
        return transform.apply(update, transform.init(update), context)[0]

    return defend


def _inspection(cfg: DictConfig, spec: ModelSpec) -> Inspection | None:
    if cfg.client.inspect == "off":
        return None
    return Inspection(
        look=get_method("attacks.active.inspect_model"),
        expected=build_model(spec, allowed=[spec.target]),
        refuse=cfg.client.inspect == "refuse",
    )


def _own_attack(cfg: DictConfig, spec: ModelSpec) -> OwnAttack:
    """Return the attacks that a node may try on its own updates, by name: cheapest first."""

    def search(seconds: float) -> Any:
        return get_method("attacks.optimisation.inverting_gradients")(
            steps=_OWN_STEPS, adaptive=True, time_budget=seconds
        )

    return OwnAttack(
        attacks={
            "bias_labels": lambda seconds: get_method("attacks.labels.bias_labels")(),
            "first_linear": lambda seconds: get_method("attacks.analytic.first_linear")(),
            "ig": search,
        },
        score=get_method("attacks.score.score"),
        num_classes=int(cast(int, spec.settings["num_classes"])),
        training=cfg.client.mode == "train",
    )


def _attack(cfg: DictConfig, adaptive: bool) -> Any:
    node = attack_node(cfg)
    if "adaptive" in node:
        node.adaptive = adaptive
    return _build(OmegaConf.create({"attack": node}), "attack")


def _prepare_process(cfg: DictConfig, most: int | None = None) -> None:
    """Apply process-wide settings; ``most`` limits the threads."""
    if cfg.threads is not None:
        torch.set_num_threads(min(cfg.threads, most or cfg.threads))


def _build(cfg: DictConfig, key: str, *args: Any, **given: Any) -> Any:
    """Call the factory that the node ``key`` names; its refusal becomes a ConfigError."""
    try:
        # partial, then called: Hydra would take objects among the arguments for configs
        factory = instantiate(OmegaConf.select(cfg, key), _convert_="all", _partial_=True)
        return factory(*args, **given)
    except InstantiationException as error:
        raise ConfigError(f"{key}: {error.__cause__ or error}") from error
    except (ValueError, TypeError, OSError) as error:
        raise ConfigError(f"{key}: {error}") from error


def share_moved_most(config: Mapping[str, Any]) -> float:
    """Return the share of the weights whose movement a result holds: as many as the defense sends."""
    share = config["audit"]["moved_most"]
    return cast(float, config["defense"].get("share", _MOVED_MOST) if share is None else share)


def baseline_of(cfg: DictConfig) -> str:
    """Return the choice of ``defense`` that the configured one is compared with."""
    return _defense(cfg).baseline


def _defense(cfg: DictConfig) -> Defense:
    defense = _protected(cfg)
    check_fit(cfg, defense)
    privacy = _build(cfg, "dp")
    if privacy is None:
        return defense
    try:
        return with_records(defense, privacy.records)
    except ValueError as error:
        raise ConfigError(f"dp.records: {error}") from error


def _protected(cfg: DictConfig) -> Defense:
    try:
        return protect(defense=_build(cfg, "defense"))
    except TypeError as error:
        raise ConfigError(f"defense: {error}") from error


def _vector_parts(
    cfg: DictConfig, defense: Defense, model: nn.Module, public: Dataset | None, lr: float
) -> dict[str, Any]:
    """Return the additional arguments of a strategy whose clients send vectors."""
    if defense.scheme is None or public is None:
        return {}
    privacy, aggregation = _build(cfg, "dp"), None
    if cfg.secagg.enabled:
        settings = {key: value for key, value in cfg.secagg.items() if key != "enabled"}
        try:
            aggregation = SecureAggregation(**settings)
        except ValueError as error:
            raise ConfigError(f"secagg: {error}") from error
        check_crowd(cfg)
    for group, part in (("dp", privacy), ("secagg", aggregation)):
        if part is not None and list(model.buffers()):
            raise ConfigError(
                f"{group}: a model with buffers sends more than its vector: take one with GroupNorm"
            )
    task = task_of(public)
    data = LocalData(public.train, public.mean, public.std, cfg.seed, SERVER, task.predict, task.ask)
    return {
        "privacy": privacy,
        "aggregation": aggregation,
        "public": PublicRound(_build(cfg, "training"), model, data, lr),
    }


def _hash_job_settings(cfg: DictConfig) -> str:
    """Hash the settings by which a client trains; without the place of a node's own data."""
    whole = cast(dict[str, Any], OmegaConf.to_container(cfg))
    settings = {key: whole[key] for key in _JOB}
    settings["data"] = {key: value for key, value in settings["data"].items() if key not in _PLACES}
    settings["mode"] = whole["client"]["mode"]
    # under masks each client counts on the noise of the others, which the server must not know
    settings["noise"] = {key: whole["dp"].get(key) for key in _SHARED_NOISE}
    settings["replayable"] = whole["dp"].get("secure") is False
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def secure_settings(overrides: str, trust: Trust = NOBODY) -> SecureSettings | None:
    """Return a client's demands on secure rounds; None without secure aggregation."""
    return _secure_settings(compose_sent(overrides, trust, places=False))


def _secure_settings(cfg: DictConfig) -> SecureSettings | None:
    if not cfg.secagg.enabled:
        return None
    folder = cfg.secagg.identities
    return SecureSettings(cfg.secagg.min_clients, None if folder is None else Path(folder))


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in parameters(model).items()}


def _model(cfg: DictConfig, spec: ModelSpec, defense: Defense) -> nn.Module:
    """Build the initial model, if it can be defended as asked."""
    try:
        with seeded(seed_for(cfg.seed, 0, SERVER, "model"), torch.device("cpu")):
            model = build_model(spec, allowed=[spec.target])
    except ValueError as error:
        raise ConfigError(f"model: {error}") from error
    if cfg.init is not None:
        try:
            load_weights(model, Path(cfg.init))
        except ValueError as error:
            raise ConfigError(f"init: {error}") from error
    try:
        if defense.check is not None:
            defense.check(model)
    except ValueError as error:
        raise ConfigError(f"defense: {error}") from error
    return model.to(device=_device(cfg.device), dtype=getattr(torch, cfg.dtype))


def _spec(cfg: DictConfig, dataset: Dataset | Facts, defense: Defense) -> ModelSpec:
    settings = cast(dict[str, Any], OmegaConf.to_container(cfg.model))
    target = settings.pop("_target_")
    shape = {"num_classes": dataset.num_classes, "in_shape": list(dataset.in_shape)}
    spec = ModelSpec(target, settings | shape)
    return spec if defense.model is None else defense.model(spec)


def _check_size(spec: ModelSpec) -> None:
    try:
        check_size(spec)
    except ValueError as error:
        raise ConfigError(f"model: {error}") from error


def _task(cfg: DictConfig, defense: Defense) -> tuple[Dataset, Dataset | None]:
    """Return the clients' data, and public data if the defense or the attacker learns from some."""
    dataset = _dataset(cfg)
    if cfg.audit.pool is not None:
        dataset = _pooled(cfg, dataset)
    if defense.scheme is None and not _knows_held_out(cfg):
        return dataset, None
    try:
        public, rest = _build(cfg, "public")(dataset)
    except ValueError as error:
        raise ConfigError(f"public: {error}") from error
    return rest, public


def _pooled(cfg: DictConfig, dataset: Dataset) -> Dataset:
    try:
        return from_pool(dataset, Path(cfg.audit.pool))
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _check_tokens(cfg: DictConfig, defense: Defense, what: str) -> None:
    """Refuse defenses and attacks that need images, or one label per sample."""
    reads = what if "_target_" not in cfg.attack else getattr(_attack(cfg, False), "reads", "images")
    if reads != what:
        raise ConfigError(
            f"attack: must be none or one that reads {what}, got {cfg.attack.name}, which reads {reads}"
        )
    check_samples(cfg, defense, what)
    if cfg.client.inspect != "off":
        raise ConfigError(f"client.inspect: models of images are inspected; it must be off on {what}")


def _dataset(cfg: DictConfig) -> Dataset:
    return _load_dataset(OmegaConf.to_yaml(cfg.data))


@lru_cache(maxsize=2)
def _load_dataset(data: str) -> Dataset:
    """Load a data set once a process."""
    return cast(Dataset, _build(OmegaConf.create({"data": OmegaConf.create(data)}), "data"))


def _split(cfg: DictConfig, dataset: Dataset) -> tuple[Dataset, Samples | None]:
    try:
        return split_validation(dataset, cfg.validation)
    except ValueError as error:
        raise ConfigError(f"validation: {error}") from error


def _partition(cfg: DictConfig, dataset: Dataset, clients: int) -> list[Tensor]:
    """Return the indices of the samples that each client trains on."""
    labels, generator = dataset.train.groups, generator_for(cfg.seed, 0, SERVER, "partition")
    owners = dataset.train.owners
    if owners is not None and cfg.choices.partition != "iid":
        raise ConfigError(
            f"partition={cfg.choices.partition}: {dataset.name} is dealt by its own partitioner; "
            "expected data.partitioner instead"
        )
    try:
        deal = _build(cfg, "partition") if owners is None else partial(by_owner, owners)
        parts = cast(list[Tensor], deal(labels, clients, generator))
    except ValueError as error:
        raise ConfigError(f"partition: {error}") from error
    if not cfg.balance:
        return parts
    classes = labels if dataset.train.labels.ndim > 1 else dataset.train.labels
    return [
        part[balance(classes[part], generator_for(cfg.seed, 0, client, "balance"))]
        for client, part in enumerate(parts)
    ]


def _local_data(cfg: DictConfig, dataset: Dataset) -> Callable[[int, int], LocalData]:
    task = task_of(dataset)

    @lru_cache(maxsize=1)
    def parts(clients: int) -> list[Tensor]:
        return _partition(cfg, dataset, clients)

    @lru_cache(maxsize=256)
    def data_of(client: int, clients: int) -> LocalData:
        samples = dataset.train.take(parts(clients)[client])
        return LocalData(samples, dataset.mean, dataset.std, cfg.seed, client, task.predict, task.ask)

    return data_of


def _own_data(cfg: DictConfig, root: Path, facts: Facts) -> Callable[[int, int], LocalData]:
    settings = cast(dict[str, Any], OmegaConf.to_container(cfg.data))
    target, task = settings.pop("_target_"), task_of(facts)

    @lru_cache(maxsize=1)
    def data_of(client: int, clients: int) -> LocalData:
        try:
            samples = own_samples(target, root, facts, settings)
        except (ValueError, DataUnavailable) as error:
            raise ConfigError(f"client {client}: its data-root: {error}") from error
        if cfg.balance:
            drawn = balance(samples.groups, generator_for(cfg.seed, 0, client, "balance"))
            samples = samples.take(drawn)
        return LocalData(samples, facts.mean, facts.std, cfg.seed, client, task.predict, task.ask)

    return data_of


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device: expected auto, cpu or cuda[:N], got {name!r}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device: {name!r} was asked for, but torch sees no GPU")
    return device
