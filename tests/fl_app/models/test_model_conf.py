"""Every file of conf/model builds its model once the task is added, and repeats the library's defaults."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch
from hydra.utils import get_method
from omegaconf import OmegaConf

from fl_app.models import ModelSpec, build_model

FOLDER = Path(__file__).parents[3] / "conf" / "model"
FILES = sorted(path for path in FOLDER.glob("*.yaml") if path.stem != "custom")
VARIANTS = ("lenet_sigmoid", "cnn6_d", "vgg13_bn")
"""Other settings of a model that has a file with its defaults."""
IMAGES = (torch.rand(2, 3, 16, 16),)
TOKENS = torch.tensor([[1, 0, 3], [1, 2, 2]])
TASKS = {"las": (torch.rand(2, 20, 8), TOKENS), "bert_mlm": (TOKENS,)}
"""What other models take: frames, and the token before each that is asked for; or tokens alone."""


def test_the_named_choices_are_there():
    expected = {"lenet", "lenet_sigmoid", "convnet", "mlp", "resnet18", "mcmahan_cnn"}
    expected |= {"cnn6", "cnn6_d", "fcn3", "resnet20", "resnet34", "resnet50", "resnet56"}
    expected |= {"bert_mlm", "las", "vgg11", "vgg13", "vgg13_bn", "efficientnet_b0", "resnet50_imagenet"}
    expected |= {"efficientnet_lite0"}
    assert expected <= {path.stem for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_builds_from_its_keys_and_the_task(path):
    settings = OmegaConf.to_container(OmegaConf.load(path))
    target = settings.pop("_target_")
    task = TASKS.get(path.stem, IMAGES)
    model = build_model(
        ModelSpec(target, {**settings, "num_classes": 4, "in_shape": list(task[0].shape[1:])})
    )
    shape = (2, 4) if task is IMAGES else (2, 3, 4)
    assert model(*task).shape == shape


@pytest.mark.parametrize("path", [p for p in FILES if p.stem not in VARIANTS], ids=lambda path: path.stem)
def test_holds_the_defaults_of_the_signature(path):
    settings = OmegaConf.to_container(OmegaConf.load(path))
    signature = inspect.signature(get_method(settings.pop("_target_")))
    defaults = {
        name: list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
        for name, parameter in signature.parameters.items()
        if name not in ("num_classes", "in_shape")
    }
    assert settings == defaults


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_begins_with_what_it_is(path):
    assert path.read_text().startswith("# ")
