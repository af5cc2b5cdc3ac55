"""Identity transform: the undefended baseline."""

from __future__ import annotations

from fl_app.transforms.transform import Transform, stateless


def identity() -> Transform:
    """Send the update unchanged."""
    return stateless(lambda update, ctx: dict(update), traces=())
