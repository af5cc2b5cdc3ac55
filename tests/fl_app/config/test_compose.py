import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from fl_app.client_app import app
from fl_app.config.build import client_parts, server_parts
from fl_app.config.compose import CONF_DIR, ConfigError, compose, join_overrides, quote, split_overrides
from fl_app.config.trust import WHOLE
from fl_app.flower import InlineGrid
from fl_app.flower.held_tensor import hold


def choices(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF_DIR / group).glob("*.yaml"))


def test_the_default_is_the_main_job():
    cfg = compose("")
    assert dict(cfg.choices) == {
        "attack": "ig",
        "data": "photos",
        "defense": "dgp",
        "dp": "none",
        "engine": "inline",
        "model": "lenet",
        "partition": "iid",
        "public": "held_out",
        "schedule": "constant",
        "secagg": "off",
        "strategy": "fed_sgd",
    }
    assert (cfg.clients, cfg.defense.k1, cfg.defense.k2) == (10, 0.05, 0.75)
    assert cfg.defense.error_feedback is True
    assert (cfg.audit.batch_size, cfg.audit.contrast) == (1, True)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ("defense=dpg", ["defense", "'dpg'", "dgp", "none", "topk", "did you mean dgp?"]),
        ("defense=null", ["defense", "None", "dgp"]),
        ("~attack=7", ["deletion"]),
        ("~model", ["model"]),
        ("x" * 5000 + "=1", ["x" * 40, "200", "5000"]),
        ("attack=idontknow", ["attack", "ig", "none"]),
        ("roundz=3", ["roundz: unknown key", "rounds", "did you mean rounds?"]),
        ("attack.stepz=3", ["attack.stepz: unknown key", "attack has", "steps", "did you mean steps?"]),
        ("defense.share=0.1", ["defense.share: unknown key", "k1", "k2"]),
        ("rounds.deep=3", ["rounds is a value"]),
        ("rounds=0", ["rounds: must be a whole number of at least 1, got 0"]),
        ("rounds=many", ["rounds", "'many'"]),
        ("validation=1", ["validation: must be a number from 0 to less than 1, got 1"]),
        ("validation=-0.1", ["validation: must be a number from 0 to less than 1, got -0.1"]),
        ("balance=classes", ["balance: must be true or false, got 'classes'"]),
        ("bn=loud", ["bn: must be one of sync, local, frozen, got 'loud'"]),
        ("attack.rounds=3", ["attack.rounds: must be a list of rounds"]),
        ("data=imagefolder", ["data.root has no default"]),
        *(
            (f"{group}=custom", [f"{group}._target_ has no default"])
            for group in ("defense", "attack", "strategy")
        ),
        ("~attack", ["attack.rounds: is missing"]),
        ("hydra.searchpath=3", ["hydra.searchpath"]),
        ("defense=fl_top strategy=fed_avg", ["defense=fl_top brings its own, got strategy=fed_avg"]),
        ("defense=adgp strategy=fed_avg", ["defense=adgp brings its own, got strategy=fed_avg"]),
        ("rounds='3", ["overrides: No closing quotation"]),
        ("rounds", ["rounds", "key=value"]),
    ],
)
def test_what_cannot_be_is_refused_with_the_choices(overrides, words):
    with pytest.raises(ConfigError) as error:
        compose(overrides)
    for word in words:
        assert word in str(error.value)


def test_a_value_that_a_factory_refuses_is_named_with_its_place():
    with pytest.raises(ConfigError, match=r"defense.*prune_dual: k1 and k2 must be"):
        client_parts("defense.k1=0.5")
    with pytest.raises(ConfigError, match="fraction_train must be in"):
        server_parts("fraction=2")


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match="device"):
        client_parts("device=quantum")


@pytest.mark.parametrize("group", ["dp=client", "secagg=on"])
def test_a_model_with_buffers_sends_more_than_a_protected_vector(group):
    text = "data.train_per_class=4 data.test_per_class=2 clients=4 defense=fl_std model=resnet18"
    with pytest.raises(ConfigError, match=f"{group.split('=')[0]}: a model with buffers .* GroupNorm"):
        server_parts(f"{text} {group}")


NEEDS = {
    "attack=custom": "attack._target_=own_parts.guess_labels",
    "defense=custom": "defense._target_=own_parts.halve",
    "model=custom": "model._target_=own_parts.tiny_model +model.width=3",
    "strategy=custom": "strategy._target_=own_parts.HalfSteps",
    "partition=fixed": "partition.samples=5",
    "partition=shards": "partition.per_client=2",
    "dp=client": "defense=fl_top",
    "dp=both": "defense=fl_top",
    "dp=ftrl": "defense=fl_top",
    "secagg=on": "defense=fl_top clients=3",
    "attack=curious": "model=mlp",
    "attack=rob": "attack.bins=4",
}
"""What some choices cannot do without."""
NOT_FOR_IMAGES = ("model=las", "model=bert_mlm")


@pytest.mark.parametrize(
    "group", ["defense", "dp", "secagg", "strategy", "schedule", "engine", "attack", "model", "partition"]
)
def test_every_choice_composes_and_builds(group):
    for name in choices(group):
        choice = f"{group}={name}"
        text = f"data.train_per_class=4 data.test_per_class=2 clients=2 {choice} {NEEDS.get(choice, '')}"
        if choice in NOT_FOR_IMAGES:
            with pytest.raises(ConfigError, match=r"in_shape must be .* got \[3, 32, 32\]"):
                server_parts(text)
            continue
        parts = server_parts(text, WHOLE)
        if name == "custom":
            assert f"{group}._target_={parts.config['choices'][group]}" in text
        else:
            assert parts.config["choices"][group] == name
        client_parts(text, WHOLE)


def test_the_settings_of_a_defense_are_its_own_keys():
    assert compose("defense=topk defense.share=0.01").defense.share == 0.01
    assert compose("defense.error_feedback=false").defense.error_feedback is False


@given(st.lists(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), max_size=12), max_size=5))
def test_overrides_survive_being_joined_and_split(words):
    assert split_overrides(join_overrides(words)) == words


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=20))
def test_a_quoted_value_is_read_back_by_hydra_as_it_was(value):
    (override,) = OverridesParser.create().parse_overrides([f"run_dir={quote(value)}"])
    assert override.value() == value


def test_composing_inside_a_running_hydra_leaves_it_alone():
    compose.cache_clear()
    with initialize_config_dir(str(CONF_DIR), version_base="1.3"):
        assert compose("seed=5").seed == 5
        assert hydra_compose("config", ["seed=6"]).seed == 6


def test_a_model_and_data_of_ones_own_are_built_like_any_other():
    text = (
        "model=custom model._target_=own_parts.tiny_model +model.width=3 "
        "data=custom data._target_=own_parts.tiny_data clients=4 batch_size=5 attack=none rounds=2"
    )
    parts = server_parts(text, WHOLE)
    grid = InlineGrid(app, 4, run_config={"overrides": text})
    parts.strategy.start(grid=grid, initial_arrays=hold(parts.model.state_dict()), num_rounds=2)
    assert [record.clients for record in parts.strategy.records] == [4, 4]
    assert parts.spec.target == "own_parts.tiny_model"
