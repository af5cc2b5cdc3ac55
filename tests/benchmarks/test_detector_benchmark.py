import pytest
import torch

from attacks.active.detect import inspect_model
from benchmarks import disguises
from benchmarks.honest_models import FIRST, HELD_OUT, SECOND
from fl_app.data.dataset import Dataset, Samples
from fl_app.models import lenet_zhu, mlp


@pytest.fixture(scope="module")
def data() -> Dataset:
    generator = torch.Generator().manual_seed(0)

    def draw(count):
        pixels = torch.rand(count, 3, 8, 8, generator=generator) * torch.rand(
            count, 1, 1, 1, generator=generator
        )
        return Samples((255 * pixels).to(torch.uint8), torch.arange(count) % 10)

    return Dataset.of("noise", train=draw(500), test=draw(32), class_names=[str(c) for c in range(10)])


def test_held_out_models_share_no_seed_and_no_training_with_those_for_tuning():
    assert len(FIRST) + len(SECOND) + len(HELD_OUT) >= 50
    assert not {m.seed for m in HELD_OUT} & {m.seed for m in (*FIRST, *SECOND)}
    used = {(m.name, m.training) for m in (*FIRST, *SECOND)}
    assert not [m for m in HELD_OUT if m.training is not None and (m.name, m.training) in used]


@pytest.mark.parametrize("disguise", [disguises.scaled, disguises.permuted])
@pytest.mark.parametrize("place", [disguises.block, disguises.within])
def test_scale_and_order_change_neither_the_function_nor_what_is_recovered(data, disguise, place):
    host = lenet_zhu(10, data.in_shape) if place is disguises.block else mlp(10, data.in_shape)
    plain = place(host, data, 40, "mean")
    hidden = disguise(plain, seed=3)
    inputs = torch.randn(5, *data.in_shape)
    assert not torch.equal(hidden.layer(hidden.rows).bias, plain.layer(plain.rows).bias)
    torch.testing.assert_close(hidden.model(inputs), plain.model(inputs), rtol=1e-3, atol=1e-3)
    batches = [data.test.take(torch.arange(8))]
    share = disguises.recovered(plain, data, batches)
    assert share > 0.4
    assert disguises.recovered(hidden, data, batches) == share


def test_what_is_shifted_alike_for_all_classes_leaves_the_attack_as_it_was(data):
    plain = disguises.within(mlp(10, data.in_shape), data, 40, "mean")
    batches = [data.test.take(torch.arange(8))]
    share = disguises.recovered(plain, data, batches)
    assert share > 0.4
    assert disguises.recovered(disguises.shifted(plain), data, batches) == share
    found = {(f.layer, f.check) for f in inspect_model(disguises.shifted(plain).model)}
    assert ("output", "parallel columns") in found


def test_an_honest_model_gives_little_away(data):
    honest = disguises.untouched(mlp(10, data.in_shape))
    assert disguises.recovered(honest, data, [data.test.take(torch.arange(16))]) < 0.3
