"""Flower apps as others write them, around the network and rows of `own_apps`: Message API and legacy API."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from own_apps import CLIENTS, client_of, started, train
from torch import nn

from fl_app.flower import InlineGrid

LR = 0.1


def trained(
    weights: dict[str, torch.Tensor], context: Context, net: Callable[[], nn.Module] = started
) -> Any:
    """Return (model after a client's pass over its rows, number of rows, metrics)."""
    model = net()
    model.load_state_dict(weights)
    model.train()
    count, metrics = train(model, context, {"lr": LR})
    return model, count, metrics


def message_app(
    mods: Sequence[Any] = (),
    *,
    net: Callable[[], nn.Module] = started,
    whole: Sequence[Any] = (),
    returns: str = "weights",
    names: tuple[str, str] = ("arrays", "metrics"),
    change: Callable[[Message, RecordDict], RecordDict] | None = None,
    empties: bool = True,
) -> ClientApp:
    """Return an app of the Message API; ``change`` edits its replies to training.

    With ``empties`` it takes the arrays out of the message, which Flower's own mods do not expect.
    """
    app = ClientApp(mods=list(whole))

    @app.train(mods=list(mods))
    def _(message: Message, context: Context) -> Message:
        before = message.content["arrays"].to_torch_state_dict(keep_input=not empties)
        before = {name: tensor.clone() for name, tensor in before.items()}
        model, count, metrics = trained(before, context, net)
        after = {name: tensor.detach() for name, tensor in model.state_dict().items()}
        if returns != "weights":
            sign = -1 / LR if returns == "gradient" else 1
            after = {name: (tensor - before[name]) * sign for name, tensor in after.items()}
        content = RecordDict(
            {names[0]: ArrayRecord(after), names[1]: MetricRecord({"num-examples": count} | metrics)}
        )
        return Message(content if change is None else change(message, content), reply_to=message)

    @app.evaluate()
    def _(message: Message, context: Context) -> Message:
        model = net()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        count = 10 + 4 * client_of(context)
        size = sum(float(p.detach().norm()) for p in model.parameters())
        return Message(
            RecordDict({"metrics": MetricRecord({"num-examples": count, "size": size})}), reply_to=message
        )

    return app


class _Legacy(NumPyClient):
    def __init__(self, context: Context) -> None:
        self.context = context

    def get_parameters(self, config: Any) -> Any:
        return [tensor.numpy() for tensor in started().state_dict().values()]

    def fit(self, parameters: Any, config: Any) -> Any:
        names = started().state_dict().keys()
        before = OrderedDict((name, torch.tensor(p)) for name, p in zip(names, parameters, strict=True))
        model, count, metrics = trained(before, self.context)
        return [tensor.numpy() for tensor in model.state_dict().values()], count, metrics

    def evaluate(self, parameters: Any, config: Any) -> Any:
        return 0.5, 10, {"accuracy": 0.25}


def legacy_app(mods: Sequence[Any] = ()) -> ClientApp:
    """Return an app of the legacy API."""
    return ClientApp(client_fn=lambda context: _Legacy(context).to_client(), mods=list(mods))


def federate(
    app: ClientApp, strategy: Any, *, rounds: int = 3, net: Any = started
) -> dict[str, torch.Tensor]:
    """Run a strategy of the Message API on the inline engine; return the last model."""
    result = strategy.start(
        grid=InlineGrid(app, CLIENTS),
        initial_arrays=ArrayRecord(net().state_dict()),
        num_rounds=rounds,
    )
    return result.arrays.to_torch_state_dict()


def ask(app: ClientApp, content: RecordDict, *, kind: str = "train", rounds: int = 1) -> list[Message]:
    """Send one content to the first node, several times; return its replies."""
    grid = InlineGrid(app, CLIENTS)
    node = next(iter(grid.get_node_ids()))
    replies: list[Message] = []
    for _ in range(rounds):
        replies += grid.send_and_receive([Message(content, node, kind)])
    return replies
