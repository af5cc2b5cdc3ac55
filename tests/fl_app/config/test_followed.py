"""A value that several parts need has one owner: nothing sets the others apart from it."""

import pytest
from federations import SMALL
from omegaconf import OmegaConf

from fl_app.config.build import client_parts, server_parts
from fl_app.config.compose import CONF_DIR, ConfigError, compose, group_choices
from fl_app.config.conf_files import package_of
from fl_app.config.entries import entries_of
from fl_app.config.followed import REFERENCE
from fl_app.config.trust import WHOLE

GROUPS = ("attack", "defense", "dp", "schedule", "secagg", "strategy")
PRIVATE = "defense=fl_top dp=client"


def references() -> list[tuple[str, str, str]]:
    """Return each key that is a reference in ``conf/``, with its owner and a choice that has it."""
    found = {}
    for group in GROUPS:
        for name in group_choices(group):
            file = CONF_DIR / group / f"{name}.yaml"
            content = OmegaConf.to_container(OmegaConf.load(file))
            for entry in entries_of(content, package_of(file)):
                if isinstance(entry.value, str) and (match := REFERENCE.match(entry.value)):
                    found[entry.key, match[1]] = f"{group}={name}"
    return [(choice, key, owner) for (key, owner), choice in found.items()]


def test_the_files_have_such_settings():
    assert ("dp=client", "dp.min_clients", "secagg.min_clients") in references()
    assert len(references()) >= 8


@pytest.mark.parametrize(("choice", "key", "owner"), references())
def test_no_override_sets_what_follows_another_setting(choice, key, owner):
    needs = {"strategy=custom": "strategy._target_=lab.Mine", "dp=client": "defense=fl_top"}.get(choice, "")
    with pytest.raises(ConfigError) as refused:
        compose(f"{choice} {needs} {key}=7")
    assert str(refused.value).startswith(f"{key}: follows {owner}")


@pytest.mark.parametrize(
    "override", ["~training.batch_size", "++training.batch_size=3", "training={batch_size:3}"]
)
def test_no_other_way_of_writing_it_does_either(override):
    with pytest.raises(ConfigError, match=r"training\.batch_size: follows batch_size"):
        compose(override)


def test_the_owner_moves_all_that_follow_it():
    cfg = compose(f"{PRIVATE} batch_size=7 rounds=9 fraction=0.5 secagg=on secagg.min_clients=4")
    assert (cfg.training.batch_size, cfg.dp.rounds, cfg.dp.rate) == (7, 9, 0.5)
    assert (cfg.dp.thresholds, cfg.dp.min_clients) == (True, 4)


def test_without_secure_aggregation_it_has_no_settings_that_reach_privacy():
    cfg = compose(PRIVATE)
    assert dict(cfg.secagg) == {"enabled": False}
    assert not cfg.dp.thresholds
    with pytest.raises(ConfigError, match=r"secagg\.min_clients: unknown key"):
        compose(f"{PRIVATE} secagg.min_clients=5")


def test_another_callable_takes_settings_of_its_own():
    cfg = compose("training._target_=lab.train training.batch_size=3")
    assert cfg.training.batch_size == 3


@pytest.mark.parametrize(
    ("defense", "name"),
    [("adgp", "k"), ("adgp", "voters"), ("fl_top", "share"), ("fl_top", "public_lr"), ("fl_cs", "share")],
)
def test_a_strategy_never_differs_from_its_defense(defense, name):
    assert name not in compose(f"defense={defense}").strategy
    with pytest.raises(ConfigError, match=rf"strategy\.{name}: is now defense\.{name}"):
        compose(f"defense={defense} +strategy.{name}=0.1")
    own = f"{SMALL} defense={defense} strategy._target_=own_parts.HalfSteps +strategy.{name}=0.1"
    with pytest.raises(ConfigError, match=rf"strategy\.{name}: .* defense\.{name}"):
        server_parts(own, WHOLE)


def test_server_and_clients_of_adgp_have_the_same_share():
    text = f"{SMALL} defense=adgp defense.k=0.1 defense.min_size=9"
    assert client_parts(text).defense.transform.located == pytest.approx(0.2)
    query = server_parts(text).strategy._query
    assert (query.share, query.min_size) == (pytest.approx(0.2), 9)
