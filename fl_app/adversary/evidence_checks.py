"""Checks of the evidence and truth of an attack, from an audited client or from a folder.

A truth of another shape would end a run in the middle of its scores, and a claim of many samples or
steps would make an attack allocate for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from fl_app.types import Records, Truth, Update
from fl_app.wire.messages import Answer, MessageError

MOST_PIXELS = 1 << 26
"""Entries of all inputs that one attack reconstructs together: 256 MiB in float32."""
MOST_STEPS = 1 << 10
"""Local steps that one attack unrolls."""
MOST_CLASSES = 1 << 24
IGNORED = -100
"""The smallest label: it says that nothing is to be predicted."""


class Task(Protocol):
    """Public facts on the samples."""

    @property
    def num_classes(self) -> int:
        """Number of classes or tokens."""
        ...

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        ...


def check_task(task: Task) -> None:
    """Refuse a task that no samples can have."""
    if not 1 <= task.num_classes <= MOST_CLASSES:
        raise MessageError(f"num_classes must be 1 to {MOST_CLASSES}, got {task.num_classes}")
    if not all(isinstance(size, int) and size >= 1 for size in task.input_shape):
        raise MessageError(f"input_shape must have positive whole numbers, got {task.input_shape}")
    if math.prod(task.input_shape) > MOST_PIXELS:
        raise MessageError(f"an input may have {MOST_PIXELS} entries, got {task.input_shape}")


def check_work(answer: Answer, truth: Truth | None, task: Task) -> None:
    """Refuse claims of more samples or steps than an attack can take, or of others than an audit showed."""
    if not 0 <= answer.steps <= MOST_STEPS:
        raise MessageError(f"an attack unrolls 0 to {MOST_STEPS} local steps, got {answer.steps}")
    most = MOST_PIXELS // math.prod(task.input_shape)
    if not 0 <= answer.samples <= most:
        raise MessageError(f"an attack reconstructs 0 to {most} samples at a time, got {answer.samples}")
    if truth is not None and answer.samples not in (0, len(truth.labels)):
        raise MessageError(f"an audit showed {len(truth.labels)} samples, the answer says {answer.samples}")


def check_truth(truth: Truth, task: Task, most: int | None = None) -> None:
    """Refuse a truth that cannot be of this task, or has more samples than ``most``, the number requested."""
    inputs, labels = truth.inputs, truth.labels
    count = len(labels) if labels.ndim else 0
    if labels.ndim not in (1, 2) or labels.is_floating_point() or labels.is_complex() or not labels.numel():
        raise MessageError(
            f"labels must be whole numbers (N,) or (N, L), got {labels.dtype} {_shape(labels)}"
        )
    if bool((labels < IGNORED).any()) or bool((labels >= task.num_classes).any()):
        raise MessageError(f"labels must be below {task.num_classes}")
    if most is not None and count > most:
        raise MessageError(f"at most {most} samples were asked for, got {count}")
    for name, pixels in (("inputs", inputs), ("trained", truth.trained)):
        if pixels is None:
            continue
        fits = len(pixels) == count and pixels.shape[1:] == task.input_shape if pixels.ndim else False
        if not fits and not (pixels.ndim == 2 and pixels.shape == labels.shape):
            raise MessageError(f"{name} must be {count} of {task.input_shape}, got {_shape(pixels)}")
        if pixels.numel() > MOST_PIXELS or not bool(torch.isfinite(pixels).all()):
            raise MessageError(f"{name} must be finite and have at most {MOST_PIXELS} entries")


def check_candidates(records: Records, members: Tensor, task: Task, most: int) -> None:
    """Refuse candidates that cannot be of this task, or more of them than were asked for."""
    check_truth(Truth(records.inputs, records.labels), task, most)
    if records.labels.ndim != 1 or members.dtype != torch.bool or members.shape != records.labels.shape:
        raise MessageError(
            f"members must be true or false for each of {_shape(records.labels)} candidates, "
            f"got {members.dtype} {_shape(members)}"
        )


def check_like(what: str, tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> Update:
    """Return ``tensors`` in the order of ``expected``, whose names and shapes they must have."""
    if tensors.keys() != expected.keys():
        raise MessageError(f"{what} must have the names {sorted(expected)}, got {sorted(tensors)}")
    for name, tensor in expected.items():
        if tensors[name].shape != tensor.shape:
            raise MessageError(
                f"{what} must have {name} of shape {_shape(tensor)}, got {_shape(tensors[name])}"
            )
    return {name: tensors[name] for name in expected}


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
