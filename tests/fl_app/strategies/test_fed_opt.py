"""FedAvgM, FedAdagrad, FedAdam, FedYogi and FedProx against Flower's own strategies on the same updates."""

import inspect

import flwr.serverapp.strategy as flower
import pytest
import torch
from federations import SMALL, train, with_update
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from omegaconf import OmegaConf

from fl_app import strategies
from fl_app.config.build import client_parts, server_parts
from fl_app.config.compose import ConfigError, compose
from fl_app.flower import InlineGrid
from fl_app.training import Job, parameters, run_epochs
from fl_app.types import Update
from fl_app.wire import encode
from fl_app.wire.messages import unpack_order, unpack_reply

ROUNDS, CLIENTS = 5, 3
COMMON = (
    f"model=mlp model.hidden=[8] dtype=float64 defense=none rounds={ROUNDS} clients={CLIENTS} "
    "partition=dirichlet partition.alpha=0.5"
)
CHOICES = {
    "fed_avgm": ("FedAvgM", {"server_learning_rate": 0.7, "server_momentum": 0.9}),
    "fed_adagrad": ("FedAdagrad", {"eta": 0.05, "tau": 0.01}),
    "fed_adam": ("FedAdam", {"eta": 0.05, "beta_1": 0.8, "beta_2": 0.95, "tau": 0.01}),
    "fed_yogi": ("FedYogi", {"eta": 0.05, "beta_1": 0.8, "beta_2": 0.95, "tau": 0.01}),
    "fed_prox": ("FedProx", {"proximal_mu": 0.1}),
}


def made_up_change(weights: Update, client: int, server_round: int) -> Update:
    generator = torch.Generator().manual_seed(100 * server_round + client)
    return {
        name: 0.1 * torch.randn(w.shape, generator=generator, dtype=w.dtype) for name, w in weights.items()
    }


def flowers_weights(name: str, settings: dict, start: Update, samples: dict[int, int]) -> Update:
    app = ClientApp()
    rounds = dict.fromkeys(range(CLIENTS), 0)

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        client = int(context.node_config["partition-id"])
        rounds[client] += 1
        weights = message.content["arrays"].to_torch_state_dict()
        change = made_up_change(weights, client, rounds[client])
        arrays = ArrayRecord({key: weights[key] + change[key] for key in weights})
        metrics = MetricRecord({"num-examples": samples[client]})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    oracle = getattr(flower, name)(fraction_evaluate=0.0, min_available_nodes=CLIENTS, **settings)
    grid = InlineGrid(app, CLIENTS)
    result = oracle.start(grid=grid, initial_arrays=ArrayRecord(start), num_rounds=ROUNDS)
    return result.arrays.to_torch_state_dict()


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("defaults", [False, True], ids=["own settings", "defaults"])
def test_the_model_is_that_of_flowers_strategy_on_the_same_updates(choice, defaults):
    name, settings = CHOICES[choice]
    settings = {} if defaults else settings
    samples: dict[int, int] = {}

    def answer(order: Message, reply: Message, context: Context) -> Message:
        said = unpack_reply(reply).answer
        samples[said.client] = said.samples
        return with_update(reply, encode(made_up_change(start, said.client, unpack_order(order).order.round)))

    overrides = " ".join([COMMON, f"strategy={choice}", *(f"strategy.{k}={v}" for k, v in settings.items())])
    start = {key: p.detach() for key, p in parameters(server_parts(f"{SMALL} {overrides}").model).items()}
    ours, _ = train(overrides, dict.fromkeys(range(CLIENTS), answer))

    assert len(set(samples.values())) > 1
    expected = flowers_weights(name, settings, start, samples)
    torch.testing.assert_close(ours.strategy.weights, expected, rtol=1e-6, atol=1e-12, check_dtype=False)
    moved = {key: (w - start[key]).abs().max() for key, w in ours.strategy.weights.items()}
    assert min(moved.values()) > 1e-3


@pytest.mark.parametrize("choice", CHOICES)
def test_names_and_defaults_are_flowers_in_the_library_and_in_the_config(choice):
    name, settings = CHOICES[choice]
    theirs = inspect.signature(getattr(flower, name)).parameters
    ours = inspect.signature(getattr(strategies, name)).parameters
    written = OmegaConf.to_container(compose(f"strategy={choice} defense=none").strategy)
    for setting in settings:
        assert ours[setting].default == theirs[setting].default == written[setting]


def test_the_proximal_term_is_that_of_the_loss():
    text = f"{SMALL} {COMMON} strategy=fed_prox"
    data, net = client_parts(text).data_of(0, 1), server_parts(text).model.train()
    mu, lr, steps = 0.7, 0.1, 4

    def job() -> Job:
        return Job(round=1, lr=lr, generator=torch.Generator().manual_seed(0))

    update = run_epochs(batch_size=4, steps=steps, proximal_mu=mu)(net, data, job()).update
    plain = run_epochs(batch_size=4, steps=steps)(net, data, job()).update
    start = {name: p.detach().clone() for name, p in parameters(net).items()}
    sgd = torch.optim.SGD(net.parameters(), lr=lr)
    for indices in data.order(0).split(4)[:steps]:
        batch = data.batch(indices, torch.device("cpu"), torch.float64)
        sgd.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(batch.inputs), batch.labels)
        distance = sum((p - start[name]).square().sum() for name, p in net.named_parameters())
        (loss + mu / 2 * distance).backward()
        sgd.step()
    expected = {name: p.detach() - start[name] for name, p in parameters(net).items()}
    torch.testing.assert_close(update, expected, rtol=1e-9, atol=1e-12)
    assert any(not torch.equal(update[name], plain[name]) for name in update)


def test_mu_reaches_the_clients_through_the_config():
    weights = [
        train(f"{COMMON} strategy=fed_prox strategy.proximal_mu={mu}")[0].strategy.weights for mu in (0, 5)
    ]
    avg = train(f"{COMMON} strategy=fed_avg")[0].strategy.weights
    torch.testing.assert_close(weights[0], avg, rtol=0, atol=0)
    assert any(not torch.equal(weights[1][name], avg[name]) for name in avg)


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        ("strategy=fed_adam strategy.eta=0", "eta"),
        ("strategy=fed_adam strategy.beta_1=1", "beta_1"),
        ("strategy=fed_yogi strategy.beta_2=-0.1", "beta_2"),
        ("strategy=fed_adagrad strategy.tau=0", "tau"),
        ("strategy=fed_avgm strategy.server_momentum=1", "momentum"),
        ("strategy=fed_prox strategy.proximal_mu=-1", "proximal_mu"),
        ("strategy=fed_adam attack=dlg +attack.viewpoint=participant +attack.by=0 rounds=3", "viewpoint"),
    ],
)
def test_settings_that_cannot_be_are_refused(overrides, what):
    with pytest.raises(ConfigError, match=what):
        server_parts(f"{SMALL} defense=none {overrides}")
