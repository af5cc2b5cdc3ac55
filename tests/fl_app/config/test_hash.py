import pytest
from omegaconf import OmegaConf

from fl_app.config.compose import compose
from fl_app.config.hash import hash_config


def hash_of(overrides: str) -> str:
    return hash_config(OmegaConf.to_container(compose(overrides)))


def test_the_hash_is_that_of_sorted_json_whatever_the_order_of_the_keys():
    # from sha256sum, of {"attack": {"rounds": [1, 7]}, …, "lr": 0.1, "rounds": 7}
    expected = "f13f2371bc69f7106d85a594342f7f88cd5dec11051b82c204a424a8edeedba4"
    config = {
        "rounds": 7,
        "run_dir": "somewhere",
        "wait": 60,
        "lr": 0.1,
        "data": {"size": 32},
        "choices": {"data": "photos"},
        "attack": {"rounds": ["last", 1]},
    }
    assert hash_config(config) == expected
    assert hash_config(dict(reversed(config.items()))) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("run_dir=a", "run_dir=b"),
        ("wait=1", "wait=2"),
        ("data=cifar10 data.download=true", "data=cifar10"),
        ("attack.rounds=[last,3] rounds=9", "attack.rounds=[3,9] rounds=9"),
        ("lr=0.10", "lr=0.1"),
        ("experiment=quick defense=dgp", "rounds=20 evaluate_every=5 attack.steps=100 defense=dgp"),
    ],
)
def test_what_does_not_change_the_result_does_not_change_the_hash(one, other):
    assert hash_of(one) == hash_of(other)


def test_where_this_machine_keeps_its_data_is_not_in_the_hash_but_a_given_root_is(monkeypatch):
    def hash_with(place, overrides):
        monkeypatch.setenv("FL_APP_DATA", place)
        compose.cache_clear()
        return hash_of(overrides)

    for overrides in ("data=cifar10", "data=fashion_mnist public=mnist"):
        assert hash_with("/here", overrides) == hash_with("/there", overrides)
    assert hash_with("/x", "data=imagefolder data.root=/a") != hash_with(
        "/x", "data=imagefolder data.root=/b"
    )
    below = "data=imagefolder data.root=${oc.env:FL_APP_DATA}/"
    assert hash_with("/here", f"{below}a") == hash_with("/there", f"{below}a")
    assert hash_with("/here", f"{below}a") != hash_with("/here", f"{below}b")
    compose.cache_clear()


def test_what_may_change_a_number_changes_the_hash():
    changes = {
        "seed": 1,
        "rounds": 199,
        "lr": 0.03,
        "threads": 1,
        "device": "cpu",
        "dtype": "float64",
        "engine.name": "ray",
        "timeout": 9,
        "evaluate_every": 1,
        "baseline": True,
        "init": "model.safetensors",
        "audit.store": False,
        "defense.k1": 0.04,
        "attack.steps": 3,
        "data.train_per_class": 5,
        "choices.defense": "topk",
    }
    hashes = {hash_of("")}
    for key, value in changes.items():
        config = OmegaConf.create(OmegaConf.to_container(compose("")))
        OmegaConf.update(config, key, value)
        hashes.add(hash_config(OmegaConf.to_container(config)))
    assert len(hashes) == len(changes) + 1
