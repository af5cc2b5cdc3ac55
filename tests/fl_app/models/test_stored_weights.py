"""A run may start from weights in a file; a file of another model is refused by name."""

import pytest
import torch
from federations import SMALL
from safetensors.torch import save_file
from torch import nn

from fl_app.config.build import server_parts
from fl_app.config.compose import ConfigError
from fl_app.models.stored import load_weights


@pytest.fixture
def stored(tmp_path):
    torch.manual_seed(5)
    weights = {name: tensor.clone() for name, tensor in nn.Linear(3, 2).state_dict().items()}
    path = tmp_path / "model.safetensors"

    def save(**changes):
        kept = {name: tensor for name, tensor in (weights | changes).items() if tensor is not None}
        save_file(kept, path)
        return path

    return weights, save


def test_all_tensors_are_copied(stored):
    weights, save = stored
    model = nn.Linear(3, 2)
    load_weights(model, save())
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bias": None}, "lacks \\['bias'\\]"),
        ({"more": torch.zeros(1)}, "has \\['more'\\] too many"),
        ({"bias": torch.zeros(3)}, "bias must have shape \\(2,\\), got \\(3,\\)"),
        ({"bias": torch.tensor([1.0, torch.nan])}, "bias must be finite"),
    ],
)
def test_another_models_file_is_refused_and_nothing_is_changed(stored, changes, message):
    _, save = stored
    model = nn.Linear(3, 2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        load_weights(model, save(**changes))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_file_that_is_not_there_or_none_at_all_is_an_error_of_the_config(tmp_path):
    (tmp_path / "noise").write_bytes(b"\xff" * 64)
    for name in ("absent", "noise"):
        with pytest.raises(ConfigError, match=f"init: .*{name}: cannot be read"):
            server_parts(f"{SMALL} init={tmp_path / name}")


def test_a_run_starts_from_them(tmp_path):
    model = server_parts(f"{SMALL} seed=3").model
    path = tmp_path / "model.safetensors"
    save_file(model.state_dict(), path)
    found = server_parts(f"{SMALL} seed=4 init={path}").model.state_dict()
    assert all(torch.equal(tensor, found[name]) for name, tensor in model.state_dict().items())
