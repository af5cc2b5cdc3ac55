"""Labels of a batch from negative entries of the output layer's gradient (Yin et al. 2021).

Equation (5) of Dang et al. 2021 (the label-leakage paper) restates it: with features
``a >= 0``, row ``j`` of the gradient is ``sum_n (p_nj - y_nj) a_n``, which has an
entry below zero only if some sample has label ``j``. A bias is the weight of a
feature that is always 1, so that for its gradient the premise cannot fail.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from attacks.base import LabelAttack, LabelSet, StepListener
from attacks.labels.output_layer import bias_gradient, output_gradient
from fl_app.types import Observation


def yin_labels(weight: str | None = None, told: bool = True) -> LabelAttack:
    """Recover the distinct labels of a batch; ``weight`` names the output layer's matrix.

    Returns the classes whose row has a negative minimum, the most negative first; with a ``told`` batch
    size, at most as many as samples. The signs do not reveal how often each class occurs.
    """

    def attack(obs: Observation, *, on_step: StepListener | None = None) -> LabelSet:
        gradient = output_gradient(obs, weight, who="yin_labels")
        return lowest(gradient.rows, obs.batch_size if told else None, gradient.notes)

    return attack


def bias_labels(weight: str | None = None) -> LabelAttack:
    """Recover the distinct labels of a batch from the bias beside ``weight``, the output layer's matrix.

    A negative entry of an exact gradient, of one step or of many, is that of a label: none is named wrongly.
    A label is missed if the model expects its class more often than it occurs.
    """

    def attack(obs: Observation, *, on_step: StepListener | None = None) -> LabelSet:
        name = output_gradient(obs, weight, who="bias_labels").name
        bias = bias_gradient(obs, name)
        if bias is None:
            raise ValueError(f"bias_labels: the update must have the bias beside {name}, got {[*obs.update]}")
        absent = int((bias == 0).sum())
        notes = [f"{absent} of {len(bias)} biases were not sent"] if absent else []
        return lowest(bias[:, None], obs.batch_size, notes)

    return attack


def lowest(rows: Tensor, batch_size: int | None, notes: Sequence[str]) -> LabelSet:
    """Return the classes with a negative entry, the most negative first, and at most ``batch_size``."""
    said = [*notes]
    minima, order = rows.amin(dim=1).sort(stable=True)
    negative = int((minima < 0).sum())
    if negative == 0:
        said.append("no class has a negative entry: the label is a guess")
    limit = batch_size if batch_size is not None else len(order)
    if negative > limit:
        said.append(
            f"{negative} classes have a negative entry, but the batch has {limit} samples: "
            "the features are not non-negative, or the gradient was defended"
        )
    elif batch_size is not None and 0 < negative < limit:
        said.append(f"{negative} classes for {limit} samples: labels repeat, or some were not found")
    return LabelSet(labels=order[: max(1, min(negative, limit))], notes=said)
