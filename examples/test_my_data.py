import torch
from my_data import bars


def test_the_brightest_column_is_the_class():
    samples = bars(train=12, test=4).train
    columns = samples.inputs.double().mean(dim=(1, 2)).argmax(dim=1)
    assert torch.equal(columns, 2 * samples.labels)


def test_a_run_learns_it(run):
    result = run("defense=none", "attack=none", "rounds=20", "lr=0.5", "batch_size=32")
    assert result["config"]["choices"]["data"] == "my_data"
    assert result["summary"]["accuracy"] == 1.0
