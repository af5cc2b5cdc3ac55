import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from attacks.optimisation import inverting_gradients


def group(repository, name, **changes):
    cfg = OmegaConf.create({"attack": OmegaConf.load(repository / "conf" / "attack" / f"{name}.yaml")})
    return OmegaConf.merge(cfg, {"attack": changes}).attack


@pytest.mark.parametrize("name", ["none", "ig"])
def test_an_attack_says_whom_it_attacks_and_what_it_is_granted(repository, name):
    cfg = group(repository, name)
    assert cfg.name == name
    assert isinstance(cfg.grant.labels, bool)
    assert len(cfg.rounds) == len(cfg.clients) == (0 if name == "none" else 1)


def test_the_group_has_the_defaults_of_the_library(repository):
    # a run attacks in both forms; the library's attack has one
    assert instantiate(group(repository, "ig", adaptive=False).method) == inverting_gradients()


def test_settings_at_the_top_of_the_group_reach_the_method(repository):
    changed = group(repository, "ig", steps=7, restarts=2, tv=0.5, adaptive=True)
    assert instantiate(changed.method) == inverting_gradients(steps=7, restarts=2, tv=0.5, adaptive=True)
