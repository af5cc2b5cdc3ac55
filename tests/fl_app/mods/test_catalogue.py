"""The catalogue of mods agrees with the defenses that `conf/defense` sets up."""

import pytest
import yaml
from hydra.utils import instantiate

from fl_app.defenses import protect
from fl_app.mods import MODS, NO_MOD, mod_named
from fl_app.mods.fingerprint import fingerprint

NO_FILE = {"clip_and_noise"}
NOT_LISTED = {"custom"}


def test_every_defense_is_a_mod_or_says_why_it_is_none(repository):
    files = {path.stem for path in (repository / "conf" / "defense").glob("*.yaml")} - NOT_LISTED
    assert files == (set(MODS) - NO_FILE) | set(NO_MOD)
    assert not set(MODS) & set(NO_MOD)


@pytest.mark.parametrize("name", sorted(set(MODS) - NO_FILE - {"none"}))
def test_defaults_are_those_of_the_configuration(repository, name):
    settings = yaml.safe_load((repository / "conf" / "defense" / f"{name}.yaml").read_text())
    built = instantiate(settings)
    transform = getattr(built, "transform", built)
    assert fingerprint(MODS[name]().transform) == fingerprint(transform)
    assert protect(defense=transform).transform.traces == MODS[name]().transform.traces


def test_a_fingerprint_differs_with_any_setting():
    marks = {
        mod_named(name, **settings).defense
        for name, settings in [
            ("topk", {"k": 0.1}),
            ("topk", {"k": 0.2}),
            ("topk", {"k": 0.2, "error_feedback": False}),
            ("dgp", {"k1": 0.1}),
            ("dgp", {"k1": 0.2}),
            ("dgp", {"min_size": 5}),
            ("sign", {}),
            ("sign", {"scale": False}),
            ("gaussian", {"std": 0.1}),
            ("gaussian", {"std": 0.2}),
        ]
    }
    assert len(marks) == 10
    assert mod_named("dgp").defense == mod_named("dgp").defense


@pytest.mark.parametrize(("name", "settings"), [("soteria", {}), ("dpg", {}), ("topk", {"kk": 1})])
def test_unknown_names_and_settings_are_refused(name, settings):
    with pytest.raises(ValueError):
        mod_named(name, **settings)
