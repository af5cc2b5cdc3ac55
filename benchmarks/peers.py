"""Our inversion beside that of breaching: same gradients, equal processor time, images that nobody tuned on.

``python -m benchmarks.peers --data FOLDER [--peer CHECKOUT] [--models lenet,convnet] [--batches 1,4]
[--modes eval,train] [--images 4] [--steps 600] [--known] [--out FILE]``. Untrained networks, labels granted,
one thread, one start. ``--steps`` are the peer's; ours gets as many as take the same processor time, measured
on the same gradient. ``--known`` gives ours 10,000 public images for its prior and its rehearsal, whose time
counts. Without ``--peer`` only ours runs. Rows are appended to ``--out`` as JSON, finished ones are kept.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from PIL import Image
from torch import Tensor, nn

from attacks.metrics import match, psnr, ssim
from attacks.optimisation import inverting_gradients
from benchmarks.photographs import DATA, MEAN, STD, observe
from fl_app.models import convnet, lenet_zhu, resnet18, resnet20, vgg11
from fl_app.types import Known, Observation

MODELS: Mapping[str, Callable[..., nn.Module]] = {
    "lenet": lenet_zhu,
    "convnet": convnet,
    "resnet20": resnet20,
    "resnet18": resnet18,
    "vgg11": vgg11,
}
OURS: Mapping[str, dict[str, Any]] = {
    "ours, variation": {"prior": "variation"},
    "ours, tensors": {"prior": "variation", "objective": "tensors"},
    "ours, calibrated": {"prior": "auto"},
}
PEERS = {
    "breaching ig, TV 0.2": ("invertinggradients", 0.2),
    "breaching ig, TV 0.01": ("invertinggradients", 0.01),
    "breaching modern": ("modern", None),
}
FIRST_IMAGE = 90
"""Number within each class of the first victim: no other benchmark and no tuning uses these."""
PROBE = 10
"""Steps whose processor time says how many are equal."""


def main(args: argparse.Namespace) -> None:
    """Print the table and append its rows."""
    torch.set_num_threads(1)
    done = {}
    if args.out is not None and args.out.is_file():
        rows = [json.loads(line) for line in args.out.read_text().splitlines()]
        done = {(r["model"], r["mode"], r["batch"], r["who"], r["steps"], r["case"]): r for r in rows}
    known = public_images(args.data) if args.known else None
    print(
        "| model | mode | batch | case | who | PSNR dB | SSIM | steps | CPU s |\n" + "|---" * 9 + "|",
        flush=True,
    )
    for name, mode, size in _settings(args):
        for case in range(args.images):
            pixels, labels = victims(args.data, size, case)
            torch.manual_seed(case)
            model = MODELS[name](num_classes=10, in_shape=(3, 32, 32)).train(mode == "train")
            seen = replace(observe(model, pixels, labels), training=mode == "train", known=known)
            budget: float | None = None
            for who in [*PEERS, *OURS]:
                if (who in PEERS and args.peer is None) or (who == "ours, calibrated" and known is None):
                    continue
                if args.only and not any(part in who for part in args.only.split(",")):
                    continue
                key = name, mode, size, who, args.steps, case
                if key not in done:
                    start = time.process_time()
                    if who in PEERS:
                        images, steps = peer(args.peer, seen, *PEERS[who], steps=args.steps), args.steps
                    else:
                        images, steps = ours(seen, OURS[who], budget, args.steps)
                    spent = time.process_time() - start
                    order = match(images, pixels)
                    found = images[torch.tensor(order)]
                    done[key] = {
                        "model": name,
                        "mode": mode,
                        "batch": size,
                        "case": case,
                        "who": who,
                        "psnr": psnr(found, pixels).mean().item(),
                        "ssim": ssim(found, pixels).mean().item(),
                        "steps": args.steps,
                        "taken": steps,
                        "cpu": spent,
                    }
                    if args.out is not None:
                        with args.out.open("a") as file:
                            file.write(json.dumps(done[key]) + "\n")
                row = done[key]
                if who in PEERS:
                    budget = row["cpu"] if budget is None else min(budget, row["cpu"])
                print(
                    f"| {name} | {mode} | {size} | {case} | {who} | {row['psnr']:.2f} | {row['ssim']:.3f} "
                    f"| {row['taken']} | {row['cpu']:.1f} |",
                    flush=True,
                )


def victims(folder: Path, size: int, case: int) -> tuple[Tensor, Tensor]:
    """Return a batch of test images of as many classes, kept apart from all tuning."""
    classes = sorted((folder / "test").iterdir())
    labels = [(case * size + i) % len(classes) for i in range(size)]
    files = [sorted(classes[label].iterdir())[FIRST_IMAGE + case] for label in labels]
    return read_images(files), torch.tensor(labels)


def ours(
    obs: Observation, settings: Mapping[str, Any], budget: float | None, steps: int
) -> tuple[Tensor, int]:
    """Return what our attack recovers in ``budget`` processor seconds (or ``steps``), and its steps."""
    plain = {key: value for key, value in settings.items() if key != "prior"}
    attack = inverting_gradients(labels="granted", **settings)
    if budget is not None:
        start = time.process_time()
        inverting_gradients(labels="granted", prior="variation", steps=PROBE, **plain)(
            replace(obs, known=None)
        )
        each = (time.process_time() - start) / (PROBE + 1)
        if settings["prior"] == "auto":
            # the rehearsal is part of the attack
            each *= 1 + attack.rehearsal_budget
        steps = max(PROBE, int(budget / each))
    return replace(attack, steps=steps)(obs).images, steps


def peer(checkout: Path, obs: Observation, recipe: str, variation: float | None, *, steps: int) -> Tensor:
    """Return what breaching recovers: its own code and published settings, fewer steps."""
    attacker_of = _load(checkout, "breaching.attacks.optimization_based_attack").OptimizationBasedAttacker
    folder = checkout / "breaching" / "config" / "attack"
    base = OmegaConf.load(folder / "_default_optimization_attack.yaml")
    cfg: Any = OmegaConf.merge(base, OmegaConf.load(folder / f"{recipe}.yaml"))
    cfg.optim.max_iterations, cfg.optim.callback = steps, steps
    if variation is not None:
        cfg.regularization.total_variation.scale = variation
    assert obs.labels is not None
    model, training = obs.model, bool(obs.training)
    buffers = None if training else [buffer.clone() for buffer in model.buffers()]
    about = SimpleNamespace(shape=obs.input_shape, mean=MEAN, std=STD, modality="vision")
    payload = [{"parameters": list(model.parameters()), "buffers": buffers, "metadata": about}]
    shared = [
        {
            "gradients": [obs.update[name] for name, _ in model.named_parameters()],
            "buffers": None,
            "metadata": {"num_data_points": len(obs.labels), "labels": obs.labels, "local_hyperparams": None},
        }
    ]
    setup = {"dtype": torch.float, "device": torch.device("cpu")}
    torch.manual_seed(0)
    found, _ = attacker_of(model, nn.CrossEntropyLoss(), cfg, setup).reconstruct(payload, shared, {})
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (MEAN, STD))
    images: Tensor = (found["data"].detach() * std + mean).clamp(0, 1)
    return images


def _load(checkout: Path, name: str) -> ModuleType:
    """Import a module of a checkout without the ``__init__`` of its packages, which need more."""
    parts = name.split(".")
    for depth in range(1, len(parts)):
        package = ".".join(parts[:depth])
        for path in (package, "breaching.cases", "breaching.cases.models"):
            if path not in sys.modules:
                module = ModuleType(path)
                module.__path__ = [str(checkout.joinpath(*path.split(".")))]
                sys.modules[path] = module
    return importlib.import_module(name)


def public_images(folder: Path) -> Known:
    """Return CIFAR-10's training images."""
    classes = sorted((folder / "train").iterdir())
    files = [(path, label) for label, one in enumerate(classes) for path in sorted(one.iterdir())]
    return Known(read_images([path for path, _ in files]), torch.tensor([label for _, label in files]))


def read_images(files: list[Path]) -> Tensor:
    """Return pictures of one size as pixels (N, C, H, W) in [0, 1]."""
    pictures = [np.asarray(Image.open(path).convert("RGB")) for path in files]
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255


def _settings(args: argparse.Namespace) -> Iterator[tuple[str, str, int]]:
    for name in args.models.split(","):
        for mode in args.modes.split(","):
            for size in map(int, args.batches.split(",")):
                yield name, mode, size


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="benchmarks.peers", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--peer", type=Path, default=None)
    parser.add_argument("--models", default="lenet,convnet,resnet20")
    parser.add_argument("--batches", default="1")
    parser.add_argument("--modes", default="eval")
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--known", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--out", type=Path, default=None)
    main(parser.parse_args())
