"""Settings in which attacks of one name differ, as a reader tells them apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fl_app.report.data.comparison import tell_apart
from fl_app.results import Attack

_UNKNOWN = "settings not stated"


def differing_settings(attacks: Iterable[Attack]) -> Callable[[Attack], str]:
    """Return a function from an attack to its settings that others of its name do not share.

    Such as `steps=500`; an empty text if there are none.
    """
    kinds = {(attack.name, attack.settings_hash): attack for attack in attacks}
    stated = {kind: attack for kind, attack in kinds.items() if attack.settings}
    # the form is named elsewhere
    shown = [{k: v for k, v in attack.settings.items() if k != "adaptive"} for attack in stated.values()]
    apart = dict(zip(stated, tell_apart((name for name, _ in stated), shown), strict=True))
    names = {name for name, _ in stated}

    def words(attack: Attack) -> str:
        if not attack.settings:
            return _UNKNOWN if attack.name in names else ""
        found = apart[attack.name, attack.settings_hash]
        return ", ".join(f"{key}={value}" for key, value in found.items())

    return words
