"""Overrides in, a checked config out, or an error that names the wrong key.

Every way to start a run (``fl-app``, ``flower-simulation``, ``flwr run``) passes one
string of Hydra overrides, which travels in Flower's run config under ``overrides``;
server and clients compose it from the same ``conf/``.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException, HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fl_app.adversary.lies import LIES
from fl_app.config.followed import find_set_apart
from fl_app.config.old_names import explain_old_key, find_old_key
from fl_app.config.true_names import TARGET, true_names

_PACKAGE = Path(__file__).resolve().parents[1]
# in a wheel conf/ is installed inside the package; in a checkout or a Flower app bundle it lies beside it
CONF_DIR = _PACKAGE / "conf" if (_PACKAGE / "conf").is_dir() else _PACKAGE.parent / "conf"
CONFIG_NAME = "config"
_GROUPS = (
    *("schedule", "strategy", "training", "model", "data", "partition", "defense"),
    *("dp", "secagg", "public", "attack", "engine"),
)
_LONGEST_KEY = 200
_RAISED_BY_HYDRA = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    AssertionError,
    RecursionError,
    OSError,
)
"""Errors beside its own that Hydra raises for some overrides, such as a group set to null."""
SEARCH_PATH = "hydra.searchpath"
"""Key of Hydra's list of folders with more choices; it travels with the overrides of a run."""
DEFAULT_STRATEGY = "fed_sgd"
DTYPES = ("float32", "float64")
BN_MODES = ("sync", "local", "frozen")
"""BatchNorm statistics: clients send theirs and the server averages; each keeps its own; never moved."""


class ConfigError(ValueError):
    """A configuration that cannot be used; the message says why."""


class UnknownName(ConfigError):
    """Overrides that name an unknown key or choice."""


@lru_cache(maxsize=256)
def compose(overrides: str = "") -> DictConfig:
    """Compose the config from a string of Hydra overrides; ``choices`` has the choices by name."""
    wanted = with_plus(split_overrides(overrides))
    try:
        composed = _compose(wanted)
        own_strategy = _brings_strategy(wanted, composed)
        _name_truly(wanted, composed)
        _check_spelling(wanted, composed)
        config = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UnknownName(_explain(wanted, error)) from error
    _check(cast(dict[str, Any], config), own_strategy=own_strategy)
    resolved = OmegaConf.create(config)
    if own_strategy:
        resolved.choices.strategy = resolved.strategy[TARGET]
    OmegaConf.set_readonly(resolved, True)
    return cast(DictConfig, resolved)


def swept_by_experiment(overrides: list[str]) -> list[str]:
    """Return the sweeps of the experiment among the overrides, as overrides with several values."""
    try:
        params = _compose_all(overrides).hydra.sweeper.params or {}
    except (HydraException, OmegaConfBaseException) as error:
        raise UnknownName(_explain(overrides, error)) from error
    return [f"{key}={values}" for key, values in params.items()]


def study_of(experiment: str, searched: Sequence[str] = ()) -> dict[str, Any] | None:
    """Return the ``study:`` of an experiment's file as it is written there; None if it has none.

    ``searched``: the override that names folders with more experiments.
    """
    wanted = [*searched, f"experiment={experiment}"]
    try:
        composed = _compose_all(wanted)
    except (HydraException, OmegaConfBaseException) as error:
        raise UnknownName(_explain(wanted, error)) from error
    if "study" not in composed:
        return None
    if composed.hydra.sweeper.params:
        raise ConfigError(f"{experiment}: a study sweeps in its parts; expected no hydra.sweeper.params")
    # not resolved: overrides in it may refer to a cell's config
    return cast(dict[str, Any], OmegaConf.to_container(composed.study))


def has_key(overrides: Sequence[str], key: str) -> bool:
    """Say whether ``key`` is a setting under the choices among the overrides."""
    return _wrong_key(key, _compose(_choosing(parse_overrides(overrides)))) is None


def split_overrides(overrides: str) -> list[str]:
    """Split a string of overrides as a shell would."""
    try:
        found = shlex.split(overrides)
    except ValueError as error:
        raise ConfigError(f"overrides: {error} in {overrides!r}") from error
    for override in found:
        if len(key := override.partition("=")[0]) > _LONGEST_KEY:
            raise ConfigError(
                f"{key[:40]}…: expected a key of at most {_LONGEST_KEY} characters, got {len(key)}"
            )
    return found


