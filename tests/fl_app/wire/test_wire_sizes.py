from __future__ import annotations

import math

import pytest
import torch

from fl_app.wire import decode, encode, encode_change
from fl_app.wire.bound import entropy_bound

LENET = [(12, 3, 5, 5), (12,), (12, 12, 5, 5), (12,), (12, 12, 5, 5), (12,), (10, 768), (10,)]


def gradient(shapes: list[tuple[int, ...]] = LENET, scale: float = 0.01) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {f"p{i}": torch.randn(s, generator=generator) * scale for i, s in enumerate(shapes)}


def count(update: dict[str, torch.Tensor]) -> int:
    return sum(t.numel() for t in update.values())


def sparse(n: int, density: float, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    kept = torch.rand(n, generator=generator) < density
    return torch.where(kept, torch.randn(n, generator=generator), 0.0)


def binary_entropy(p: float) -> float:
    return -p * math.log2(p) - (1 - p) * math.log2(1 - p)


def test_an_all_zero_update_costs_a_few_bytes_per_tensor():
    update = {name: torch.zeros_like(t) for name, t in gradient().items()}
    assert len(encode(update)) <= 16 + 6 * len(update)
    assert len(encode({})) <= 16


def test_no_update_costs_more_than_dense_and_a_small_header():
    generator = torch.Generator().manual_seed(0)
    for n in (1, 2, 10, 100, 10_000):
        noise = torch.randint(-(2**31), 2**31, (n,), generator=generator).int()
        for tensor in (noise, noise.view(torch.float32)):
            assert len(encode({"w": tensor})) <= 4 * n + 40


@pytest.mark.parametrize("density", [0.5, 0.2, 0.1, 0.05, 0.01, 0.001, 0.9, 0.99, 0.999])
def test_positions_cost_little_more_than_their_entropy(density):
    mask = sparse(200_000, density) != 0
    n, k = mask.numel(), int(mask.sum())
    ideal = (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2) / 8
    assert len(encode({"w": mask})) <= 1.03 * ideal + 60


@pytest.mark.parametrize("density", [0.2, 0.05])
def test_a_sparse_update_costs_little_more_than_its_bound(density):
    update = {"w": sparse(300_000, density)}
    assert len(encode(update)) <= 1.01 * entropy_bound(update) + 60


def test_known_positions_save_the_bits_of_all_others():
    generator = torch.Generator().manual_seed(0)
    n = 100_000
    mask = torch.rand(n, generator=generator) < 0.1
    sent = mask & (torch.rand(n, generator=generator) < 0.5)
    update = {"w": torch.where(sent, torch.randn(n, generator=generator), 0.0)}
    size = len(encode(update, within={"w": mask}))
    assert size <= int(mask.sum()) / 8 + 4 * int(sent.sum()) + 40
    everywhere, inside = (n * binary_entropy(0.05) / 8, mask.sum() * binary_entropy(0.5) / 8)
    assert len(encode(update)) - size >= 0.95 * (everywhere - inside)


def test_all_known_positions_sent_cost_no_position_at_all():
    mask = sparse(100_000, 0.1) != 0
    noise = torch.randint(2**31, (100_000,), generator=torch.Generator().manual_seed(0)).int()
    noise = noise.clamp(min=1) * mask
    assert len(encode({"w": noise}, within={"w": mask})) <= 4 * int(mask.sum()) + 40


def test_signs_cost_one_bit_each():
    update = {name: torch.sign(t) * t.abs().mean() for name, t in gradient().items()}
    assert 8 * len(encode(update)) <= 1.1 * count(update)


def test_signs_with_three_values_cost_little_more_than_their_entropy():
    n = 100_000
    draws = torch.rand(n, generator=torch.Generator().manual_seed(0))
    update = {"w": torch.where(draws < 0.3, -0.5, torch.where(draws < 0.6, 0.5, 0.0))}
    entropy = -sum(p * math.log2(p) for p in (0.3, 0.3, 0.4))
    assert 8 * len(encode(update)) <= 1.02 * entropy * n + 500


def test_half_precision_costs_at_most_two_bytes_each():
    update = gradient()
    for short in (
        {k: t.half().float() for k, t in update.items()},
        {k: t.bfloat16().float() for k, t in update.items()},
    ):
        assert len(encode(short)) <= 2 * count(update) + 16 * len(update)
        assert len(encode({k: t.double() for k, t in short.items()})) <= 2 * count(update) + 16 * len(update)


def test_int8_rounding_costs_at_most_a_byte_each_even_in_small_tensors():
    update = {}
    for name, t in gradient().items():
        step = t.abs().max() / 127
        update[name] = torch.round(t / step) * step
    assert len(encode(update)) <= count(update) + 16 * len(update)


def test_any_few_values_cost_an_index_each():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(16, generator=generator)
    for dtype in (torch.float32, torch.float64, torch.float16):
        update = {"w": values.to(dtype)[torch.randint(16, (50_000,), generator=generator)]}
        assert len(encode(update)) <= 50_000 / 2 + 16 * dtype.itemsize + 100


def test_small_integers_in_a_wide_type_cost_what_they_need():
    numbers = torch.randint(-1000, 1000, (50_000,), generator=torch.Generator().manual_seed(0))
    assert len(encode({"w": numbers})) <= 50_000 * 11.2 / 8 + 100


def test_rows_and_columns_of_zeros_cost_next_to_nothing():
    rows, columns = torch.ones(500, 400), torch.ones(500, 400)
    rows[torch.rand(500, generator=torch.Generator().manual_seed(0)) < 0.5] = 0.0
    columns[:, torch.rand(400, generator=torch.Generator().manual_seed(1)) < 0.5] = 0.0
    for tensor in (rows, columns):
        assert len(encode({"w": tensor})) <= 0.1 * tensor.numel() / 8


def test_tensors_share_frames_so_many_small_ones_stay_cheap():
    many = gradient([(10,)] * 60)
    assert len(encode(many)) <= 60 * (40 + 6) + 40


def test_a_special_tensor_keeps_its_short_form_among_ordinary_ones():
    update = gradient([(300,)] * 4)
    special = {
        "sign": update["p0"].sign() * 0.3,
        "half": update["p0"].half().float(),
        "steps": torch.round(update["p0"][:20] / update["p0"][:20].abs().max() * 127) * 0.011,
    }
    for name, tensor in special.items():
        alone = len(encode({name: tensor})) - len(encode({}))
        assert len(encode(update | {name: tensor})) <= len(encode(update)) + alone + 20


def test_an_unchanged_model_costs_a_few_bytes_per_tensor():
    weights = gradient()
    assert len(encode_change(weights, weights)) <= 16 + 6 * len(weights)


def test_a_change_of_few_entries_costs_about_those_entries():
    old = gradient([(100_000,)])
    new = {"p0": old["p0"].clone()}
    new["p0"][::100] += 1.0
    assert len(encode_change(new, old)) <= 1000 * 5


def test_a_small_step_costs_less_than_the_weights():
    old = gradient([(100_000,)], scale=0.1)
    step = gradient([(100_000,)], scale=1e-5)
    new = {"p0": old["p0"] + step["p0"].roll(1)}
    assert len(encode_change(new, old)) <= 0.7 * 4 * 100_000


def test_every_choice_is_taken_by_some_update():
    """Each position mode and carrier occurs below, so the size laws do not rest on one of them."""
    from fl_app.wire import values

    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(5000, generator=generator)
    cases = {
        values.Carrier.PLAIN: normal,
        values.Carrier.SINGLE: normal.double(),
        values.Carrier.HALF: normal.half().float(),
        values.Carrier.BRAIN: (normal * 1e-20).bfloat16().float(),
        values.Carrier.MULTIPLES: torch.round(normal * 30) * 0.0123,
        values.Carrier.TABLE: normal[:50][torch.randint(50, (5000,), generator=generator)],
    }
    for carrier, tensor in cases.items():
        nonzero = tensor[tensor != 0].numpy()
        plan = values.plan_values(nonzero.view(f"u{nonzero.itemsize}"), "float")
        assert plan.header[0] == carrier
        assert torch.equal(decode(encode({"w": tensor}), {"w": tensor})["w"], tensor)
