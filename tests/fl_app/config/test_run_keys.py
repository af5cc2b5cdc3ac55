import tomllib

import pytest

from fl_app.config.compose import ConfigError, compose
from fl_app.config.run_keys import KEYS, is_auto, overrides_of


def test_the_apps_config_has_every_key_and_leaves_all_settings_alone(repository):
    table = tomllib.loads((repository / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert table.keys() == {"overrides", *KEYS}
    assert compose(overrides_of(table, 10)) == compose("")


@pytest.mark.parametrize(
    ("config", "setting", "value"),
    [
        ({"num-server-rounds": 7}, "rounds", 7),
        ({"lr": 0.3, "overrides": "rounds=2"}, "lr", 0.3),
        ({"defense": "adgp"}, "choices.defense", "adgp"),
        ({"attack": "none"}, "choices.attack", "none"),
        ({"model": "lenet_sigmoid"}, "choices.model", "lenet_sigmoid"),
        ({"data": "random"}, "choices.data", "random"),
        ({"seed": 3, "defense": ""}, "seed", 3),
        ({"clients": "auto"}, "clients", 4),
        ({"clients": 6}, "clients", 6),
        ({"clients": "auto", "overrides": "clients=9"}, "clients", 9),
    ],
)
def test_a_key_sets_what_it_names(config, setting, value):
    cfg = compose(overrides_of(config, 4))
    for part in setting.split("."):
        cfg = cfg[part]
    assert cfg == value


@pytest.mark.parametrize(("key", "text"), [("lr", "lr=0.1"), ("num-server-rounds", "rounds=3")])
def test_a_setting_that_is_given_twice_is_refused(key, text):
    with pytest.raises(ConfigError, match=key):
        overrides_of({key: 1, "overrides": text}, None)


def test_nodes_are_counted_only_if_nobody_says_how_many():
    assert is_auto({"clients": "auto"})
    assert not is_auto({"clients": "auto", "overrides": "clients=3"})
    assert not is_auto({"overrides": "rounds=3"})


def test_a_value_with_other_signs_is_one_value():
    cfg = compose(overrides_of({"lr": "0.1 attack=none"}, None))
    assert cfg.lr == "0.1 attack=none"  # which no schedule takes
    assert cfg.choices.attack != "none"
