from pathlib import Path

import torch
from safetensors.torch import load_file


def test_every_weight_moves_by_the_learning_rate_times_the_scale_or_not_at_all(run, tmp_path):
    ends = []
    for lr in (0.5, 1.0):
        result = run("strategy=my_strategy", "defense=none", "attack=none", "rounds=1", f"lr={lr}")
        assert result["config"]["choices"]["strategy"] == "my_strategy"
        ends.append(load_file(Path(tmp_path) / "run" / "model.safetensors"))
    near, far = ends
    moved = torch.cat([(far[name] - near[name]).abs().flatten() for name in near])
    step = (1.0 - 0.5) * 0.1
    assert ((moved < 1e-6) | ((moved - step).abs() < 1e-6)).all()
    assert (moved > 0).any()
