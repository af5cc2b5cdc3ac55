"""`fl-app-attack --update FILE --model MODULE:FACTORY` on files of gradients, deltas and weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from fl_app.cli import new_attack
from fl_app.config.compose import ConfigError

FACTORY = """
import torch
from torch import nn

def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10))

def nothing():
    return None
"""
COMMON = ["--model", "strangers_network:network", "--input-shape", "3,4,4", "attack.steps=2"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "strangers_network.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.fixture
def weights() -> dict[str, Tensor]:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10)).state_dict()


@pytest.fixture
def gradients(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10))
    model.load_state_dict(weights)
    loss = F.cross_entropy(model(torch.rand(1, 3, 4, 4)), torch.tensor([6]))
    return dict(zip(weights, torch.autograd.grad(loss, list(model.parameters())), strict=True))


def test_gradients_from_a_file_give_a_label_and_a_picture(here, gradients, capsys):
    np.savez(here / "update.npz", *(tensor.numpy() for tensor in gradients.values()))
    new_attack.main(["--update", "update.npz", "--out", "found", *COMMON])
    assert "labels: [6]" in capsys.readouterr().out.splitlines()
    assert Image.open(here / "found" / "recovered.png").size[0] >= 4


def test_deltas_and_checkpoints_need_rate_and_steps(here, weights, gradients, capsys):
    delta = {name: -0.1 * tensor for name, tensor in gradients.items()}
    torch.save(delta, here / "delta.pt")
    torch.save({name: weights[name] + delta[name] for name in weights}, here / "after.pt")
    torch.save(weights, here / "before.pt")
    steps = ["--lr", "0.1", "--local-steps", "1", *COMMON]
    for source in (
        ["--update", "delta.pt"],
        ["--after=after.pt"],
        ["--after", "after.pt", "--before", "before.pt"],
    ):
        new_attack.main([*source, *steps])
        assert "labels: [6]" in capsys.readouterr().out.splitlines()
    with pytest.raises(ValueError, match="from_weights"):
        new_attack.main(["--update", "delta.pt", *COMMON])
    with pytest.raises(ValueError, match="local_steps"):
        new_attack.main(["--after", "after.pt", *COMMON])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "strangers_network"], "package.module:factory"),
        (["--model", "strangers_network:missing"], "missing"),
        (["--model", "no_such_module:f"], "no_such_module"),
        (["--model", "strangers_network:nothing"], "NoneType"),
        (["--model", "strangers_network:network", "rounds=3"], "rounds=3"),
        (["--model", "strangers_network:network", "attack.steps=1,2"], "one value"),
    ],
)
def test_mistakes_are_named(here, arguments, words):
    with pytest.raises(ConfigError, match=words):
        new_attack.main(["--update", "update.pt", *arguments])
