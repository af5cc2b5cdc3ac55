"""A defense under test comes by name, from a function, or from a file; mistakes say what was expected."""

import pytest

from fl_app.bench.sources import FALLBACK, overrides_of
from fl_app.bench.subject import subject_of
from fl_app.config.compose import ConfigError, compose, join_overrides

BROKEN = "benchmarks/broken_defenses.py"


def test_a_choice_with_settings():
    subject = subject_of("dgp", ["defense.k1=0.1"])
    assert subject.overrides == ("defense=dgp", "defense.k1=0.1")
    assert subject.name == "dgp k1=0.1"
    assert (subject.code, subject.summed) == ("", False)


def test_a_choice_under_masks():
    subject = subject_of("secure_signs", ["secagg=on"])
    assert subject.summed
    assert subject.name == "secure_signs secagg=on"


def test_a_function_in_a_file(repository, monkeypatch):
    subject = subject_of(f"{repository / BROKEN}:support_by_magnitude", ["+defense.share=0.02"])
    config = compose(join_overrides(list(subject.overrides)))
    assert config.defense._target_ == "broken_defenses.support_by_magnitude"
    assert subject.name == "support_by_magnitude share=0.02"
    assert len(subject.code) == 12


@pytest.mark.parametrize("text", ["fl_app.transforms:take_sign", "fl_app.transforms.take_sign"])
def test_a_function_by_its_name(text):
    assert subject_of(text).overrides == ("defense=custom", "defense._target_=fl_app.transforms.take_sign")


def test_a_yaml_file(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("_target_: fl_app.transforms.keep_topk\nk: 0.3\n")
    subject = subject_of(str(file))
    assert compose(join_overrides(list(subject.overrides))).defense.k == 0.3
    assert subject.name == "mine"


def test_other_code_is_another_subject(tmp_path, monkeypatch):
    file = tmp_path / "own_defense_of_a_test.py"
    file.write_text("from fl_app.transforms import keep_topk\n\n\ndef mine():\n    return keep_topk(0.1)\n")
    first = subject_of(f"{file}:mine").code
    file.write_text("from fl_app.transforms import keep_topk\n\n\ndef mine():\n    return keep_topk(0.2)\n")
    assert subject_of(f"{file}:mine").code != first


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("dpg", [], "did you mean dgp"),
        ("nothing.at:all", [], "cannot be imported"),
        ("fl_app.transforms:nothing", [], "cannot be imported"),
        ("fl_app.transforms:__all__", [], "is no function"),
        ("missing.py:x", [], "no such file"),
        ("missing.yaml", [], "cannot be read"),
        ("dgp", ["rounds=3"], "expected overrides of defense, dp, secagg"),
        ("dgp", ["defense.k3=1"], "k3"),
        ("dgp", ["defense.k1=2"], "k1"),
    ],
)
def test_mistakes(text, settings, message):
    with pytest.raises(ConfigError, match=message):
        subject_of(text, settings)


def test_a_file_without_a_function_or_a_target(repository, tmp_path):
    with pytest.raises(ConfigError, match="name the function"):
        subject_of(str(repository / BROKEN))
    (tmp_path / "x.yaml").write_text("k: 1\n")
    with pytest.raises(ConfigError, match="_target_"):
        subject_of(str(tmp_path / "x.yaml"))


def test_data_that_is_not_there_is_none(tmp_path):
    for name in ("cifar10", "pneumonia"):
        assert overrides_of(name, tmp_path) is None
    assert overrides_of(FALLBACK, tmp_path) == ["data=album"]
    (tmp_path / "cifar10" / "train").mkdir(parents=True)
    assert overrides_of("cifar10", tmp_path)[0] == "data=imagefolder"
