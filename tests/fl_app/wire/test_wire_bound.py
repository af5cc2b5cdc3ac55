from __future__ import annotations

import math

import pytest
import torch

from fl_app.wire.bound import entropy_bound


def test_nothing_to_say_costs_nothing():
    assert entropy_bound({}) == 0
    assert entropy_bound({"w": torch.zeros(100), "e": torch.zeros(0), "s": torch.tensor(0.0)}) == 0


def test_positions_cost_the_logarithm_of_the_number_of_sets():
    w = torch.zeros(40, dtype=torch.bool)
    w[[3, 17, 18, 30, 39]] = True
    # one distinct value: no entropy, and one byte to name it
    numbers = 0.0  # a bit length of 1 always, and no bits after the leading one
    assert entropy_bound({"w": w}) == pytest.approx((math.log2(math.comb(40, 5)) + numbers) / 8)


def test_known_positions_shrink_the_number_of_sets():
    w = torch.zeros(40, dtype=torch.bool)
    w[[3, 17]] = True
    mask = torch.zeros(40, dtype=torch.bool)
    mask[[3, 5, 17, 20]] = True
    assert entropy_bound({"w": w}, within={"w": mask}) == pytest.approx(math.log2(math.comb(4, 2)) / 8)


def test_few_values_cost_their_entropy_and_their_names():
    w = torch.tensor([0.3] * 300 + [-0.7] * 100)
    entropy = -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25))
    assert entropy_bound({"w": w}) == pytest.approx((400 * entropy + 2 * 32) / 8)


def test_floats_cost_exponent_entropy_and_all_other_bits():
    low = 1 + (torch.arange(1, 301) * 2 + 1) / 2**20  # 300 distinct values in [1, 2)
    high = 2 + (torch.arange(1, 101) * 2 + 1) / 2**20  # 100 distinct values in [2, 4)
    entropy = -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25))
    w = torch.cat([low, -high])
    assert entropy_bound({"w": w}) == pytest.approx(400 * (24 + entropy) / 8)
    # float64 that float32 holds counts as float32
    assert entropy_bound({"w": w.double()}) == pytest.approx(400 * (24 + entropy) / 8)


@pytest.mark.parametrize(("dtype", "mantissa_and_sign"), [(torch.float16, 11), (torch.bfloat16, 8)])
def test_floats_count_in_their_shortest_format(dtype, mantissa_and_sign):
    # every mantissa of [1, 2) and its negative, so one exponent and no entropy
    step = 2.0 ** -(mantissa_and_sign - 1)
    w = 1 + torch.arange(2 ** (mantissa_and_sign - 1)) * step
    w = torch.cat([w, -w]).repeat(3)
    assert entropy_bound({"w": w}) == pytest.approx(w.numel() * mantissa_and_sign / 8)
    assert entropy_bound({"w": w.to(dtype)}) == pytest.approx(w.numel() * mantissa_and_sign / 8)


def test_integers_cost_their_length_and_what_follows_the_leading_one():
    w = torch.arange(512, 1024, dtype=torch.int32)  # zigzag: 1024 to 2046, all of 11 bits
    assert entropy_bound({"w": w}) == pytest.approx(512 * 10 / 8)
