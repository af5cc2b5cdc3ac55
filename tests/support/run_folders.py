"""A generator of run folders: drawn pictures, really measured scores, plausible training curves."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from skimage.metrics import structural_similarity
from torch import Tensor

from fl_app.report import save_images


def write_run(
    folder: Path,
    *,
    defense: str = "dgp",
    seed: int = 0,
    rounds: int = 12,
    batch: int = 2,
    size: int = 32,
    noise: float = 0.35,
    reach: float = 0.7,
    sparsity: float = 0.05,
    change: Callable[[dict[str, Any]], None] = lambda result: None,
) -> Path:
    """Write a finished run; ``change`` may edit the result before it is written."""
    generator = torch.Generator().manual_seed(seed)
    truth = draw_pictures(batch, size, generator)
    folder.mkdir(parents=True, exist_ok=True)
    save_images(truth, folder / "attacks/r1-c0-truth.png")
    attacks = [
        _attack(folder, truth, update, strength, generator)
        for update, strength in (("undefended", 0.06), ("defended", noise))
    ]
    # a stand-in: a drawn chart would take most of the time of the tests
    save_images(torch.rand(1, 3, 8, 12, generator=generator), folder / "partition.png")
    result = {
        "status": "finished",
        "error": None,
        "config": {
            "seed": seed,
            "rounds": rounds,
            "clients": 10,
            "lr": 0.1,
            "choices": {
                "defense": defense,
                "model": "lenet",
                "data": "photos",
                "partition": "iid",
                "strategy": "fed_sgd",
                "engine": "inline",
                "attack": "ig",
            },
            "data": {"name": "photos", "seed": seed},
            "audit": {"batch_size": batch, "contrast": True},
        },
        "versions": {"python": "3.11.7", "torch": "2.13.0", "flwr": "1.41.0", "fl-app": "0.1.0"},
        "model": {"parameters": 15826, "buffers": 0},
        "rounds": _rounds(rounds, reach, sparsity, generator),
        "attacks": attacks,
        "notes": ["noise replayable from the seed"],
    }
    result["summary"] = _summary(result["rounds"])
    change(result)
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "config.yaml").write_text(f"seed: {seed}\nrounds: {rounds}\nlr: 0.1\n")
    return folder


def with_two_classes(result: dict[str, Any]) -> None:
    """Make the run one that tells two classes apart."""
    for row in result["rounds"]:
        row["balanced_accuracy"], row["auroc"] = 0.9 * row["accuracy"], 0.5 + row["accuracy"] / 2
    result["summary"] |= {key: result["rounds"][-1][key] for key in ("balanced_accuracy", "auroc")}


def with_validation(result: dict[str, Any]) -> None:
    """Let validation samples choose the second round, which is not the best on the test samples."""
    for row in result["rounds"]:
        row["validation_accuracy"] = 0.8 if row["round"] == 2 else 0.3
    best = result["rounds"][1]["accuracy"]
    result["summary"] |= {"best_accuracy": best, "best_round": 2, "best_chosen_by": "validation"}


def with_secure_aggregation(result: dict[str, Any]) -> dict[str, Any]:
    """Make the run one of FL-TOP under client-level noise and secure aggregation; return it, too.

    What was attacked as sent is now one client's masked vector, and the sum of three clients.
    """
    raw, sent = result["attacks"]
    masked = {**sent, "update": "masked", "summed": 0}
    total = {**sent, "update": "sum", "summed": 3, "client": -1, "batch_size": 3 * sent["batch_size"]}
    result["attacks"] = [masked, raw, total]
    result["config"]["choices"] |= {"defense": "fl_top", "dp": "client", "secagg": "on"}
    result["config"]["dp"] = {
        "epsilon": 20,
        "delta": 1e-5,
        "clip": None,
        "share": "threshold",
        "sampling": "poisson",
        "rate": 0.4,
        "clients": 10,
    }
    result["exchange"] = {
        "scheme": "FLTop",
        "values": 4747,
        "of": 15826,
        "hash": "466c40f3" * 8,
        "by_layer": {"conv.weight": 300, "output.weight": 4447},
        "picture": "coordinates.png",
    }
    result["privacy"] = {"unit": "client", "noise_multiplier": 1.5, "clip": 0.0641, "replayable": True}
    result["secure_aggregation"] = {"against": "honest-but-curious server", "min_clients": 3}
    for row in result["rounds"]:
        row |= {"epsilon": 2 * row["round"] ** 0.5, "epsilon_server": 2.5 * row["round"] ** 0.5}
    result["summary"] |= {key: result["rounds"][-1][key] for key in ("epsilon", "epsilon_server")}
    result["summary"]["epsilon_unit"] = "client"
    return result


def write_model(folder: Path) -> None:
    """Write the model whose layers `with_secure_aggregation` speaks of."""
    tensors = {"conv.weight": torch.zeros(12, 3, 5, 5), "output.weight": torch.zeros(14926)}
    save_file(tensors, folder / "model.safetensors")


def read_result(folder: Path) -> dict[str, Any]:
    """Return the result as the run wrote it, without the report's reader."""
    return json.loads((folder / "result.json").read_text())


