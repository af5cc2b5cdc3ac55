"""Every tensor that the project makes says where it lives, so that a GPU works without a GPU to test on."""

import sys
from pathlib import Path

import pytest
import torch
from federations import SMALL, train
from torch.overrides import TorchFunctionMode

from fl_app.client_app import app
from fl_app.config.build import client_parts
from fl_app.flower import InlineGrid
from fl_app.running.federation import run_federation

FACTORIES = {
    torch.arange,
    torch.empty,
    torch.eye,
    torch.full,
    torch.linspace,
    torch.ones,
    torch.rand,
    torch.randint,
    torch.randn,
    torch.randperm,
    torch.tensor,
    torch.zeros,
}


class NoDefaultDevice(TorchFunctionMode):
    """Refuses a factory call of this project that leaves the device to torch."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self._packages = (str(root / "fl_app"), str(root / "attacks"))
        self.seen = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        caller = sys._getframe(1).f_code.co_filename
        if function in FACTORIES and caller.startswith(self._packages):
            self.seen += 1
            if kwargs.get("device") is None:
                raise AssertionError(f"{caller} calls torch.{function.__name__} without a device")
        return function(*args, **kwargs)


def test_the_check_itself_fails_on_a_tensor_without_a_device(repository, tmp_path):
    source = compile("import torch\ntorch.zeros(3)", str(repository / "fl_app" / "made_up.py"), "exec")
    with NoDefaultDevice(repository), pytest.raises(AssertionError, match=r"torch\.zeros without a device"):
        exec(source, {})


@pytest.mark.parametrize(
    "overrides",
    [
        "defense=dgp",
        "defense=topk strategy=fed_avg fraction=0.5",
        "model=resnet18 bn=sync rounds=1 clients=2",
        "model=convnet partition=shards",
        "defense=adgp defense.location=vote",
        "defense=outpost",
        "defense=laplace",
        "defense=soteria defense.rate=0.5",
        "defense=precode",
        "defense=ats",
        "defense=dp_sgd",
    ],
)
def test_training_makes_no_tensor_without_the_models_device(repository, overrides):
    client_parts.cache_clear()
    with NoDefaultDevice(repository) as mode:
        federated, _ = train(overrides)
    assert not any(record.failures for record in federated.strategy.records)
    assert mode.seen > 0


def test_attacking_and_reporting_make_no_tensor_without_a_device(repository, tmp_path):
    overrides = f"{SMALL} attack=ig attack.steps=3 attack.restarts=2 run_dir={tmp_path} "
    for labels in ("true", "false"):
        text = overrides + f"attack.grant.labels={labels}"
        client_parts.cache_clear()
        with NoDefaultDevice(repository) as mode:
            run_federation(InlineGrid(app, 5, run_config={"overrides": text}), text)
        assert mode.seen > 0
