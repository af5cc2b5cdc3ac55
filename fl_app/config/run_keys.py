"""Keys of a Flower run config, as ``flwr run . -c 'defense=adgp'`` gives them, as overrides."""

from __future__ import annotations

from collections.abc import Mapping

from flwr.app import UserConfigValue

from fl_app.config.compose import ConfigError, join_overrides, key_of, quote, split_overrides

OVERRIDES, CLIENTS, AUTO = "overrides", "clients", "auto"
KEYS: Mapping[str, str] = {
    "num-server-rounds": "rounds",
    CLIENTS: CLIENTS,
    "defense": "defense",
    "attack": "attack",
    "model": "model",
    "data": "data",
    "lr": "lr",
    "seed": "seed",
}
"""The setting or group behind each key; an empty text leaves it to ``overrides`` and ``conf/``."""


def overrides_of(run_config: Mapping[str, UserConfigValue], clients: int | None) -> str:
    """Return the overrides of a run config; ``clients`` is what ``clients=auto`` stands for.

    A setting may be given once, by its key or in ``overrides``; ``clients=auto`` gives way.
    """
    text = str(run_config.get(OVERRIDES, ""))
    given = {key: value for key, value in run_config.items() if key in KEYS and value != ""}
    if not given:
        return text
    listed = split_overrides(text)
    known = {key_of(override) for override in listed}
    if given.get(CLIENTS) == AUTO:
        del given[CLIENTS]
        if clients is not None and CLIENTS not in known:
            given[CLIENTS] = clients
    twice = sorted(key for key in given if KEYS[key] in known)
    if twice:
        raise ConfigError(f"run config: {', '.join(twice)} must be given once, got it in overrides, too")
    named = [f"{KEYS[key]}={_value(value)}" for key, value in given.items()]
    return join_overrides([*named, *listed])


def is_auto(run_config: Mapping[str, UserConfigValue]) -> bool:
    """Say whether the number of clients is that of the nodes that are there."""
    listed = split_overrides(str(run_config.get(OVERRIDES, "")))
    return run_config.get(CLIENTS) == AUTO and CLIENTS not in {key_of(override) for override in listed}


def _value(value: UserConfigValue) -> str:
    # a name of a group as it is: Hydra takes no quotes there
    plain = not isinstance(value, str) or value.replace("_", "").isalnum()
    return str(value) if plain else quote(str(value))
