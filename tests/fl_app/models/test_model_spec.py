"""A spec travels as JSON, hashes by content, and builds nothing that is not on the list."""

from __future__ import annotations

import hashlib
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fl_app.models
from fl_app.models import ModelSpec, build_model

SPEC = ModelSpec("fl_app.models.lenet_zhu", {"num_classes": 10, "in_shape": (3, 32, 32)})
SETTINGS = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=5,
    ),
    max_size=4,
)


@given(target=st.text(min_size=1), settings=SETTINGS)
def test_survives_json(target, settings):
    spec = ModelSpec(target, settings)
    again = ModelSpec.from_json(spec.to_json())
    assert again == spec
    assert again.hash == spec.hash


def test_hash_is_the_sha256_of_sorted_json():
    text = '{"settings":{"in_shape":[3,32,32],"num_classes":10},"target":"fl_app.models.lenet_zhu"}'
    assert SPEC.to_json() == text
    assert SPEC.hash == hashlib.sha256(text.encode()).hexdigest()


def test_neither_order_of_keys_nor_tuples_change_a_spec():
    other = ModelSpec("fl_app.models.lenet_zhu", {"in_shape": [3, 32, 32], "num_classes": 10})
    assert other == SPEC
    assert other.hash == SPEC.hash
    assert len({other, SPEC}) == 1


@pytest.mark.parametrize(
    "change", [{"num_classes": 11}, {"activation": "sigmoid"}, {"in_shape": [1, 32, 32]}]
)
def test_another_setting_is_another_hash(change):
    assert ModelSpec(SPEC.target, {**SPEC.settings, **change}).hash != SPEC.hash


def test_does_not_follow_changes_of_the_settings_it_was_made_from():
    settings = {"num_classes": 10, "in_shape": [3, 32, 32]}
    spec = ModelSpec(SPEC.target, settings)
    settings["num_classes"] = 3
    settings["in_shape"].append(7)
    assert spec == SPEC


def test_builds_every_public_model_and_nothing_else_of_the_package():
    images = (torch.rand(2, 3, 16, 16),)
    tokens = torch.tensor([[1], [1]])
    others = {"las": (torch.rand(2, 16, 4), tokens), "bert_mlm": (tokens,)}
    for name in fl_app.models.__all__:
        task = others.get(name, images)
        spec = ModelSpec(f"fl_app.models.{name}", {"num_classes": 10, "in_shape": tuple(task[0].shape[1:])})
        if name in ("MOST_ENTRIES", "ModelSpec", "build_model", "check_size", "manipulate_like"):
            with pytest.raises(ValueError, match="target must be one of"):
                build_model(spec)
        else:
            assert build_model(spec)(*task).flatten(0, -2).shape == (2, 10)


@pytest.mark.parametrize(
    "target", ["os.system", "torch.nn.Linear", "fl_app.models.settings.choose", "lenet_zhu"]
)
def test_lists_the_choices_when_the_target_is_not_one_of_them(target):
    with pytest.raises(ValueError) as caught:
        build_model(ModelSpec(target, {}), allowed=["my.model"])
    assert target in str(caught.value)
    for name in ("fl_app.models.convnet", "fl_app.models.resnet18", "my.model"):
        assert name in str(caught.value)


def test_builds_what_the_caller_allows_in_addition():
    spec = ModelSpec("torch.nn.Linear", {"in_features": 3, "out_features": 2})
    assert build_model(spec, allowed=["torch.nn.Linear"]).weight.shape == (2, 3)


@pytest.mark.parametrize("target", ["nodots", ".nodots"])
def test_a_target_without_a_module_is_told_the_form(target):
    with pytest.raises(ValueError, match=f"expected module.function, got '{target}'"):
        build_model(ModelSpec(target, {}), allowed=[target])


@pytest.mark.parametrize("target", ["no.such.module", "torch.nn.NoSuchLayer"])
def test_an_allowed_target_that_does_not_exist_is_a_value_error(target):
    with pytest.raises(ValueError, match=f"{target} is allowed, but cannot be imported"):
        build_model(ModelSpec(target, {}), allowed=[target])


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"num_classes": 10, "in_shape": [3, 32, 32], "depth": 4},
            "'depth'; its settings are num_classes, in_shape",
        ),
        ({"in_shape": [3, 32, 32]}, "'num_classes'"),
        ({"num_classes": "10", "in_shape": [3, 32, 32]}, "num_classes must be a positive integer, got '10'"),
        ({"num_classes": 10, "in_shape": None}, "in_shape must be three positive integers"),
        ({"num_classes": 10**18, "in_shape": [3, 32, 32]}, ""),
    ],
)
def test_bad_settings_are_a_value_error_with_target_and_reason(settings, reason):
    with pytest.raises(ValueError, match=f"fl_app.models.lenet_zhu: .*{reason}"):
        build_model(ModelSpec("fl_app.models.lenet_zhu", settings))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "[]",
        "7",
        b"\xff\xfe\x00",
        '{"target": "a"}',
        '{"target": "a", "settings": {}, "more": 1}',
        '{"target": 3, "settings": {}}',
        '{"target": "", "settings": {}}',
        '{"target": "a", "settings": []}',
        '{"target": "a", "settings": {"x": NaN}}',
        "[" * 100_000,
        None,
    ],
)
def test_junk_is_a_value_error(text):
    with pytest.raises(ValueError, match="ModelSpec: "):
        ModelSpec.from_json(text)


@given(st.binary(max_size=40) | st.text(max_size=40))
def test_any_bytes_are_a_spec_or_a_value_error(text):
    try:
        spec = ModelSpec.from_json(text)
    except ValueError:
        return
    assert json.loads(text)["target"] == spec.target


@pytest.mark.parametrize("value", [object(), {1: 2}, b"raw", torch.ones(2), float("inf")])
def test_a_setting_without_a_json_form_is_refused(value):
    with pytest.raises(ValueError, match="settings of a are not JSON"):
        ModelSpec("a", {"x": value})
