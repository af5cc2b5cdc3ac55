"""Signs on a common random support, with error feedback: few bits, at positions that say nothing."""

from __future__ import annotations

from fl_app.defenses.defense import Defense
from fl_app.transforms import error_feedback as with_feedback
from fl_app.transforms import send_common_signs


def common_signs(
    first: float = 1.0,
    hidden: float = 0.05,
    output: float = 0.3,
    biases: float = 1.0,
    seed: int = 0,
    flip: float = 0.0,
    magnitude: float | None = None,
    error_feedback: bool = True,
    decay: float = 1.0,
    jump: float | None = None,
) -> Defense:
    """Send one bit for each of a few public random entries (`send_common_signs`).

    ``decay`` and ``jump`` let the error feedback forget.
    """
    signs = send_common_signs(first, hidden, output, biases, seed, flip, magnitude)
    return Defense(with_feedback(signs, enabled=error_feedback, decay=decay, jump=jump))
