import pytest
import torch
from my_defense import clip_largest

from fl_app.types import RoundContext


def test_no_entry_passes_the_bound_and_small_ones_stay():
    update = {"w": torch.tensor([[0.1, -0.2], [0.3, -9.0]])}
    defense = clip_largest(keep=0.75)
    sent, _ = defense.apply(update, defense.init(update), RoundContext(1, 0, torch.Generator()))
    torch.testing.assert_close(sent["w"], torch.tensor([[0.1, -0.2], [0.3, -0.3]]))


def test_a_bad_setting_is_named():
    with pytest.raises(ValueError, match="keep must be in"):
        clip_largest(keep=0)


def test_a_run_with_the_defense_finishes_and_says_its_name(run):
    result = run("defense=my_defense", "attack=none")
    assert result["status"] == "finished"
    assert result["config"]["choices"]["defense"] == "my_defense"
    assert result["config"]["defense"] == {"_target_": "my_defense.clip_largest", "keep": 0.9}
