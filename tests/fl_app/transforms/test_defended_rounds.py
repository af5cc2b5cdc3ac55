"""The defenses by name, as a run uses them: they change what is sent, and the wire makes use of it."""

import pytest
import torch
from hydra.utils import instantiate

from fl_app.client_app import app
from fl_app.config.build import server_parts
from fl_app.config.compose import compose
from fl_app.defenses import protect
from fl_app.flower import InlineGrid
from fl_app.flower.held_tensor import hold
from fl_app.transforms import drop_smallest, round_bf16, round_fp16, round_int8, take_sign
from fl_app.wire import decode, encode

PRUNING = ["graddrop", "prune", "outpost"]
OTHERS = ["gaussian", "laplace", "fp16", "bf16", "int8", "sign"]
N = 20_000


@pytest.mark.parametrize("name", PRUNING + OTHERS)
def test_a_run_with_the_defense_completes_its_rounds(name):
    text = (
        f"defense={name} data.train_per_class=4 data.test_per_class=2 clients=2 batch_size=4 "
        "rounds=2 attack=none threads=1"
    )
    parts = server_parts(text)
    grid = InlineGrid(app, 2, run_config={"overrides": text})
    parts.strategy.start(grid=grid, initial_arrays=hold(parts.model.state_dict()), num_rounds=2)
    assert [(record.clients, len(record.failures)) for record in parts.strategy.records] == [(2, 0), (2, 0)]
    residuals = [record.residual_norm for record in parts.strategy.records]
    assert all(norm > 0 for norm in residuals) if name in PRUNING else residuals == [None, None]


@pytest.mark.parametrize("name", PRUNING + OTHERS)
def test_a_defended_update_differs_from_the_raw_one(name, make_context):
    transform = protect(defense=instantiate(compose(f"defense={name}").defense)).transform
    update = {"w": torch.randn(40, 50), "b": torch.randn(50)}
    sent, _ = transform.apply(update, transform.init(update), make_context(weights=update))
    assert all(not torch.equal(sent[key], update[key]) for key in update)


@pytest.mark.parametrize("name", PRUNING)
def test_the_ablation_of_error_feedback_keeps_no_state(name):
    update = {"w": torch.ones(10)}
    with_feedback, without = (
        instantiate(compose(f"defense={name} defense.error_feedback={flag}").defense).transform.init(update)
        for flag in ("true", "false")
    )
    assert "e" in with_feedback
    assert without == {}


@pytest.mark.parametrize(
    ("transform", "share"),
    [
        (round_fp16(), 0.51),
        (round_bf16(), 0.51),
        (round_int8(), 0.26),
        (take_sign(), 1 / 16),
        (take_sign(scale=False), 1 / 16),
        (drop_smallest(0.9), 0.15),
    ],
    ids=["fp16", "bf16", "int8", "sign", "plain sign", "smallest"],
)
def test_the_wire_needs_no_more_than_the_bits_that_are_left(transform, share, ctx):
    update = {"w": torch.randn(N // 100, 100) * 1e-2}
    sent, _ = transform.apply(update, {}, ctx)
    blob = encode(sent)
    assert len(blob) <= share * 4 * N
    assert torch.equal(decode(blob, update)["w"], sent["w"])
