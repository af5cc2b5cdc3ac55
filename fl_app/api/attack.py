"""An attack on an update of any model, by one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fl_app.api.settings import as_overrides, check_single
from fl_app.config.build import lone_attack
from fl_app.config.compose import join_overrides
from fl_app.console.progress import follow_search, track
from fl_app.defenses.ats import public_rewrites
from fl_app.storage.tensor_files import read_tensors
from fl_app.types import Observation, Tensors

Source = Tensors | Path | str
"""Tensors by name or in parameter order, or a `.pt`, `.safetensors` or `.npz` file of them."""


def attack(
    model: nn.Module,
    gradients: Source | None = None,
    *,
    delta: Source | None = None,
    before: Source | None = None,
    after: Source | None = None,
    lr: float | None = None,
    local_steps: int | None = None,
    local_batch_size: int | None = None,
    attack: str = "ig",
    batch_size: int | None = None,
    num_classes: int | None = None,
    input_shape: Sequence[int] | None = None,
    labels: Tensor | Sequence[int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    training: bool | None = None,
    defense: str | Mapping[str, Any] | None = None,
    adaptive: bool | None = None,
    check: bool = True,
    **settings: Any,
) -> Any:
    """Attack an update of ``model`` and return the attack's result.

    The update is ``gradients``, or weights ``after`` local training, or their ``delta`` to those before.

    The result is an `attacks.Reconstruction` with ``images`` (N, C, H, W) in [0, 1], ``labels`` and
    ``notes`` on all that was assumed; of an attack on labels or text, a `LabelSet` or a `Transcript`.

    Weights and deltas need ``lr`` and ``local_steps``; ``before`` is the model as it is unless given.
    ``attack`` names a file of ``conf/attack``, and further keywords are its settings (``steps=300``).
    Knowledge that is not given is not granted to the attacker: without ``labels`` it infers them, and
    without ``batch_size`` there are as many samples as labels, or one. ``defense`` names the client's
    defense or is its config; then the attack adapts to it, unless ``adaptive`` is False. ``check=False``
    takes an update whose sign looks wrong.
    """
    named = defense if isinstance(defense, str) else "none"
    wanted = as_overrides({"attack": attack, "defense": named})
    wanted += as_overrides({f"attack.{name}": value for name, value in settings.items()})
    check_single(wanted, who="fl_app.attack")
    informed = defense is not None if adaptive is None else adaptive
    node = defense if isinstance(defense, Mapping) else None
    method, stated = lone_attack(join_overrides(wanted), adaptive=informed, defense=node)
    traces = None if defense is None else stated
    facts: dict[str, Any] = {
        "batch_size": batch_size or (1 if labels is None else len(labels)),
        "num_classes": num_classes,
        "input_shape": input_shape,
        "labels": labels,
        "mean": mean,
        "std": std,
        "training": training,
        "defense": traces,
        "check": check,
    }
    sources = sum(source is not None for source in (gradients, delta, after))
    steps = sum(value is not None for value in (lr, local_steps))
    if sources != 1 or steps != (2 if gradients is None else 0) or (before is not None and after is None):
        raise ValueError(
            "fl_app.attack: expected gradients alone, or delta or after (and before) with lr and local_steps"
        )
    if gradients is not None:
        seen = Observation.from_gradient(model, _tensors(gradients), **facts)
    else:
        facts |= {"lr": lr, "local_steps": local_steps, "local_batch_size": local_batch_size}
        if delta is not None:
            seen = Observation.from_delta(model, _tensors(delta), **facts)
        elif after is not None:
            start = model.state_dict() if before is None else _tensors(before)
            seen = Observation.from_weights(model, start, _tensors(after), **facts)
    if traces is not None:
        seen = replace(seen, rewrites=public_rewrites(traces))
    with track(attack, 100) as advance:
        return method(seen, on_step=follow_search(advance))


def _tensors(source: Source) -> Tensors:
    return read_tensors(source) if isinstance(source, str | Path) else source
