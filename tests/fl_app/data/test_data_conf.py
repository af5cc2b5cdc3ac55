"""Every file of conf/data and conf/partition names a callable and exactly its arguments."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from hydra.utils import get_method, instantiate
from omegaconf import OmegaConf
from omegaconf.errors import MissingMandatoryValue

CONF = Path(__file__).parents[3] / "conf"
DATA = {
    "photos",
    "album",
    "imagefolder",
    "cifar10",
    "cifar100",
    "mnist",
    "fashion_mnist",
    "support2",
    "speech",
    "text",
    "random",
    "faces",
}
PARTITIONS = {"iid", "dirichlet", "shards", "fixed", "natural"}
FILES = [CONF / "data" / f"{name}.yaml" for name in sorted(DATA)] + [
    CONF / "partition" / f"{name}.yaml" for name in sorted(PARTITIONS)
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_its_keys_are_the_arguments_and_its_values_their_defaults(path):
    settings = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    target = settings.pop("_target_")
    assert target == f"fl_app.data.{path.stem}"
    parameters = inspect.signature(get_method(target)).parameters
    assert set(settings) == set(parameters)
    for name, parameter in parameters.items():
        if parameter.default is not parameter.empty:
            default = parameter.default
            assert settings[name] == (list(default) if isinstance(default, tuple) else default)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_begins_with_what_the_choice_is(path):
    assert path.read_text().startswith("# ")


@pytest.mark.parametrize("name", sorted(PARTITIONS))
def test_a_partition_deals_as_configured(name):
    partition = instantiate(OmegaConf.load(CONF / "partition" / f"{name}.yaml"))
    labels = torch.arange(10).repeat(40)
    assert len(partition(labels, 5, torch.Generator().manual_seed(0))) == 5


def test_the_embedded_data_is_built_as_configured():
    config = OmegaConf.load(CONF / "data" / "photos.yaml")
    config.train_per_class, config.test_per_class = 2, 1
    assert len(instantiate(config).train) == 20


@pytest.mark.parametrize("name", ["imagefolder", "speech"])
def test_a_folder_of_ones_own_must_be_named(name):
    with pytest.raises(MissingMandatoryValue, match="root"):
        _ = OmegaConf.load(CONF / "data" / f"{name}.yaml").root


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "mnist", "fashion_mnist"])
def test_copies_are_sought_where_the_environment_says(name, monkeypatch):
    config = OmegaConf.load(CONF / "data" / f"{name}.yaml")
    monkeypatch.delenv("FL_APP_DATA", raising=False)
    assert config.root == "data"
    monkeypatch.setenv("FL_APP_DATA", "elsewhere")
    assert config.root == "elsewhere"
