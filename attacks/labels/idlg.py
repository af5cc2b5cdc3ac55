"""Label of a batch of one from the signs of the output layer's gradient (iDLG, Zhao et al. 2020)."""

from __future__ import annotations

from attacks.base import LabelAttack, LabelSet, StepListener
from attacks.labels.output_layer import output_gradient, whole_bias
from fl_app.types import Observation


def idlg_label(weight: str | None = None) -> LabelAttack:
    """Recover the label of a batch of one; ``weight`` names the output layer's matrix.

    With softmax cross-entropy, row ``i`` of the gradient is ``(p_i - y_i) a``. Only
    the true row has ``p_i - y_i < 0``, and ``a >= 0`` after a ReLU or a sigmoid,
    so that row alone sums to a negative number. The gradient of the bias is
    ``p_i - y_i`` itself: where all of it was sent, no premise on ``a`` is needed.
    """

    def attack(obs: Observation, *, on_step: StepListener | None = None) -> LabelSet:
        gradient = output_gradient(obs, weight, who="idlg_label")
        bias = whole_bias(obs, gradient.name)
        sums = gradient.rows.sum(dim=1) if bias is None else bias
        notes = list(gradient.notes)
        if obs.batch_size not in (None, 1):
            notes.append(f"the batch has {obs.batch_size} samples: one label at most is recovered")
        negative = int((sums < 0).sum())
        if negative != 1:
            notes.append(
                f"{negative} {'rows sum to a negative number' if bias is None else 'biases are negative'} "
                "instead of one: not a batch of one, features below zero, or a defended gradient"
            )
        return LabelSet(labels=sums.argmin().view(1), notes=notes)

    return attack
