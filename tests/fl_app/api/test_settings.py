"""Python values as Hydra overrides: Hydra reads the same values back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fl_app.api.settings import as_overrides, check_single
from fl_app.config.compose import ConfigError, compose, join_overrides, parse_overrides

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12) | st.sampled_from(
    [
        "true",
        "null",
        "12",
        "1e3",
        "",
        " a",
        "a b",
        "a,b",
        "[1]",
        "{a:1}",
        "it's",
        'a"b',
        "c\\",
        "${x}",
        "x=y",
        "(a)",
    ]
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
NAMES = st.sampled_from(["a", "_target_", "b2"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, min_size=1, max_size=3)
)


@example(value=["\\"])
@example(value=["a", "inf", "-", "é", "a:b"])
@given(value=st.lists(VALUES, max_size=3) | SCALARS)
def test_hydra_reads_the_value_that_python_has(value: Any):
    (text,) = as_overrides({"key": value})
    (parsed,) = parse_overrides([text])
    assert parsed.key_or_group == "key"
    assert not parsed.is_sweep_override()
    read = plain(parsed.value())
    assert read == value
    assert type(read) is type(value)


def plain(value: Any) -> Any:
    """Return a value without Hydra's marks of quotes."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return getattr(value, "text", value)


def test_a_dict_and_two_underscores_reach_below():
    by_dict = as_overrides({"attack": {"steps": 5, "grant": {"labels": False}}, "rounds": 3})
    by_name = as_overrides({"attack__steps": 5, "attack__grant__labels": False, "rounds": 3})
    assert by_dict == by_name == ["attack.steps=5", "attack.grant.labels=false", "rounds=3"]
    cfg = compose(join_overrides([*by_dict, *as_overrides({"attack__rounds": (1, 3), "threads": None})]))
    assert (cfg.attack.steps, cfg.attack.grant.labels, cfg.attack.rounds, cfg.threads) == (
        5,
        False,
        [1, 3],
        None,
    )


def test_a_group_is_chosen_and_its_settings_are_set():
    cfg = compose(join_overrides(as_overrides({"defense": "topk", "run_dir": Path("a b/it's")})))
    assert (cfg.choices.defense, cfg.run_dir) == ("topk", "a b/it's")


@pytest.mark.parametrize("value", [range(3), [{"a b": 1}], [object()]])
def test_a_value_that_no_config_has_is_refused(value):
    with pytest.raises(ConfigError, match=r"rounds: expected"):
        as_overrides({"rounds": value})


def test_several_values_are_refused():
    check_single(["rounds=[1,2]"], who="x")
    with pytest.raises(ConfigError, match="x: expected one value in rounds=1,2"):
        check_single(["rounds=1,2"], who="x")
