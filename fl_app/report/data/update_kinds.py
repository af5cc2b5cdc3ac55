"""Which update was attacked: each kind in plain words, and which of them is what the server really saw."""

from __future__ import annotations

from fl_app.results import Attack, Run

WITHOUT, WITH = "without the defense", "with the defense"
MASKED = "one client under masks"
TRAINED = "what was trained on"
_WORDS = {"undefended": WITHOUT, "defended": WITH, "masked": MASKED, "trained": TRAINED}
_WORDS_OF_NONE = {"undefended": "raw update", "defended": "as sent, no defense"}


def of_update(run: Run, update: str) -> list[Attack]:
    """Return the attacks on one kind of update, such as `undefended`."""
    return [attack for attack in run.comparisons if attack.update == update]


def as_sent(run: Run) -> list[Attack]:
    """Return the attacks on what the server saw of clients: under secure aggregation, their sums."""
    return of_update(run, "sum") or of_update(run, "defended")


def is_sent(attack: Attack) -> bool:
    """Whether the attacked update is one that the server saw."""
    return attack.update in ("sum", "defended")


def update_words(run: Run, attack: Attack) -> str:
    """Return which update was attacked, in plain words."""
    if attack.update == "sum":
        return f"the sum of {attack.summed or 'all'} clients"
    words = _WORDS_OF_NONE if run.defense == "none" else _WORDS
    return words.get(attack.update, attack.update)


def is_raw(words: str) -> bool:
    """Whether `update_words` are those of an update before any defense."""
    return words.startswith((_WORDS["undefended"], _WORDS_OF_NONE["undefended"]))