def join_overrides(overrides: Sequence[str]) -> str:
    """Join overrides so that `split_overrides` gives them back."""
    return shlex.join(overrides)


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Read overrides by Hydra's grammar."""
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except OverrideParseException as error:
        raise ConfigError(
            f"{error.override}: cannot be read; expected key=value, with quotes around other signs: key='a^b'"
        ) from error


def with_plus(overrides: Sequence[str]) -> list[str]:
    """Return the overrides with the ``+`` that new arguments of the user's own callables need.

    Only the callable knows its arguments, so a key that ``conf/`` does not have is one of them there, and a
    typo is the callable's to refuse. Elsewhere an unknown key stays an error.
    """
    parsed = parse_overrides(overrides)
    own = {o.key_or_group.partition(".")[0] for o in parsed if o.key_or_group.endswith(f".{TARGET}")}
    if not own:
        return list(overrides)
    try:
        base = _compose(_choosing(parsed))
    except (HydraException, OmegaConfBaseException):
        return list(overrides)

    def is_new(o: Override) -> bool:
        key = o.key_or_group
        changes = not (_is_choice(o) or o.is_add() or o.is_force_add() or o.is_delete())
        return changes and "." in key and key.partition(".")[0] in own and _wrong_key(key, base) is not None

    return [f"+{line}" if is_new(o) else line for o, line in zip(parsed, overrides, strict=True)]


def key_of(override: str) -> str:
    """Return the key or group that an override sets, adds or removes."""
    (parsed,) = OverridesParser.create().parse_overrides([override])
    return parsed.key_or_group


def choices_of(override: Override, searched: Sequence[Path] = ()) -> list[str] | None:
    """Return the choices of the override's group, or None if it chooses no group.

    ``searched``: folders with more choices than ``conf/`` has.
    """
    if not is_group(override) or override.is_delete():
        return None
    return group_choices(override.key_or_group, searched)


def group_choices(group: str, searched: Sequence[Path] = ()) -> list[str]:
    """Return the names of the files of a group."""
    return sorted({path.stem for folder in (CONF_DIR, *searched) for path in (folder / group).glob("*.yaml")})


def groups_with(choice: str) -> list[str]:
    """Return the groups that have a choice of this name."""
    return [group for group in (*_GROUPS, "experiment") if choice in group_choices(group)]


@lru_cache(maxsize=1)
def top_keys() -> list[str]:
    """Return the settings and groups of ``conf/`` that an override can begin with."""
    groups = (path.name for path in CONF_DIR.iterdir() if path.is_dir())
    settings = cast(DictConfig, OmegaConf.load(CONF_DIR / f"{CONFIG_NAME}.yaml"))
    return sorted({str(key) for key in settings} - {"defaults", "hydra"} | set(groups))


def quote(value: str | Path) -> str:
    """Return ``value`` as a Hydra value, whatever signs it holds."""
    # in Hydra's grammar a backslash is itself, except before a quote
    inner = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), str(value))
    return f"'{inner}'"


