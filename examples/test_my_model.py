import pytest
import torch
from my_model import one_hidden_layer


def test_has_one_output_for_each_class():
    assert one_hidden_layer(5, (3, 4, 4), width=7)(torch.rand(2, 3, 4, 4)).shape == (2, 5)


def test_a_bad_setting_is_named():
    with pytest.raises(ValueError, match="width must be at least 1"):
        one_hidden_layer(5, (3, 4, 4), width=0)


def test_a_run_trains_it(run):
    result = run("model.width=5", "defense=none", "attack=none")
    assert result["config"]["choices"]["model"] == "my_model"
    assert result["model"]["parameters"] == 64 * 5 + 5 + 5 * 4 + 4
