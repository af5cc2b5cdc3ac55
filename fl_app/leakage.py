"""What the updates leak: attack every sighting after training, and score it against the truth."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from fl_app.audit import Public, Sighting, observe
from fl_app.config import ServerParts
from fl_app.progress import track
from fl_app.report import save_images
from fl_app.results import Results
from fl_app.types import Observation, Truth

_UNSCORED = dict.fromkeys(("psnr", "ssim", "lpips", "mse", "labels"))


def attack_sightings(sightings: list[Sighting], parts: ServerParts, results: Results) -> None:
    """Attack each sighting as it was sent and, for contrast, as it was before the defense."""
    if parts.attack is None:
        return
    if not sightings:
        results.content["notes"].append("no attacked client answered in an attacked round: nothing to attack")
    for sighting in sightings:
        for undefended in (False, True) if _was_defended(sighting) else (False,):
            results.content["attacks"].append(_attack(sighting, undefended, parts, results.folder))
            results.save()


def _was_defended(sighting: Sighting) -> bool:
    """Say whether the raw update is known and is another than the one that was sent."""
    raw, sent = sighting.raw, sighting.update
    return raw is not None and any(
        not torch.equal(raw[name].to(sent[name].device), sent[name]) for name in sent
    )


def _attack(sighting: Sighting, undefended: bool, parts: ServerParts, folder: Path) -> dict[str, Any]:
    settings = parts.config["attack"]
    update = "undefended" if undefended else "defended"
    observation = observe(
        sighting,
        parts.model,
        _public(parts),
        grant_labels=settings["grant"]["labels"],
        undefended=undefended,
    )
    start = time.perf_counter()
    result = _run(
        parts.attack, observation, f"{settings['name']} on client {sighting.order.client}, {update}"
    )
    seconds = time.perf_counter() - start
    entry = {
        "attack": settings["name"],
        "adaptive": settings.get("adaptive", False),
        "update": update,
        "round": sighting.order.round,
        "client": sighting.order.client,
        "batch_size": sighting.answer.samples,
        "broadcaster": observation.broadcaster,
        "granted": _granted(observation),
        "labels_from": "granted" if observation.labels is not None else "inferred",
        "objective": getattr(result, "objective", None),
        "notes": list(result.notes),
        "seconds": seconds,
    }
    scores = _scores(result, sighting, parts, undefended)
    if observation.labels is not None:
        scores["labels"] = None  # to recover what was granted is no success
    return entry | scores | _pictures(result, sighting, parts, folder, update)


def _run(attack: Any, observation: Observation, title: str) -> Any:
    with track(title, 100) as advance:
        return attack(
            observation,
            on_step=lambda done, total, best: advance(100 * done // total, f"objective {best:.4f}"),
        )


def _granted(observation: Observation) -> dict[str, Any]:
    """Say what the attacker was given beside the model and the update."""
    return {
        "labels": observation.labels is not None,
        "batch_size": observation.batch_size,
        "mode": "train" if observation.training else "eval",
        "normalisation": observation.mean is not None,
        "BatchNorm statistics": observation.buffers is not None,
        "local_steps": observation.local_steps,
        "lr": observation.lr,
    }


def _scores(result: Any, sighting: Sighting, parts: ServerParts, undefended: bool) -> dict[str, Any]:
    """Score against the client's own samples and, where the defense trained on others, against those too."""
    truth = sighting.truth
    if truth is None:
        return dict(_UNSCORED)
    scores = _UNSCORED | dict(parts.score(result, truth))
    if truth.trained is not None and hasattr(result, "images") and not undefended:
        scores["trained"] = dict(parts.score(result, Truth(truth.trained, truth.labels))) | {
            "images": f"{_stem(sighting)}-trained.png"
        }
    return scores


def _pictures(
    result: Any, sighting: Sighting, parts: ServerParts, folder: Path, update: str
) -> dict[str, str | None]:
    """Save what was recovered, in the truth's order where it is known, and the truth itself."""
    if not hasattr(result, "images"):
        return {"images": None, "truth": None}
    stem = _stem(sighting)
    paths: dict[str, str | None] = {
        "images": f"{stem}-{parts.config['attack']['name']}-{update}.png",
        "truth": None,
    }
    shown = result.images
    if sighting.truth is not None:
        shown = parts.aligned(result, sighting.truth)
        paths["truth"] = f"{stem}-truth.png"
        save_images(sighting.truth.inputs, folder / f"{stem}-truth.png")
        if sighting.truth.trained is not None:
            save_images(sighting.truth.trained, folder / f"{stem}-trained.png")
    save_images(shown, folder / str(paths["images"]))
    return paths


def _stem(sighting: Sighting) -> str:
    return f"attacks/r{sighting.order.round}-c{sighting.order.client}"


def _public(parts: ServerParts) -> Public:
    dataset = parts.dataset
    return Public(
        num_classes=dataset.num_classes,
        input_shape=dataset.in_shape,
        mean=dataset.mean,
        std=dataset.std,
        defense=parts.config["defense"],
        training=parts.config["client"]["mode"] == "train",
    )
