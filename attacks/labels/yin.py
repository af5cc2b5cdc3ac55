"""The labels of a batch, from negative entries of the output layer's gradient (Yin et al. 2021).

Equation (5) of Dang et al. 2021 (the label-leakage paper) restates it: with features
``a >= 0``, row ``j`` of the gradient is ``sum_n (p_nj - y_nj) a_n``, which has an
entry below zero only if some sample has label ``j``.
"""

from __future__ import annotations

from attacks.base import LabelAttack, LabelSet, StepListener
from attacks.labels.output_layer import output_gradient
from fl_app.types import Observation


def yin_labels(weight: str | None = None) -> LabelAttack:
    """Recover the distinct labels of a batch; ``weight`` names the output layer's matrix.

    Returns the classes whose row has a negative minimum, the most negative first, and
    no more than the batch has samples. How often each occurs, the signs do not say.
    """

    def attack(obs: Observation, *, on_step: StepListener | None = None) -> LabelSet:
        gradient = output_gradient(obs, weight, who="yin_labels")
        minima, order = gradient.rows.amin(dim=1).sort(stable=True)
        notes = list(gradient.notes)
        negative = int((minima < 0).sum())
        if negative == 0:
            notes.append("no row has a negative entry: the label is a guess")
        limit = obs.batch_size if obs.batch_size is not None else len(order)
        if negative > limit:
            notes.append(
                f"{negative} rows have a negative entry, but the batch has {limit} samples: "
                "the features are not non-negative, or the gradient was defended"
            )
        elif obs.batch_size is not None and 0 < negative < limit:
            notes.append(f"{negative} classes for {limit} samples: labels repeat, or some were not found")
        return LabelSet(labels=order[: max(1, min(negative, limit))], notes=notes)

    return attack
