"""Former spellings of settings are refused, and the reason names the spelling of today."""

from copy import deepcopy
from functools import cache

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf

from fl_app.config.compose import (
    ConfigError,
    UnknownName,
    compose,
    compose_unresolved,
    join_overrides,
    top_keys,
)
from fl_app.config.old_names import OLD_NAMES, explain_old_key, find_old_key
from fl_app.config.trust import Trust, compose_sent

DEFENSE_OF = {
    "chosen_by": "fl_top",
    "k": "adgp",
    "location": "adgp",
    "min_size": "adgp",
    "noisy": "outpost",
    "public_lr": "fl_top",
    "public_steps": "fl_top",
    "share": "fl_top",
    "voters": "adgp",
}
"""A defense that has the setting; all others of `OLD_NAMES` belong to the default, or name their own."""
ATTACK_OF = {"statistics": "gi", "known_images": "rob"}
MOVED = {
    "defense.dgp.inner.k1": "defense.k1",
    "defense.adgp.inner.min_size": "defense.min_size",
    "defense.topk.inner.k": "defense.share",
    "defense.topk.enabled": "defense.error_feedback",
    "defense.outpost.inner.share": "defense.noisy",
    "defense.outpost.inner.prune": "defense.prune",
    "defense.gaussian.std": "defense.std",
    "attack.method.steps": "attack.steps",
    "share": "defense.share",
}


@cache
def composed(*choices: str) -> DictConfig:
    return compose_unresolved(list(choices))


def base_of(old: str) -> DictConfig:
    """Return a config in which the former key had a meaning."""
    name = OLD_NAMES[old].rpartition(".")[2]
    own = old.split(".")[1] if old.startswith("defense.") else DEFENSE_OF.get(name, "dgp")
    return deepcopy(composed(f"defense={own}", f"attack={ATTACK_OF.get(name, 'ig')}"))


@pytest.mark.parametrize("old", OLD_NAMES)
def test_a_former_key_is_found_and_its_place_is_taken(old):
    config = base_of(old)
    assert find_old_key(config) is None
    assert OmegaConf.select(config, OLD_NAMES[old], default="missing") != "missing"
    OmegaConf.update(config, old, 1, force_add=True)
    found = find_old_key(config)
    assert found is not None
    assert old.startswith(found)
    assert explain_old_key(old) == f"{old}: is now {OLD_NAMES[old]}"


@pytest.mark.parametrize("old", MOVED)
def test_an_override_of_a_former_key_is_refused_with_the_key_of_today(old):
    choice = f"defense={old.split('.')[1]}" if old.startswith("defense.") else "defense=dgp"
    for sign in ("", "++"):
        with pytest.raises(UnknownName) as refused:
            compose(f"{choice} {sign}{old}=1")
        assert str(refused.value) == f"{old}: is now {MOVED[old]}"


def test_no_key_of_today_is_a_former_one():
    assert not set(top_keys()) & OLD_NAMES.keys()
    assert all(explain_old_key(new) is None for new in OLD_NAMES.values())


def test_a_file_with_a_former_key_is_refused_too(tmp_path):
    (tmp_path / "experiment").mkdir()
    file = tmp_path / "experiment" / "mine.yaml"
    file.write_text("# @package _global_\n" + yaml.safe_dump({"error_feedback": False, "rounds": 3}))
    searched = [f"hydra.searchpath=[file://{tmp_path}]", "experiment=mine"]
    with pytest.raises(ConfigError, match=r"error_feedback: is now defense\.error_feedback"):
        compose(join_overrides(searched))
    file.write_text("# @package _global_\n" + yaml.safe_dump({"defense": {"error_feedback": False}}))
    compose.cache_clear()
    assert compose(join_overrides(searched)).defense.error_feedback is False


def test_a_part_of_ones_own_may_have_such_keys():
    own = "defense=custom defense._target_=lab.mine +defense.dgp=1 +defense.topk={inner:2}"
    assert compose(own).defense.dgp == 1
    steps = "defense=custom defense._target_=fl_app.transforms.chain +defense.dgp._target_=lab.mine"
    assert compose(steps).defense.dgp._target_ == "lab.mine"
    assert compose("strategy=custom strategy._target_=lab.Mine +strategy.k=3").strategy.k == 3


def test_a_node_is_told_the_new_name_of_what_its_operator_fixed():
    with pytest.raises(ConfigError, match=r"node-config.*defense\.dgp\.inner\.k1: is now defense\.k1"):
        compose_sent("", Trust(own="defense.dgp.inner.k1=0.1"), places=False)
