"""A model is counted before memory is taken for it."""

import pytest
import torch
from flwr.app import RecordDict

from fl_app.client.client import Client
from fl_app.config.build import client_parts, server_parts
from fl_app.config.compose import ConfigError
from fl_app.models import MOST_ENTRIES, ModelSpec, build_model, check_size
from fl_app.models.size import MOST_TENSORS, TooLarge, at_most, measure
from fl_app.wire.messages import Order, Parcel

IMAGE = {"num_classes": 10, "in_shape": [3, 32, 32]}
TINY = "data.train_per_class=4 data.test_per_class=2 clients=2 attack=none threads=1"
EXAMPLES = {
    "lenet_zhu": IMAGE,
    "resnet18": IMAGE,
    "vgg11": IMAGE,
    "las": {"num_classes": 30, "in_shape": [16, 40]},
    "bert_mlm": {"num_classes": 30, "in_shape": [16]},
}
HUGE = {
    "mlp": {"num_classes": 10, "in_shape": [3, 32, 32], "hidden": [10**6] * 3},
    "convnet": {"num_classes": 10, "in_shape": [3, 32, 32], "width": 10**6},
    "resnet18": {"num_classes": 10, "in_shape": [10**12, 32, 32]},
    "las": {"num_classes": 30, "in_shape": [16, 40], "encoder": 10**6},
    "bert_mlm": {"num_classes": 10**12, "in_shape": [16]},
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_counted_is_what_is_built_and_draws_nothing(name):
    spec = ModelSpec(f"fl_app.models.{name}", EXAMPLES[name], {"bottleneck": {"size": 7}})
    model = build_model(spec)
    before = torch.random.get_rng_state()
    counted = measure(lambda: build_model(spec), MOST_ENTRIES)
    tensors = [*model.parameters(), *model.buffers()]
    assert counted == sum(tensor.numel() for tensor in tensors)
    assert torch.equal(torch.random.get_rng_state(), before)
    with pytest.raises(TooLarge, match=f"may have {counted - 1} entries"):
        check_size(spec, counted - 1)
    check_size(spec, counted)


@pytest.mark.parametrize("name", HUGE)
def test_a_model_of_any_size_is_refused_at_no_cost(name):
    with pytest.raises(TooLarge, match=f"fl_app.models.{name}: the model may have {MOST_ENTRIES} entries"):
        build_model(ModelSpec(f"fl_app.models.{name}", HUGE[name]), most=MOST_ENTRIES)


def test_a_model_of_very_many_small_tensors_is_refused_too():
    spec = ModelSpec(
        "fl_app.models.las", {"num_classes": 3, "in_shape": [16, 4], "encoder": 1, "layers": 10**12}
    )
    with pytest.raises(TooLarge, match=f"may have {MOST_TENSORS} tensors"):
        check_size(spec)


def test_a_bottleneck_and_an_imprint_count_too():
    spec = ModelSpec("fl_app.models.lenet_zhu", IMAGE)
    wide = ModelSpec(spec.target, spec.settings, {"bottleneck": {"size": 10**9}})
    with pytest.raises(TooLarge, match="lenet_zhu with bottleneck"):
        build_model(wide, most=MOST_ENTRIES)
    edges = {"in_shape": [3, 10**6, 10**6], "functional": "mean", "edges": [0.0, 1.0], "floor": -1.0}
    with pytest.raises(TooLarge, match="lenet_zhu with imprint"):
        build_model(spec.manipulated(1, {"imprint": edges}), manipulated=True, most=MOST_ENTRIES)


def test_an_order_cannot_make_a_client_build_what_does_not_fit():
    parts = client_parts(TINY)
    spec = ModelSpec("fl_app.models.mlp", HUGE["mlp"])
    order = Order(1, 0, 0.1, spec.hash, 0, model_spec=spec.to_json())
    with pytest.raises(TooLarge, match="the model may have"):
        Client(parts, 0, 2, allow_audit=True).answer(Parcel(order, b""), RecordDict())
    assert spec.hash not in parts.models


@pytest.mark.parametrize("build", [client_parts, server_parts])
def test_a_config_from_the_network_cannot_either(build):
    with pytest.raises(ConfigError, match=r"model: build_model: .* the model may have"):
        build(f"{TINY} model=mlp model.hidden=[1000000,1000000]")


def test_a_spec_of_any_length_is_refused():
    with pytest.raises(ValueError, match="expected at most 1048576 characters"):
        ModelSpec.from_json('{"target":"' + "x" * (1 << 20) + '","settings":{}}')


def test_counting_ends_with_its_context():
    with pytest.raises(TooLarge), at_most(5):
        torch.nn.Linear(2, 2)
    torch.nn.Linear(20, 20)
