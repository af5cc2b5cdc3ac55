"""All training samples in a client's own folder, numbered and scaled as everywhere else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fl_app.data.census import own_people
from fl_app.data.chest_films import own_films
from fl_app.data.dataset import Samples
from fl_app.data.dicom_folder import own_dicom
from fl_app.data.facts import Facts
from fl_app.data.heart_disease import own_centre
from fl_app.data.hospital import own_patients
from fl_app.data.image_folder import own_images
from fl_app.data.librispeech import own_utterances
from fl_app.data.prose import own_sentences
from fl_app.data.torchvision_copy import load_torchvision

OwnSource = Callable[..., Samples]
"""Called with the folder, the facts and the settings of ``conf/data``."""


def _own_copy(kind: str) -> OwnSource:
    def read(root: Path, facts: Facts, **settings: Any) -> Samples:
        train, _, _ = load_torchvision(kind, root, download=False)
        return train

    return read


SOURCES: Mapping[str, OwnSource] = {
    "fl_app.data.imagefolder": own_images,
    "fl_app.data.support2": own_patients,
    "fl_app.data.heart_disease": own_centre,
    "fl_app.data.pneumonia": own_films,
    "fl_app.data.adult": own_people,
    "fl_app.data.dicom": own_dicom,
    "fl_app.data.speech": own_utterances,
    "fl_app.data.text": own_sentences,
    "fl_app.data.cifar10": _own_copy("CIFAR10"),
    "fl_app.data.cifar100": _own_copy("CIFAR100"),
    "fl_app.data.mnist": _own_copy("MNIST"),
    "fl_app.data.fashion_mnist": _own_copy("FashionMNIST"),
}
"""Reader of own samples by the target in ``conf/data``."""


def own_samples(target: str, root: Path, facts: Facts, settings: Mapping[str, Any]) -> Samples:
    """Return all training samples below ``root``, read as the source ``target`` with ``settings`` does."""
    if target not in SOURCES:
        choices = ", ".join(name.rpartition(".")[2] for name in SOURCES)
        raise ValueError(
            f"own_samples: {target.rpartition('.')[2]} has no folder that a client could bring; "
            f"expected data= one of {choices}"
        )
    others = {key: value for key, value in settings.items() if key != "root"}
    samples = SOURCES[target](root.expanduser(), facts, **others)
    shape = tuple(samples.inputs.shape[1:])
    if shape != facts.in_shape:
        raise ValueError(f"own_samples: inputs in {root} must be {facts.in_shape}, got {shape}")
    highest = int(samples.labels.max())
    if highest >= facts.num_classes:
        raise ValueError(f"own_samples: labels in {root} must be below {facts.num_classes}, got {highest}")
    return samples
