"""One logit for two classes: the logistic loss, its slope, and a federation that learns and is attacked."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from attacks.optimisation import dlg, idlg, inverting_gradients
from fl_app.config.build import server_parts
from fl_app.config.compose import ConfigError
from fl_app.experiments.job import run_job
from fl_app.models import cnn6
from fl_app.training import Batch, class_logits, cross_entropy
from fl_app.types import Observation


def batch_of(inputs: torch.Tensor, labels: list[int]) -> Batch:
    return Batch(inputs, torch.tensor(labels), inputs, inputs)


def test_the_loss_is_the_logistic_one_of_labels_that_are_plus_or_minus_one():
    logits = torch.tensor([[-40.0], [-3.0], [0.0], [0.5], [40.0]], dtype=torch.float64)
    for label, y in ((0, -1), (1, 1)):
        # log(1 + exp(-y z)), written so that it does not overflow
        margins = [y * float(z) for z in logits]
        expected = [math.log1p(math.exp(-abs(m))) + max(-m, 0.0) for m in margins]
        found = [float(cross_entropy(nn.Identity(), batch_of(z[None], [label]))) for z in logits]
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-15)


def test_the_slope_is_the_probability_minus_the_label():
    logits = torch.tensor([[-2.0], [0.3], [5.0]], dtype=torch.float64, requires_grad=True)
    loss = cross_entropy(nn.Identity(), batch_of(logits, [0, 1, 1]))
    (slope,) = torch.autograd.grad(loss, logits)
    expected = [
        (1 / (1 + math.exp(-z)) - y) / 3 for z, y in zip(logits.flatten().tolist(), (0, 1, 1), strict=True)
    ]
    assert slope.flatten().tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_models_with_a_logit_a_class_are_left_alone(classes):
    outputs = torch.randn(4, classes)
    assert class_logits(outputs) is outputs


@pytest.fixture
def two_classes(tmp_path):
    """A folder of pictures, dark or bright on the left."""
    noise = np.random.default_rng(0)
    for part, count in (("train", 12), ("test", 6)):
        for label, name in enumerate(("dark", "light")):
            folder = tmp_path / "pictures" / part / name
            folder.mkdir(parents=True)
            for i in range(count):
                pixels = noise.integers(40, 180, (12, 12, 3))
                pixels[:, :6] += 60 * (2 * label - 1) // 2
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i}.png")
    return tmp_path / "pictures"


def run(folder, tmp_path, *more: str) -> dict:
    overrides = [
        "data=imagefolder",
        f"data.root={folder}",
        "data.size=12",
        "model=cnn6",
        "model.one_logit=true",
    ]
    overrides += ["clients=3", "batch_size=8", "rounds=2", "threads=1", "defense=none", *more]
    return json.loads((run_job(overrides, folder=tmp_path / "run") / "result.json").read_text())


@pytest.mark.parametrize("granted", ["true", "false"])
def test_rgap_recovers_a_client_of_a_run_with_one_logit(two_classes, tmp_path, granted):
    result = run(
        two_classes, tmp_path, "attack=rgap", f"attack.grant.labels={granted}", "attack.clients=[0,1]"
    )
    assert len(result["attacks"]) == 2
    for attack in result["attacks"]:
        assert any("one logit: logistic loss assumed" in note for note in attack["notes"])
        assert attack["psnr"][0] > 60
        if granted == "false":
            assert attack["labels"]["exact"] == 1.0


def test_a_federation_with_one_logit_learns(two_classes, tmp_path):
    result = run(
        two_classes, tmp_path, "attack=none", "rounds=40", "lr=0.1", "model=fcn3", "evaluate_every=40"
    )
    last = result["rounds"][-1]
    assert last["accuracy"] == 1.0
    assert last["auroc"] == 1.0
    assert last["loss"] < 0.5 * math.log(2)


def test_more_classes_than_two_are_refused():
    with pytest.raises(ConfigError, match="cnn6: one_logit tells two classes apart, got num_classes=10"):
        server_parts("model=cnn6 model.one_logit=true data.train_per_class=2 data.test_per_class=1 clients=2")


@pytest.mark.parametrize("attack", [inverting_gradients(steps=1), dlg(steps=1), idlg(steps=1)])
def test_searches_that_match_a_cross_entropy_refuse_it(attack):
    model = cnn6(2, (3, 12, 12), one_logit=True)
    update = {name: torch.ones_like(p) for name, p in model.named_parameters()}
    obs = Observation(
        model, update, batch_size=1, num_classes=2, input_shape=(3, 12, 12), labels=torch.tensor([1])
    )
    with pytest.raises(ValueError, match=f"{attack.who}: .* one logit for two classes; rgap solves"):
        attack(obs)
