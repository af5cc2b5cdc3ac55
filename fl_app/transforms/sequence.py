"""Chain of named transforms."""

from __future__ import annotations

from typing import cast

from fl_app.transforms.transform import State, Transform
from fl_app.types import RoundContext, Update


def chain(**steps: Transform) -> Transform:
    """Apply ``steps`` in the given order; without steps, this is the identity."""
    for name, step in steps.items():
        if not isinstance(step, Transform):
            raise TypeError(f"chain: step {name!r} must be a Transform, got {type(step).__name__}")

    def init(update: Update) -> State:
        return {name: step.init(update) for name, step in steps.items()}

    def apply(update: Update, state: State, ctx: RoundContext) -> tuple[Update, State]:
        after: State = {}
        for name, step in steps.items():
            update, after[name] = step.apply(update, cast(State, state[name]), ctx)
        return update, after

    return Transform(
        init,
        apply,
        released=any(step.released for step in steps.values()),
        located=next((step.located for step in steps.values() if step.located is not None), None),
        traces=tuple(trace for step in steps.values() for trace in step.traces),
        drawn=next((step.drawn for step in reversed(steps.values()) if step.drawn is not None), None),
    )
