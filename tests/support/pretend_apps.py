"""Apps of somebody else on the CPU and on the pretended device; a program, for one process of its own.

Library clients with each family of strategies and defenses, mods, and a node that attacks its own updates.
It prints one JSON object by name: whether the models, or the answers, were the same to the last bit.
"""

from __future__ import annotations

import json
import logging
import random
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pretend_device
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg as FlowersFedAvg
from hostile_server import SMALL, code_of, model_of, node, order, parts_of, send
from own_apps import CLIENTS, client_of, rows, started
from torch import nn
from torch.nn import functional as F

from fl_app.client import SecureSettings, app
from fl_app.config.build import client_parts
from fl_app.defenses import fl_basic, fl_cs, fl_std, fl_top
from fl_app.flower import InlineGrid
from fl_app.mods import MODS, mod_named
from fl_app.privacy import ClientLevel
from fl_app.strategies import ADGP, FLCS, FedAvg, FedSGD, FLBasic, FLStd, FLTop, SecureAggregation
from fl_app.transforms import error_feedback, keep_topk, prune_aligned, prune_dual, take_sign

Net = Callable[[], nn.Module]
_ROUNDS = 3


def train(model: nn.Module, context: Context, config: Mapping[str, Any]) -> tuple[int, dict[str, float]]:
    """Take a step of SGD where the model is."""
    x, y = (t.to(next(model.parameters()).device) for t in rows(client_of(context)))
    F.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= float(config["lr"]) * parameter.grad
    return len(x), {}


def differentiate(
    model: nn.Module, context: Context, config: Mapping[str, Any]
) -> tuple[int, dict[str, float]]:
    """Leave the gradient where the model is."""
    x, y = (t.to(next(model.parameters()).device) for t in rows(client_of(context)))
    F.cross_entropy(model(x), y).backward()
    return len(x), {}


def model_after(strategy: Any, client: ClientApp, net: Net) -> dict[str, torch.Tensor]:
    """Return the model of a run, on the CPU."""
    random.seed(0)  # Flower's strategies order clients by it, and sums have the order of clients
    arrays = ArrayRecord({name: t.cpu() for name, t in net().state_dict().items()})
    result = strategy.start(
        grid=InlineGrid(client, CLIENTS),
        initial_arrays=arrays,
        num_rounds=_ROUNDS,
        train_config=ConfigRecord({"lr": 0.1}),
    )
    failed = [failure for record in getattr(strategy, "records", []) for failure in record.failures]
    if failed:
        raise RuntimeError(str(failed[0]))
    return {name: tensor.cpu() for name, tensor in result.arrays.to_torch_state_dict().items()}


def libraries(device: str) -> dict[str, Callable[[], Any]]:
    """Return runs of the library's clients and strategies, by name."""

    def net() -> nn.Module:
        return started().to(device)

    def run(strategy: Any, function: Any, **settings: Any) -> Callable[[], Any]:
        return lambda: model_after(strategy(), app(net, function, **settings), net)

    noise = ClientLevel(
        rounds=_ROUNDS, rate=1.0, clients=CLIENTS, epsilon=None, noise_multiplier=1.0, clip=0.5
    )
    public = rows(50)
    runs = {
        "top-k": (lambda: FedSGD(net(), 0.1), differentiate, error_feedback(keep_topk(0.2))),
        "dual": (lambda: FedSGD(net(), 0.1), differentiate, error_feedback(prune_dual(0.1, 0.3))),
        "sign": (lambda: FedSGD(net(), 0.1), differentiate, take_sign()),
        "ADGP": (lambda: ADGP(net(), 0.1, k=0.3), differentiate, error_feedback(prune_aligned(0.3, 0.1))),
        "ADGP, vote": (lambda: ADGP(net(), 0.1, k=0.3, location="vote"), train, prune_aligned(0.3, 0.1)),
        "FedAvg": (lambda: FedAvg(net(), 0.1), train, error_feedback(prune_dual(0.1, 0.3))),
        "FLStd": (lambda: FLStd(net(), 0.1), train, fl_std()),
        "FLBasic": (lambda: FLBasic(net(), 0.1, share=0.3), train, fl_basic(0.3)),
        "FLCS": (lambda: FLCS(net(), 0.1, share=0.3), train, fl_cs(0.3)),
        "FLTop": (lambda: FLTop(net(), 0.1, share=0.3, public=public), train, fl_top(0.3)),
        "FLTop, vote": (
            lambda: FLTop(net(), 0.1, share=0.3, chosen_by="vote"),
            train,
            fl_top(0.3, chosen_by="vote"),
        ),
    }
    # masks and noise are new in every run: what can be compared is that it runs
    masked = app(net, train, defense=fl_std(), privacy=noise, secagg=SecureSettings(2))
    secure = lambda: FLStd(net(), 0.1, privacy=noise, aggregation=SecureAggregation(min_clients=2))  # noqa: E731
    made = {
        name: lambda strategy=strategy, function=function, defense=defense: model_after(
            strategy(), app(net, function, defense=defense), net
        )
        for name, (strategy, function, defense) in runs.items()
    }
    return made | {"private and masked": lambda: model_after(secure(), masked, net)}