def draw_pictures(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Draw coloured discs on a gradient."""
    axis = torch.linspace(0, 1, size)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    pictures = []
    for _ in range(count):
        low, high, disc = torch.rand(3, 3, 1, 1, generator=generator)
        center = 0.3 + 0.4 * torch.rand(2, generator=generator)
        inside = ((y - center[0]) ** 2 + (x - center[1]) ** 2 < 0.07).float()
        ground = low * (1 - y) + high * y
        pictures.append(ground * (1 - inside) + disc * inside)
    return torch.stack(pictures).clamp(0, 1)


def _attack(
    folder: Path, truth: Tensor, update: str, strength: float, generator: torch.Generator
) -> dict[str, Any]:
    rebuilt = (truth + strength * torch.randn(truth.shape, generator=generator)).clamp(0, 1)
    path = f"attacks/r1-c0-ig-{update}.png"
    save_images(rebuilt, folder / path)
    mse = ((truth - rebuilt) ** 2).mean(dim=(1, 2, 3)).tolist()
    ssim = [
        float(structural_similarity(a.numpy(), b.numpy(), channel_axis=0, data_range=1.0))
        for a, b in zip(truth, rebuilt, strict=True)
    ]
    return {
        "attack": "ig",
        "adaptive": False,
        "update": update,
        "round": 1,
        "client": 0,
        "batch_size": len(truth),
        "granted": {"labels": True, "batch_size": len(truth), "training": True, "buffers": None},
        "labels_from": "granted",
        "psnr": [-10 * math.log10(value) if value else math.inf for value in mse],
        "ssim": ssim,
        "lpips": None,
        "mse": mse,
        "labels": None,
        "objective": 0.0123 * (1 + strength),
        "notes": ["one local step, treated as a gradient"],
        "seconds": 7.5,
        "images": path,
        "truth": "attacks/r1-c0-truth.png",
    }


def _rounds(count: int, reach: float, sparsity: float, generator: torch.Generator) -> list[dict[str, Any]]:
    dense = 4 * 15826 * 10
    return [
        {
            "round": number,
            "accuracy": reach * (1 - math.exp(-number / 5))
            + 0.02 * float(torch.rand(1, generator=generator)),
            "loss": 2.3 * math.exp(-number / 8),
            "train_loss": 2.2 * math.exp(-number / 7),
            "uplink_bytes": round(dense * sparsity * 1.4) + 3 * number,
            "downlink_bytes": round(dense * min(1.0, sparsity * 5)) + number,
            "uplink_blob_bytes": round(dense * sparsity * 1.35),
            "downlink_blob_bytes": round(dense * min(1.0, sparsity * 5)) - 100,
            "clients": 10,
            "failures": [],
            "attacked": [0] if number == 1 else [],
            "epsilon": None,
            "epsilon_server": None,
            "residual_norm": 1.5 * (1 - math.exp(-number / 3)),
            "seconds": 0.25,
        }
        for number in range(1, count + 1)
    ]


def _summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "accuracy": rounds[-1]["accuracy"],
        "best_accuracy": max(r["accuracy"] for r in rounds),
        "uplink_bytes": sum(r["uplink_bytes"] for r in rounds),
        "downlink_bytes": sum(r["downlink_bytes"] for r in rounds),
        "dense_bytes": 2 * 4 * 15826 * 10 * len(rounds),
        "epsilon": None,
        "seconds": sum(r["seconds"] for r in rounds),
    }
