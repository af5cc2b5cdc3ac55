"""Defenses that are broken on purpose: a bench on which they do not fall is broken, too.

``fl-app bench benchmarks/broken_defenses.py:support_by_magnitude``
"""

from __future__ import annotations

from fl_app.defenses import Defense
from fl_app.transforms import chain, error_feedback, keep_topk, take_sign


def signs_without_randomness() -> Defense:
    """Send all signs; the sign of 0 is 0, which shows the units that are switched off."""
    return Defense(error_feedback(take_sign()))


def support_by_magnitude(share: float = 0.01) -> Defense:
    """Send one bit for each of the largest entries: where these lie tells most of the image."""
    return Defense(error_feedback(chain(largest=keep_topk(share), signs=take_sign())))
