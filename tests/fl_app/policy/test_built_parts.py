"""Whatever overrides arrive, what a node builds and answers obeys its policy."""

from pathlib import Path

import pytest
from hostile_server import code_of, model_of, node, order, parts_of, send
from hypothesis import given, settings
from hypothesis import strategies as st

from fl_app.config.compose import ConfigError
from fl_app.policy import Policy, Refusal, check_plan, load_policy
from fl_app.policy.policy import DefenseRule

OWN = "defense=dgp batch_size=16 client.pin_model=true"
POLICY = Policy(
    models=["mlp", "lenet_zhu"],
    defenses=[DefenseRule(name="dgp", at_least={"k2": 0.75}, at_most={"k1": 0.05, "k2": 0.9})],
    min_batch=16,
)
KEYS = [
    "defense",
    "defense.dgp",
    "defense.k1",
    "defense.k2",
    "defense._target_",
    "defense.inner._target_",
    "defense.std",
    "training",
    "training.batch_size",
    "training._target_",
    "batch_size",
    "defense.error_feedback",
    "model",
    "model._target_",
    "client",
    "client.pin_model",
    "client.norms",
    "strategy",
    "strategy._target_",
    "experiment",
    "defense.location",
    "defense.share",
    "data.limit_per_class",
    "rounds",
    "model@defense",
    "defense.\\_target_",
]
VALUES = [
    "0",
    "1",
    "0.0",
    "1e-9",
    "null",
    "false",
    "'16'",
    "none",
    "topk",
    "mlp",
    "fed_avg",
    "quick",
    "{}",
    "[]",
    "{k1:0,k2:0}",
    "{batch_size:1}",
    "{pin_model:false}",
    "fl_app.transforms.identity",
    "fl_app.models.mlp",
    "${rounds}",
    r"$\{oc.env:HOME\}",
    r"\${seed}",
    "${defense.k1}",
    "${.k1}",
    "[1]",
    "{_target_:fl_app.transforms.identity}",
    "true",
    "nan",
    "inf",
    "-1",
    "16.0",
    "1e400",
    "\u0661\u0666",
]
overrides = st.builds(
    lambda sign, key, value: f"~{key}" if sign == "~" else f"{sign}{key}={value}",
    st.sampled_from(["", "+", "++", "~"]),
    st.sampled_from(KEYS),
    st.sampled_from(VALUES),
)


@settings(max_examples=8, deadline=None)
@given(st.lists(overrides, min_size=1, max_size=3))
def test_whatever_a_run_sends_the_built_parts_obey_or_are_refused(sent):
    text = " ".join(f'"{one}"' if "$" not in one else f"'{one}'" for one in sent)
    text += (
        " model=mlp data.size=8 data.train_per_class=8 data.test_per_class=2 clients=2 attack=none threads=1"
    )
    try:
        parts = parts_of(text, OWN)
    except ConfigError:
        return
    # the node's own settings hold by themselves ...
    (pruning,) = [part for part in parts.plan.parts if part.name == "dgp"]
    assert (pruning.settings["k1"], pruning.settings["k2"]) == (0.05, 0.75)
    assert parts.plan.batch_size == 16
    assert parts.pin_model
    # ... and the policy finds nothing to refuse in them
    check_plan(POLICY, parts.plan)


@settings(max_examples=8, deadline=None)
@given(st.lists(overrides, min_size=1, max_size=3))
def test_without_own_settings_the_policy_alone_keeps_weaker_runs_away(sent):
    text = " ".join(f'"{one}"' if "$" not in one else f"'{one}'" for one in sent)
    text += " data.size=8 data.train_per_class=8 data.test_per_class=2 clients=2 attack=none threads=1"
    try:
        parts = parts_of(text)
        check_plan(POLICY, parts.plan)
    except (ConfigError, Refusal):
        return
    (pruning,) = [part for part in parts.plan.parts if part.name == "dgp"]
    assert pruning.settings["k1"] <= 0.05
    assert 0.75 <= pruning.settings["k2"] <= 0.9
    assert parts.plan.batch_size >= 16
    assert parts.plan.model in POLICY.models


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ("", None),
        ("defense=none", "defense"),
        ("defense.k2=0.1", "defense"),
        ("defense.k1=0.2", "defense"),
        ("batch_size=8", "batch"),
        ("model=mlp", "model"),
        ("clients=1", "cohort"),
    ],
)
def test_the_documented_policy_takes_the_main_job_and_nothing_weaker(sent, code, tmp_path):
    """The example in docs/node-policy.md, as it stands there."""
    guide = (Path(__file__).parents[3] / "docs" / "node-policy.md").read_text()
    file = tmp_path / "policy.toml"
    file.write_text(guide.partition("```toml\n")[2].partition("```")[0])
    load_policy(file)
    text = f"data.train_per_class=40 data.test_per_class=2 attack=none threads=1 clients=2 {sent}"
    parts = parts_of(text)
    grid = node(text, policy=str(file), state_dir=str(tmp_path / "state"))
    assert code_of(send(grid, order(parts.model, model_of(parts.model), key="0" * 16))) == code
