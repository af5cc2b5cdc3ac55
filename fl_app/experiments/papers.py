"""Papers whose tables and figures we reproduce, in the order of the site."""

from __future__ import annotations

from collections.abc import Iterable

PAPERS = {
    "dgp": "Xue et al., AAAI 2024: Revisiting gradient pruning",
    "adgp": "Shielding federated learning: aligned dual gradient pruning",
    "fltop": "Kerkouche et al., UAI 2021: Constrained differentially private federated learning",
    "rlg": "Dang et al., NeurIPS 2021: Revealing and protecting labels in distributed training",
    "dlg": "Zhu et al., NeurIPS 2019: Deep leakage from gradients",
}

OWN = "own"
"""Key of studies of no paper."""


def paper_name(key: str) -> str:
    """Return a paper's full name, or the key of an unknown paper."""
    return "Questions that the papers leave open" if key == OWN else PAPERS.get(key, key)


def in_order(keys: Iterable[str]) -> list[str]:
    """Return the distinct papers in display order."""
    present = set(keys)
    return [*(key for key in PAPERS if key in present), *sorted(present - PAPERS.keys())]