def compose_unresolved(overrides: list[str]) -> DictConfig:
    """Compose, and replace Hydra's own settings by the choices by name.

    References stay unresolved; overrides that cannot be composed are an `UnknownName`.
    """
    try:
        return _compose(overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise UnknownName(_explain(overrides, error)) from error


def _compose(overrides: list[str]) -> DictConfig:
    composed = _compose_all(overrides)
    named = composed.hydra.runtime.choices.items()
    choices = {group: name for group, name in named if "/" not in group and group != "experiment"}
    OmegaConf.set_struct(composed, False)
    OmegaConf.set_readonly(composed, False)
    del composed["hydra"]
    composed.pop("study", None)  # a study concerns all cells together; its wording makes no other run
    composed.choices = choices
    return composed


def _brings_strategy(overrides: list[str], composed: DictConfig) -> bool:
    """Say whether the defense replaces the chosen strategy."""
    parsed = parse_overrides(overrides)
    typed = any(o.key_or_group.startswith("strategy") and TARGET in str(o.input_line) for o in parsed)
    if typed or "strategy" not in composed:
        return False
    files = _files_of({"strategy": composed.choices.strategy}, _searched(parsed))
    chosen = cast(DictConfig, OmegaConf.load(next(file for _, file in files)))
    return bool(chosen.get("strategy", chosen).get(TARGET) != composed.strategy.get(TARGET))


def _files_of(choices: Mapping[str, Any], searched: Sequence[Path]) -> Iterator[tuple[Path, Path]]:
    """Go through the files of choices, each with the folder of its group's folder."""
    for group, name in choices.items():
        for folder in (CONF_DIR, *searched):
            if (file := folder / group / f"{name}.yaml").is_file():
                yield folder, file
                break


def _check_spelling(overrides: list[str], composed: DictConfig) -> None:
    """Refuse former keys, which would have no effect, and settings that are another one's."""
    parsed = parse_overrides(overrides)
    old = find_old_key(composed)
    if old is not None:
        typed = (o.key_or_group for o in parsed if f"{o.key_or_group}.".startswith(f"{old}."))
        raise UnknownName(explain_old_key(next(typed, old)))
    files = _files_of(composed.choices, _searched(parsed))
    apart = find_set_apart(cast(dict[str, Any], OmegaConf.to_container(composed)), files)
    if apart is not None:
        raise ConfigError(apart)


def _name_truly(overrides: list[str], composed: DictConfig) -> None:
    """Set the true names of changed choices, under ``choices`` and in an attack's results."""
    parsed = parse_overrides(overrides)
    if not any(o.is_delete() or TARGET in str(o.input_line) for o in parsed):
        return
    chosen = _compose(_choosing(parsed))
    composed.choices.update(true_names(chosen, composed))
    name = composed.choices.get("attack")
    if name != chosen.choices.get("attack") and composed.attack.get("name") == chosen.attack.name:
        composed.attack.name = name


def _compose_all(overrides: list[str]) -> DictConfig:
    with _no_hydra(), initialize_config_dir(str(CONF_DIR), version_base="1.3", job_name="fl_app"):
        try:
            return hydra_compose(CONFIG_NAME, overrides, return_hydra_config=True)
        except _RAISED_BY_HYDRA as error:
            raise ConfigCompositionException(str(error)) from error


@contextmanager
def _no_hydra() -> Iterator[None]:
    """Set the Hydra of a surrounding ``fl-app`` aside; there is one a process."""
    outer = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = outer


def _explain(overrides: list[str], error: Exception) -> str:
    """Say which override is wrong, and list the valid choices."""
    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
    except HydraException as bad_grammar:
        return f"overrides: {bad_grammar}"
    searched = _searched(parsed)
    for override in parsed:
        complaint = _wrong_choice(override, searched)
        if complaint:
            return complaint
    groups = _choosing(parsed)
    try:
        base = _compose(groups)
    except HydraException:
        return str(error)
    for override in parsed:
        if not _is_choice(override) and not override.is_add() and not override.is_force_add():
            complaint = _wrong_key(override.key_or_group, base)
            if complaint:
                return explain_old_key(override.key_or_group) or complaint
    missing = set(_missing_keys(OmegaConf.to_container(base))) - {o.key_or_group for o in parsed}
    if missing:
        return "; ".join(f"{key} has no default: give it as {key}=…" for key in sorted(missing))
    return str(error)


def _missing_keys(node: Any, path: str = "") -> Iterator[str]:
    """Go through the keys without a value; those that refer to one of them do not count."""
    for name, value in node.items() if isinstance(node, dict) else ():
        if value == "???":
            yield f"{path}{name}"
        yield from _missing_keys(value, f"{path}{name}.")


def is_group(override: Override) -> bool:
    """Say whether an override chooses or removes a whole group."""
    return (CONF_DIR / override.key_or_group).is_dir() and "." not in override.key_or_group


def _is_choice(override: Override) -> bool:
    """Say whether an override chooses a file, rather than a value in it."""
    by_name = is_group(override) and not isinstance(cast(Any, override.value()), dict)
    return by_name or override.key_or_group == SEARCH_PATH


def _choosing(parsed: Sequence[Override]) -> list[str]:
    return [o.input_line for o in parsed if o.input_line and _is_choice(o)]


def _searched(parsed: Sequence[Override]) -> list[Path]:
    """Return the folders that the overrides add to those in which choices are looked for."""
    listed = [cast(Any, o.value()) for o in parsed if o.key_or_group == SEARCH_PATH]
    places = [place for value in listed if isinstance(value, list) for place in value]
    return [Path(str(place).removeprefix("file://")) for place in places]


def _wrong_choice(override: Override, searched: Sequence[Path]) -> str | None:
    choices = choices_of(override, searched)
    value = override.value()
    optional = override.is_delete() or override.key_or_group == "experiment"
    if choices is None or (value is None and optional) or value in choices:
        return None
    return (
        f"{override.key_or_group}: {value!r} is not one of its choices: "
        f"{', '.join(choices)}{nearest(str(value), choices)}"
    )


def _wrong_key(key: str, cfg: DictConfig) -> str | None:
    node: Any = cfg
    path = ""
    for part in key.split("."):
        names = [str(name) for name in node if name != "choices"] if OmegaConf.is_dict(node) else []
        if OmegaConf.is_dict(node) and node._get_node(part) is None:  # "in" overlooks a value to be given
            where = path or "the configuration"
            return f"{key}: unknown key; {where} has {', '.join(sorted(names))}{nearest(part, names)}"
        if not OmegaConf.is_config(node):
            return f"{key}: {path} is a value and has no keys"
        node, path = node._get_node(part), f"{path}.{part}".strip(".")
    return None


def nearest(word: str, choices: Sequence[str]) -> str:
    """Return the nearest choice as a hint for the end of a message; "" without one."""
    close = difflib.get_close_matches(word, choices)
    if not close:
        return ""

    def likeness(choice: str) -> tuple[float, int]:
        # two letters in the wrong order are more likely than three that are missing
        return difflib.SequenceMatcher(None, choice, word).ratio(), -abs(len(choice) - len(word))

    return f" (did you mean {max(close, key=likeness)}?)"


def _check(config: Mapping[str, Any], own_strategy: bool) -> None:
    """Check the values that no factory checks; ``own_strategy``: the defense brings it."""
    rules: dict[str, tuple[Callable[[Any], bool], str]] = {
        "seed": (_whole(0), "a whole number of at least 0"),
        "rounds": (_whole(1), "a whole number of at least 1"),
        "clients": (_whole(1), "a whole number of at least 1"),
        "evaluate_every": (_whole(1), "a whole number of at least 1"),
        "validation": (lambda v: v == 0 or (_positive(v) and v < 1), "a number from 0 to less than 1"),
        "liars": (lambda v: v == 0 or (_positive(v) and v < 1), "a number from 0 to less than 1"),
        "lie": (lambda v: v in LIES, f"one of {', '.join(LIES)}"),
        "balance": (lambda v: isinstance(v, bool), "true or false"),
        "threads": (lambda v: v is None or _whole(1)(v), "null or a whole number of at least 1"),
        "init": (lambda v: v is None or isinstance(v, str), "null or the path of a file"),
        "timeout": (lambda v: v is None or _positive(v), "null or a positive number of seconds"),
        "wait": (_positive, "a positive number of seconds"),
        "dtype": (lambda v: v in DTYPES, f"one of {', '.join(DTYPES)}"),
        "bn": (lambda v: v in BN_MODES, f"one of {', '.join(BN_MODES)}"),
        "checkpoint": (lambda v: v == "auto" or isinstance(v, bool), "auto, true or false"),
        "resume": (lambda v: v is None or isinstance(v, str), "null or a run's folder"),
        "baseline": (lambda v: v == "auto" or isinstance(v, bool), "auto, true or false"),
        "client.mode": (lambda v: v in ("train", "eval"), "one of train, eval"),
        "client.pin_model": (lambda v: isinstance(v, bool), "true or false"),
        "client.inspect": (lambda v: v in ("off", "warn", "refuse"), "one of off, warn, refuse"),
        "client.norms": (lambda v: isinstance(v, bool), "true or false"),
        "audit.mse_below": (_positive, "a positive number"),
        "audit.moved_most": (
            lambda v: v is None or (_positive(v) and v <= 1),
            "null or a number above 0 and at most 1",
        ),
        "audit.batch_size": (lambda v: v is None or _whole(1)(v), "null or a whole number of at least 1"),
        "audit.contrast": (lambda v: isinstance(v, bool), "true or false"),
        "audit.store": (lambda v: isinstance(v, bool), "true or false"),
        "audit.pool": (lambda v: v is None or isinstance(v, str), "null or the path of a file"),
        "audit.lpips": (lambda v: v in ("alex", "vgg"), "alex or vgg"),
        "attack.rounds": (_rounds, "a list of rounds (from 1 on, or last), 'last' or 'all'"),
        "attack.clients": (_numbers(0), "a list of clients (from 0 on) or 'all'"),
    }
    for key, (fits, expected) in rules.items():
        value = _at(config, key)
        if not fits(value):
            raise ConfigError(f"{key}: must be {expected}, got {value!r}")
    for group in _GROUPS:
        if not isinstance(settings := _at(config, group), Mapping):
            raise ConfigError(f"{group}: must be a group of settings, got {settings!r}")
    adaptive = config["attack"].get("adaptive", False)
    if adaptive != "both" and not isinstance(adaptive, bool):
        raise ConfigError(f"attack.adaptive: must be both, true or false, got {adaptive!r}")
    _check_together(config, own_strategy)


def _check_together(config: Mapping[str, Any], own_strategy: bool) -> None:
    """Check choices that do not go with each other; `fl_app.config.fitting` asks the defense itself."""
    defense, strategy = (_at(config, f"choices.{group}") for group in ("defense", "strategy"))
    if own_strategy and strategy != DEFAULT_STRATEGY:
        raise ConfigError(f"strategy: defense={defense} brings its own, got strategy={strategy}")
    if "_target_" in _at(config, "attack"):
        _check_aim(config)
    viewpoint = _at(config, "attack").get("viewpoint", "server")
    if "candidates" in _at(config, "attack"):
        _check_membership(config)
    if viewpoint == "final" and "candidates" in _at(config, "attack"):
        return
    if viewpoint != "server":
        _check_participant(config, own_strategy)


def _check_aim(config: Mapping[str, Any]) -> None:
    """Check that the attacked rounds and clients are among those of the run."""
    for key, numbers, most in (
        ("attack.rounds", config["attack"]["rounds"], config["rounds"]),
        ("attack.clients", config["attack"]["clients"], config["clients"] - 1),
    ):
        if not numbers:
            raise ConfigError(f"{key}: is empty, so nothing would be attacked; attack=none says so")
        beyond = [] if isinstance(numbers, str) else [n for n in numbers if n != "last" and n > most]
        if beyond:
            raise ConfigError(f"{key}: {beyond[0]} never comes; the run has {key[7:]} up to {most}")


def _check_membership(config: Mapping[str, Any]) -> None:
    """Check that candidates can be asked for, and that an active attacker is the server."""
    attack = _at(config, "attack")
    for key in ("candidates", "shadows"):
        if not _whole(0)(attack.get(key)):
            raise ConfigError(f"attack.{key}: must be a whole number of at least 0, got {attack.get(key)!r}")
    if attack.get("active") and attack["viewpoint"] != "server":
        raise ConfigError(
            f"attack.active: only a server sends other models, got attack.viewpoint={attack['viewpoint']}"
        )
    if attack.get("active") and config["rounds"] < 2:
        raise ConfigError("attack.active: the server learns the candidates in round 1; it needs 2 rounds")


def _check_participant(config: Mapping[str, Any], own_strategy: bool) -> None:
    """Check that a participant can tell the others' sum from the models that it gets."""
    attack, clients, defense = (_at(config, key) for key in ("attack", "clients", "choices.defense"))
    if attack["viewpoint"] != "participant":
        choices = "server, participant or final" if "candidates" in attack else "server or participant"
        raise ConfigError(f"attack.viewpoint: must be {choices}, got {attack['viewpoint']!r}")
    if not (_whole(0)(attack["by"]) and attack["by"] < clients and clients > 1):
        raise ConfigError(
            f"attack.by: must be one of at least two clients, got {attack['by']!r} of {clients}"
        )
    rounds = [] if attack["rounds"] == "all" and "candidates" in attack else attack["rounds"]
    latest = 1 if rounds == "all" else max((r for r in rounds if r != "last"), default=0)
    if "last" in rounds or latest >= config["rounds"]:
        raise ConfigError(
            "attack.rounds: a participant needs the model of the round after the attacked one, got "
            f"{rounds} of {config['rounds']} rounds"
        )
    if own_strategy:
        raise ConfigError(
            "attack.viewpoint: a participant is followed through strategy=fed_sgd or fed_avg alone, got "
            f"defense={defense}"
        )
    fraction, momentum = _at(config, "fraction"), _at(config, "strategy").get("momentum", 0)
    if fraction != 1 or momentum:
        raise ConfigError(
            "attack.viewpoint: a participant knows the mean only if all take part and the server has no "
            f"momentum, got fraction={fraction} and strategy.momentum={momentum}"
        )


def _at(config: Mapping[str, Any], key: str) -> Any:
    """Return the value at ``key``; overrides can remove any key."""
    value: Any = config
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            raise ConfigError(f"{key.removeprefix('choices.')}: is missing, and every run needs it")
        value = value[part]
    return value


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= least


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _numbers(least: int) -> Callable[[Any], bool]:
    return lambda value: value == "all" or (isinstance(value, list) and all(map(_whole(least), value)))


def _rounds(value: Any) -> bool:
    # without "last" only numbers, or "all", may be left
    listed = [number for number in value if number != "last"] if isinstance(value, list) else value
    return listed == "last" or _numbers(1)(listed)
