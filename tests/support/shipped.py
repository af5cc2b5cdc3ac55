"""Choices that ``conf/`` ships, and traits that its defenses state, for tests that go over all of them."""

from __future__ import annotations

from functools import lru_cache

from fl_app.config.build import client_parts
from fl_app.config.compose import group_choices
from fl_app.config.trust import WHOLE
from fl_app.defenses import Defense


def shipped(group: str) -> list[str]:
    """Return the choices of a group that name a callable themselves."""
    return [name for name in group_choices(group) if name != "custom"]


@lru_cache
def defense_of(name: str) -> Defense:
    return client_parts(
        f"data.train_per_class=4 data.test_per_class=2 clients=4 defense={name}", WHOLE
    ).defense


def sends_vectors(name: str) -> bool:
    return defense_of(name).scheme is not None


def hides_nothing(name: str) -> bool:
    return defense_of(name).baseline == name