def mods(device: str) -> dict[str, Callable[[], Any]]:
    """Return a run of Flower's own strategy with each mod around an app that trains on the device."""

    def net() -> nn.Module:
        return started().to(device)

    def run(name: str) -> dict[str, torch.Tensor]:
        settings = {"clip_and_noise": {"clip": 1.0, "std": 0.1}}.get(name, {})
        seeded = {"seed": 0} if name in ("gaussian", "laplace", "outpost", "clip_and_noise") else {}
        client = ClientApp()

        @client.train(mods=[mod_named(name, **settings, **seeded)])
        def answer(message: Message, context: Context) -> Message:
            model = net()
            model.load_state_dict(message.content["arrays"].to_torch_state_dict())
            samples, _ = train(model, context, dict(message.content["config"]))
            records = {
                "arrays": ArrayRecord(model.state_dict()),
                "metrics": MetricRecord({"num-examples": samples}),
            }
            return Message(RecordDict(records), reply_to=message)

        strategy = FlowersFedAvg(min_train_nodes=CLIENTS, min_available_nodes=CLIENTS, fraction_evaluate=0.0)
        return model_after(strategy, client, net)

    return {f"mod {name}": lambda name=name: run(name) for name in MODS}


def own_attacks(device: str, home: Path) -> dict[str, Callable[[], Any]]:
    """Return the answers of a node that attacks its own update first."""
    limits = "min_batch = 1\nmin_samples = 1\n[own_attack]\nseconds = 30\n"

    def ask(overrides: str, more: str) -> Callable[[], Any]:
        def go() -> Any:
            client_parts.cache_clear()
            file = home / f"{device}-{len(list(home.iterdir()))}.toml"
            file.write_text(limits + more)
            text = f"{SMALL} model=mlp batch_size=1 device={device} {overrides}"
            parts = parts_of(text)
            return code_of(send(node(text, policy=str(file)), order(parts.model, model_of(parts.model))))

        return go

    return {
        "own attack, a leak": ask("defense=none", ""),
        "own attack, noise": ask("defense=gaussian defense.std=10", ""),
        "own attack, labels": ask("defense=none", "max_label_f1 = 0.5\n"),
    }


def same(one: Any, other: Any) -> bool:
    """Say whether two models have the same bits, or two answers are the same."""
    if not isinstance(one, dict):
        return bool(one == other)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def main() -> None:
    """Run everything on both devices."""
    logging.disable(logging.CRITICAL)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as home:
        families = [
            {**libraries(device), **mods(device), **own_attacks(device, Path(home))}
            for device in ("cpu", pretend_device.NAME)
        ]
        for name in families[0]:
            try:
                found[name] = same(*(family[name]() for family in families))
            except Exception as error:  # of any run: the others are compared all the same
                found[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(found))


if __name__ == "__main__":
    main()
