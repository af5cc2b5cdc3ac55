"""The command ``fl-app-attack --update FILE --model pkg.mod:factory``: attack an update from anywhere."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from fl_app.api.attack import attack
from fl_app.cli.own_code import import_from_here
from fl_app.config.compose import ConfigError, parse_overrides
from fl_app.console.words import printable
from fl_app.report import save_images

OPTIONS = ("--update", "--after")
"""Each of them says that no run is attacked."""
_PICTURE = "recovered.png"


def is_meant(arguments: Sequence[str]) -> bool:
    """Say whether the arguments name an update in a file."""
    return any(argument.partition("=")[0] in OPTIONS for argument in arguments)


def main(arguments: list[str]) -> None:
    """Attack the update that the arguments name, print the findings and write the recovered images."""
    args = _parser().parse_args(arguments)
    import_from_here()
    delta = args.lr is not None and args.update is not None
    result = attack(
        _model(args.model),
        None if delta else args.update,
        delta=args.update if delta else None,
        before=args.before,
        after=args.after,
        lr=args.lr,
        local_steps=args.local_steps,
        batch_size=args.batch_size,
        num_classes=args.num_classes,
        input_shape=args.input_shape,
        labels=args.labels,
        mean=args.mean,
        std=args.std,
        defense=args.defense,
        **_settings(args.overrides),
    )
    lines = [f"{name}: {value}" for name, value in _findings(result).items()]
    lines += [f"note: {note}" for note in result.notes]
    if hasattr(result, "images"):
        args.out.mkdir(parents=True, exist_ok=True)
        save_images(result.images, args.out / _PICTURE)
        lines.append(f"images: {args.out / _PICTURE}")
    print("\n".join(map(printable, lines)), flush=True)


def _findings(result: Any) -> dict[str, Any]:
    labels = getattr(result, "labels", None)
    found = {"labels": None if labels is None else labels.tolist()}
    found |= {name: getattr(result, name, None) for name in ("tokens", "text", "objective")}
    return {name: value for name, value in found.items() if value is not None}


def _model(name: str) -> nn.Module:
    """Call the factory that ``name`` names, as ``package.module:function``."""
    module, colon, factory = name.partition(":")
    if not (module and colon and factory):
        raise ConfigError(f"--model: expected package.module:factory, got {name!r}")
    try:
        made = getattr(import_module(module), factory)()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--model: {name} cannot be imported: {error}") from error
    if not isinstance(made, nn.Module):
        raise ConfigError(f"--model: expected that {name} returns a torch module, got {type(made).__name__}")
    return made


def _settings(overrides: Sequence[str]) -> dict[str, Any]:
    """Return overrides of the attack as keywords of `fl_app.attack`."""
    found: dict[str, Any] = {}
    for override in parse_overrides(overrides):
        key = override.key_or_group
        if key != "attack" and not key.startswith("attack."):
            raise ConfigError(f"{override.input_line}: expected attack=… or attack.KEY=…")
        if override.is_sweep_override():
            raise ConfigError(f"{override.input_line}: expected one value")
        found[key.removeprefix("attack.")] = override.value()
    return found


def _numbers(kind: type) -> Any:
    def numbers(text: str) -> list[Any]:
        return [kind(part) for part in text.split(",")]

    return numbers


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fl-app-attack",
        description="Attack an update from anywhere. Files are .pt (tensors only), .safetensors or .npz, by "
        "parameter name or in parameter order.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--update", metavar="FILE", help="gradients; with --lr a weight difference")
    source.add_argument("--after", metavar="FILE", help="weights after local training")
    parser.add_argument("--before", metavar="FILE", help="weights before; default: those of the model")
    parser.add_argument("--lr", type=float, help="the client's learning rate")
    parser.add_argument("--local-steps", type=int, metavar="N", help="the client's steps")
    parser.add_argument(
        "--model",
        required=True,
        metavar="MODULE:FACTORY",
        help="function without arguments that returns the model with the weights that the client got",
    )
    parser.add_argument("--input-shape", type=_numbers(int), metavar="C,H,W")
    parser.add_argument("--num-classes", type=int, metavar="N")
    parser.add_argument("--labels", type=_numbers(int), metavar="N,…", help="default: inferred")
    parser.add_argument("--batch-size", type=int, metavar="N", help="default: one for each label, or 1")
    parser.add_argument("--mean", type=_numbers(float), metavar="X,…", help="normalisation, by channel")
    parser.add_argument("--std", type=_numbers(float), metavar="X,…")
    parser.add_argument("--defense", metavar="NAME", help="the client's defense, if the attacker knows it")
    parser.add_argument("--out", type=Path, default=Path("attacked"), help="folder for recovered images")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="attack.KEY=VALUE",
        help="attack=…, attack.steps=…; default: attack=ig",
    )
    return parser
