"""Policies as operators write them: strict, and refused by name."""

import os

import pytest

from fl_app.policy import DEFAULT, Policy, in_words, load_policy

TOML = """
models = ["lenet_zhu"]
min_batch = 16
metrics = ["loss"]

[[defenses]]
name = "prune_dual"
at_least = { k2 = 0.75 }
at_most = { k1 = 0.05 }

[orders]
total = 1000

[secure_aggregation]
required = false

[dp]
epsilon = 8.0
delta = 1e-5

[audit]
allowed = true
runs = [7]
samples = 1
"""
YAML = """
models: [lenet_zhu]
min_batch: 16
metrics: [loss]
defenses: [{name: prune_dual, at_least: {k2: 0.75}, at_most: {k1: 0.05}}]
orders: {total: 1000}
secure_aggregation: {required: false}
dp: {epsilon: 8.0, delta: 0.00001}
audit: {allowed: true, runs: [7], samples: 1}
"""


def written(folder, text: str, name: str = "policy.toml"):
    path = folder / name
    path.write_text(text)
    return path


def test_toml_and_yaml_say_the_same(tmp_path):
    one, other = load_policy(written(tmp_path, TOML)), load_policy(written(tmp_path, YAML, "policy.yaml"))
    assert one == other
    assert (one.min_batch, one.orders.total, one.dp.epsilon, one.audit.runs) == (16, 1000, 8.0, [7])


def test_an_empty_file_is_the_default(tmp_path):
    assert load_policy(written(tmp_path, "")) == DEFAULT == Policy()
    assert load_policy(written(tmp_path, "", "policy.yml")) == DEFAULT
    assert (DEFAULT.min_batch, DEFAULT.metrics, DEFAULT.orders.per_round) == (8, [], 1)
    assert not DEFAULT.audit.allowed


@pytest.mark.parametrize(
    ("text", "key", "got"),
    [
        ("min_bach = 8", "min_bach", ""),
        ('min_batch = "8"', "min_batch", "'8'"),
        ("min_batch = 0", "min_batch", "0"),
        ("min_batch = true", "min_batch", "True"),
        ("min_batch = 8.5", "min_batch", "8.5"),
        ('buffers = "false"', "buffers", "'false'"),
        ("buffers = 0", "buffers", "0"),
        ('[audit]\nallowed = "false"', "audit.allowed", "'false'"),
        ("[audit]\nbundles = ['../x']", "audit.bundles.0", "'../x'"),
        ("[dp]\nepsilon = -1.0", "dp.epsilon", "-1.0"),
        ("[dp]\nepsilon = nan", "dp.epsilon", "nan"),
        ("[dp]\nmin_sigma = inf", "dp.min_sigma", "inf"),
        ('[dp]\nunit = "person"', "dp.unit", "'person'"),
        ("[[defenses]]\nat_least = {k = 1.0}", "defenses.0.name", ""),
        ("[orders]\nper_run = 1", "orders.per_run", ""),
    ],
)
def test_a_wrong_key_or_value_is_named_with_the_file(text, key, got, tmp_path):
    path = written(tmp_path, text)
    with pytest.raises(ValueError, match="policy") as refused:
        load_policy(path)
    assert f"{path}: {key}: " in str(refused.value)
    assert got in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text"), [("p.toml", "= 1"), ("p.yaml", "[1"), ("p.yaml", "- 1"), ("p.json", "")]
)
def test_what_is_no_policy_is_refused(name, text, tmp_path):
    with pytest.raises(ValueError, match=name):
        load_policy(written(tmp_path, text, name))
    with pytest.raises(ValueError, match="cannot be read"):
        load_policy(tmp_path / "nowhere.toml")


def test_every_limit_is_said_in_words(tmp_path):
    said = " ".join(in_words(load_policy(written(tmp_path, TOML))))
    for expected in (
        "lenet_zhu",
        "prune_dual",
        "k2 at least 0.75",
        "16",
        "1000",
        "loss",
        "epsilon 8",
        "run 7",
    ):
        assert expected in said
    assert in_words(DEFAULT) != in_words(Policy(min_batch=9))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.yaml", "[" * 20_000),
        ("b.yaml", "{a: " * 5_000),
        ("c.toml", "a = " + "[" * 20_000),
        ("d.yaml", "a: 2001-99-99"),
        ("e.toml", "min_batch = " + "9" * 6_000),
        ("f.yaml", "models: &a [*a]"),
    ],
    ids=lambda value: value[:20],
)
def test_a_file_that_nests_without_end_is_refused_by_name(name, text, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=name):
        load_policy(tmp_path / name)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_what_is_no_file_is_not_opened(make, tmp_path):
    path = tmp_path / "policy.toml"
    make(path)
    with pytest.raises(ValueError, match="expected a file"):
        load_policy(path)
