"""The plain description of a run for a node's policy, made from the very calls that build the client."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, cast

from hydra.utils import get_method
from omegaconf import DictConfig, OmegaConf

from fl_app.config.true_names import TARGET
from fl_app.defenses import Defense
from fl_app.models import ModelSpec
from fl_app.policy import Noise, Part, RunPlan
from fl_app.privacy import ClientNoise

_OURS = "fl_app."


def describe(cfg: DictConfig, spec: ModelSpec, defense: Defense, privacy: ClientNoise | None) -> RunPlan:
    """Describe the run that these parts were built for."""
    training = _settings(cast(dict[str, Any], OmegaConf.to_container(cfg.training)))
    return RunPlan(
        model=_short(spec.target),
        model_hash=spec.hash,
        parts=tuple(_parts(OmegaConf.to_container(cfg.defense))),
        batch_size=training.get("batch_size"),
        epochs=training.get("epochs"),
        steps=training.get("steps"),
        rounds=cfg.rounds,
        clients=cfg.clients,
        secagg=bool(cfg.secagg.enabled),
        noise=_noise(defense, privacy),
    )


def _noise(defense: Defense, privacy: ClientNoise | None) -> Noise | None:
    if privacy is not None:
        if privacy.separation is not None:
            return None  # the server's noise is none that this node adds
        return Noise("client", privacy.delta, privacy.epsilon, privacy.records is not None)
    if defense.release is not None:
        return Noise("record", defense.release(1.0, 1).delta)
    return None


def _parts(node: Any) -> Iterator[Part]:
    """Go through the calls that a config node makes, outer ones first."""
    if isinstance(node, dict):
        if TARGET in node:
            yield Part(_short(node[TARGET]), _settings(node))
        for inner in node.values():
            yield from _parts(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from _parts(inner)


def _settings(node: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments of a call that are plain values, those that are left to their defaults too."""
    left = {
        name: parameter.default
        for name, parameter in inspect.signature(get_method(node[TARGET])).parameters.items()
        if parameter.default is not parameter.empty
    }
    return {
        name: value for name, value in (left | node).items() if name != TARGET and not isinstance(value, dict)
    }


def _short(target: str) -> str:
    """Return a callable's name; one from elsewhere keeps its whole path, which no name of ours equals."""
    return target.rsplit(".", 1)[-1] if target.startswith(_OURS) else target
