from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fl_app.wire import CodecError, apply_change, decode, encode, encode_change

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
]
SHAPES = [(), (0,), (3, 0, 2), (1,), (2,), (7,), (8,), (5, 6), (2, 3, 3, 3), (70,), (257,), (40, 50), (9001,)]
SPECIAL = [
    0.0,
    -0.0,
    float("inf"),
    -float("inf"),
    float("nan"),
    5e-324,
    1e-45,
    -1e-40,
    6e-8,
    1.0,
    -1.0,
    65504.0,
]


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Compare dtypes, shapes and bytes by numpy, which knows nothing of the wire."""

    def raw(t: Tensor) -> bytes:
        flat = t.detach().cpu().contiguous().reshape(-1)
        return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""

    return a.dtype == b.dtype and a.shape == b.shape and raw(a) == raw(b)


def assert_same(sent: dict[str, Tensor], came: dict[str, Tensor]) -> None:
    assert list(sent) == list(came)
    for name in sent:
        assert same_bits(sent[name], came[name]), name


@st.composite
def tensors(draw: st.DrawFn, shapes: list[tuple[int, ...]] = SHAPES) -> Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.sampled_from(shapes))
    style = draw(st.sampled_from(["normal", "bits", "special", "few", "half", "multiples", "small"]))
    density = draw(st.sampled_from([0.0, 0.002, 0.03, 0.2, 0.5, 0.9, 0.99, 1.0]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = int(np.prod(shape))
    if style == "bits" and dtype is not torch.bool:
        raw = torch.from_numpy(rng.integers(0, 256, n * dtype.itemsize, dtype=np.uint8))
        flat = raw.view(dtype).clone() if n else torch.zeros(0, dtype=dtype)
    else:
        normal = rng.normal(0, 3, n)
        values = {
            "normal": normal,
            "bits": normal,
            "special": rng.choice(SPECIAL, n),
            "few": rng.choice(rng.normal(0, 1, rng.integers(1, 300)), n),
            "half": normal.astype(np.float16).astype(np.float64),
            "multiples": np.round(normal * 10) * np.float32(0.00123),
            "small": normal * 1e-39,
        }[style]
        flat = torch.from_numpy(
            values if dtype.is_floating_point else np.nan_to_num(values, posinf=9, neginf=9)
        )
        flat = flat.to(dtype)
    kept = torch.from_numpy(rng.random(n) < density)
    return torch.where(kept, flat, torch.zeros((), dtype=dtype)).reshape(shape)


@settings(max_examples=250, deadline=None)
@given(st.dictionaries(st.text(max_size=5), tensors(), max_size=4))
def test_an_update_comes_back_bit_for_bit(update):
    assert_same(update, decode(encode(update), update))


@settings(max_examples=120, deadline=None)
@given(tensors(), st.sampled_from([0.0, 0.1, 0.5, 1.0]), st.integers(0, 2**31))
def test_an_update_within_known_positions_comes_back_bit_for_bit(tensor, share, seed):
    mask = torch.rand(tensor.shape, generator=torch.Generator().manual_seed(seed)) < share
    update = {"w": torch.where(mask, tensor, torch.zeros((), dtype=tensor.dtype)), "free": tensor}
    within = {"w": mask}
    assert_same(update, decode(encode(update, within=within), update, within=within))


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_a_change_restores_the_new_weights_bit_for_bit(data):
    old = data.draw(tensors())
    new = data.draw(tensors(shapes=[tuple(old.shape)]).filter(lambda t: t.dtype == old.dtype) | st.just(old))
    assert_same({"w": new}, apply_change({"w": old}, encode_change({"w": new}, {"w": old})))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_zeros_infinities_denormals_and_payloads_of_nan_survive(dtype):
    width = dtype.itemsize * 8
    integer = {16: torch.int16, 32: torch.int32, 64: torch.int64}[width]
    exponent = {torch.float16: 5, torch.bfloat16: 8, torch.float32: 8, torch.float64: 11}[dtype]
    infinity = ((1 << exponent) - 1) << (width - 1 - exponent)
    patterns = [0, 1, 2, infinity - 1, infinity, infinity + 1, infinity + 77, (1 << width - 1) - 1]
    patterns += [p | 1 << width - 1 for p in patterns]  # and the negative of each: -0.0 among them
    signed = [p - (1 << width) if p >> width - 1 else p for p in patterns]
    tensor = torch.tensor(signed * 40, dtype=integer).view(dtype)
    assert_same({"w": tensor}, decode(encode({"w": tensor}), {"w": tensor}))


def test_negative_zero_is_not_a_zero():
    update = {"w": torch.tensor([0.0, -0.0, 1.0])}
    assert torch.equal(torch.signbit(decode(encode(update), update)["w"]), torch.tensor([False, True, False]))


def test_int8_rounding_with_negative_zeros_comes_back():
    g = torch.randn(3000, generator=torch.Generator().manual_seed(1))
    step = g.abs().max() / 127
    update = {"w": torch.round(g / step) * step}
    assert (torch.signbit(update["w"]) & (update["w"] == 0)).any()
    assert_same(update, decode(encode(update), update))


def test_a_rare_value_that_a_sample_misses_comes_back():
    generator = torch.Generator().manual_seed(0)
    base = torch.randint(0, 200, (200_000,), generator=generator).float() * 0.37
    for odd_one in (0.1234567, float("nan"), -0.0):
        update = {"w": base.clone()}
        update["w"][131_071] = odd_one
        assert_same(update, decode(encode(update), update))
    halves = base.half().float()
    halves[77_777] = 1 + 2**-20
    assert_same({"w": halves}, decode(encode({"w": halves}), {"w": halves}))
    wide = torch.arange(200_000, dtype=torch.int64) % 7
    wide[99_999] = 2**62
    assert_same({"w": wide}, decode(encode({"w": wide}), {"w": wide}))


def test_layout_of_the_input_does_not_matter():
    base = torch.randn(6, 4, 5, 3, generator=torch.Generator().manual_seed(0))
    views = {
        "transposed": base.permute(3, 1, 0, 2),
        "strided": base[::2, 1:, ::3],
        "channels_last": base.contiguous(memory_format=torch.channels_last),
        "expanded": base[:1, :1].expand(6, 4, 5, 3),
        "parameter": torch.nn.Parameter(base),
    }
    assert encode(views) == encode({k: v.detach().clone().contiguous() for k, v in views.items()})
    came = decode(encode(views), views)
    assert_same({k: v.detach() for k, v in views.items()}, came)
    assert not any(t.requires_grad for t in came.values())


def test_values_of_like_are_not_used_and_its_order_is_kept():
    update = {"b": torch.randn(20), "a": torch.arange(5)}
    like = {"a": torch.full((5,), 9), "b": torch.full((20,), torch.nan)}
    came = decode(encode(update), like)
    assert list(came) == ["a", "b"]
    assert same_bits(came["b"], update["b"])
    assert encode(update) == encode(dict(reversed(update.items())))


def test_same_input_gives_same_bytes_in_any_thread():
    update = {str(i): torch.randn(5000, generator=torch.Generator().manual_seed(i)) for i in range(4)}
    first = encode(update)
    with ThreadPoolExecutor(4) as pool:
        assert all(blob == first for blob in pool.map(lambda _: encode(update), range(8)))


def test_what_was_encoded_before_does_not_matter():
    generator = torch.Generator().manual_seed(0)
    sizes = (60, 300_000, 5000, 20_000)
    updates = [{"a": torch.randn(n, generator=generator), "b": torch.arange(n) // 7} for n in sizes]
    with ThreadPoolExecutor(1) as pool:
        fresh = pool.submit(encode, updates[0]).result()
    in_turn = [encode(update) for update in updates]
    in_reverse = [encode(update) for update in reversed(updates)]
    assert in_turn[0] == fresh
    assert in_turn == in_reverse[::-1]


@pytest.mark.parametrize("within", [False, True])
def test_ordinary_special_and_empty_tensors_come_back_side_by_side(within):
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(12, 500, generator=generator)
    kept = torch.rand(12, 500, generator=generator) < 0.2
    update = {
        "sparse": torch.where(kept[0], normal[0], 0.0),
        "sparse64": torch.where(kept[1], normal[1], 0.0).double() / 3,
        "dense": normal[2],
        "dense64": normal[3].double() / 3,
        "sign": normal[4].sign(),
        "half": normal[5].half().float(),
        "steps": torch.round(normal[6, :12] * 30) * 0.0123,
        "zero": torch.zeros(500),
        "empty": torch.zeros(0),
        "one": torch.tensor(0.1),
        "wide": normal.repeat(3, 1),
        "counter": torch.tensor(7),
    }
    masks = {"sparse": kept[0], "dense64": torch.ones(500, dtype=torch.bool)} if within else None
    assert_same(update, decode(encode(update, within=masks), update, within=masks))
    old = {name: torch.zeros_like(t) for name, t in update.items()}
    assert_same(update, apply_change(old, encode_change(update, old)))


def test_small_tensors_that_were_written_together_own_their_memory():
    update = {str(i): torch.randn(50, generator=torch.Generator().manual_seed(i)) for i in range(3)}
    came = decode(encode(update), update)
    assert all(t.untyped_storage().nbytes() == 4 * 50 for t in came.values())


def test_inputs_are_left_alone_and_results_own_their_memory():
    update = {"w": torch.randn(100), "u": torch.arange(100, dtype=torch.uint8)}
    before = {k: v.clone() for k, v in update.items()}
    blob = encode(update)
    came = decode(blob, update)
    for tensor in came.values():
        tensor.zero_()
    assert_same(before, update)
    assert_same(update, decode(blob, update))


def test_a_decoder_that_flushes_denormals_still_restores_every_bit():
    generator = torch.Generator().manual_seed(0)
    factors = torch.randint(-127, 128, (3000,), generator=generator)
    update = {
        "float64": (factors * 2.0**-140).double(),  # denormals as float32
        "half": factors.float() * 2.0**-24,  # denormals as float16
        "brain": factors.float() * 2.0**-133,  # denormals as bfloat16 and as float32
        "multiples": factors.float() * 2.0**-126 * 3,
    }
    blob = encode(update)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush denormals")
    try:
        came = decode(blob, update)
        flushing = encode(update)
    finally:
        torch.set_flush_denormal(False)
    assert_same(update, came)
    assert_same(update, decode(flushing, update))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_results_are_on_the_device_of_like():
    update = {"w": torch.randn(50, device="cuda")}
    came = decode(encode(update), update)
    assert came["w"].device == update["w"].device
    assert_same({"w": update["w"].cpu()}, {"w": came["w"].cpu()})


def test_a_value_outside_of_within_is_refused_by_name():
    mask = torch.tensor([True, False, True])
    with pytest.raises(ValueError, match=r"'conv\.weight' has 1 entries outside"):
        encode({"conv.weight": torch.tensor([1.0, 2.0, 0.0])}, within={"conv.weight": mask})
    with pytest.raises(ValueError, match="outside"):
        encode({"w": torch.tensor([1.0, -0.0, 0.0])}, within={"w": mask})


@pytest.mark.parametrize(
    ("within", "message"),
    [
        ({"v": torch.ones(3, dtype=torch.bool)}, "'v', which is no tensor"),
        ({"w": torch.ones(4, dtype=torch.bool)}, r"boolean of shape \(3,\), got torch.bool \(4,\)"),
        ({"w": torch.ones(3)}, "got torch.float32"),
    ],
)
def test_a_mask_that_does_not_fit_is_a_mistake_of_the_caller(within, message):
    update = {"w": torch.zeros(3)}
    with pytest.raises(ValueError, match=message):
        encode(update, within=within)
    with pytest.raises(ValueError, match=message) as raised:
        decode(encode(update), update, within=within)
    assert not isinstance(raised.value, CodecError)


def test_a_dtype_without_a_code_is_refused_with_the_possible_ones():
    with pytest.raises(ValueError, match=r"'z' has dtype torch.complex64, expected one of float32, .*bool"):
        encode({"z": torch.zeros(2, dtype=torch.complex64)})


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ({"v": torch.zeros(3)}, r"only one of new and old has \['v', 'w'\]"),
        ({"w": torch.zeros(4)}, r"'w': old is torch.float32 \(3,\), new is torch.float32 \(4,\)"),
        ({"w": torch.zeros(3, dtype=torch.float64)}, r"new is torch.float64 \(3,\)"),
    ],
)
def test_a_change_needs_the_same_names_shapes_and_dtypes(new, message):
    with pytest.raises(ValueError, match=message):
        encode_change(new, {"w": torch.zeros(3)})


@given(tensors(), st.floats(0, 1), st.integers(0, 2**32 - 1))
def test_a_change_within_known_positions_comes_back_bit_for_bit(tensor, share, seed):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(tensor.shape, generator=generator) < share
    other = tensor.flatten().flip(0).view(tensor.shape)
    old, new, within = {"w": tensor}, {"w": torch.where(mask, other, tensor)}, {"w": mask}
    blob = encode_change(new, old, within=within)
    assert_same(new, apply_change(old, blob, within=within))


def test_a_change_outside_of_within_is_refused_by_name():
    old, new = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([1.0, 3.0])}
    with pytest.raises(ValueError, match="encode_change: tensor 'w' has 1 entries outside of within"):
        encode_change(new, old, within={"w": torch.tensor([True, False])})


def test_a_change_read_with_other_positions_is_refused():
    old, new = {"w": torch.arange(20.0)}, {"w": torch.arange(20.0)}
    new["w"][3] += 1
    mask, other = torch.arange(20) < 5, torch.arange(20) > 14
    blob = encode_change(new, old, within={"w": mask})
    for within in ({"w": other}, None):
        with pytest.raises(CodecError):
            apply_change(old, blob, within=within)


def test_known_positions_make_a_change_smaller():
    old = {"w": torch.randn(20_000)}
    mask = torch.rand(20_000) < 0.4
    new = {"w": torch.where(mask, old["w"] * 1.001, old["w"])}
    # what is saved is the bitmap: log2 C(n, 0.4 n) = 0.97 n bits
    saved = len(encode_change(new, old)) - len(encode_change(new, old, within={"w": mask}))
    assert saved > 0.9 * 20_000 / 8
