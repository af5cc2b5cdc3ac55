"""Attacks on labels: classes of the training samples, read off the output layer's gradient."""

from attacks.labels.counts import count_samples, fill_batch
from attacks.labels.idlg import idlg_label
from attacks.labels.output_layer import OutputGradient, output_gradient
from attacks.labels.rlg import rlg
from attacks.labels.yin import bias_labels, yin_labels

__all__ = [
    "OutputGradient",
    "bias_labels",
    "count_samples",
    "fill_batch",
    "idlg_label",
    "output_gradient",
    "rlg",
    "yin_labels",
]
