"""Sizes of the wire against their bound, and its times as ratios to one backward pass.

``python -m benchmarks.wire``. Everything is measured in one process with two
threads, so the ratios carry over to another machine better than seconds would.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fl_app.models import lenet_zhu, resnet18
from fl_app.types import Update
from fl_app.wire import apply_change, decode, encode, encode_change
from fl_app.wire.bound import entropy_bound

THREADS = 2
BATCH = 8


class Row(NamedTuple):
    """One case: bytes, the bound's bytes, and seconds."""

    case: str
    size: int
    bound: float
    encode: float
    decode: float


def measure(make_model: Callable[[], nn.Module], repeats: int = 3) -> tuple[float, int, list[Row]]:
    """Return the seconds of a backward pass, the bytes of a dense float32 update, and the rows."""
    torch.manual_seed(0)
    model = make_model()
    before, gradient, other, backward = _train(model, repeats)
    after = {name: p.detach().clone() for name, p in model.named_parameters()}
    known = {name: _top(g, 0.4) for name, g in other.items()}
    cases: dict[str, tuple[Update, dict[str, Tensor] | None]] = {
        "dense gradient": (gradient, None),
        "top 20 %": (_keep(gradient, 0.2), None),
        "top 5 %": (_keep(gradient, 0.05), None),
        "top 1 %": (_keep(gradient, 0.01), None),
        "half of 40 % known positions": (_keep(gradient, 0.2, known), known),
        "float16-rounded": ({k: g.half().float() for k, g in gradient.items()}, None),
        "bfloat16-rounded": ({k: g.bfloat16().float() for k, g in gradient.items()}, None),
        "int8-rounded": ({k: _round_int8(g) for k, g in gradient.items()}, None),
        "sign times mean": ({k: torch.sign(g) * g.abs().mean() for k, g in gradient.items()}, None),
        "all zero": ({k: torch.zeros_like(g) for k, g in gradient.items()}, None),
    }
    rows = []
    for case, (update, within) in cases.items():
        blob, encoding = _best(lambda u=update, w=within: encode(u, within=w), repeats)
        back, decoding = _best(lambda b=blob, w=within: decode(b, gradient, within=w), repeats)
        _check(update, back)
        rows.append(Row(case, len(blob), entropy_bound(update, within=within), encoding, decoding))
    blob, encoding = _best(lambda: encode_change(after, before), repeats)
    back, decoding = _best(lambda: apply_change(before, blob), repeats)
    _check(after, back)
    xor = {k: after[k].view(torch.int32) ^ before[k].view(torch.int32) for k in after}
    rows.append(Row("change of one SGD step", len(blob), entropy_bound(xor), encoding, decoding))
    return backward, sum(4 * g.numel() for g in gradient.values()), rows


def main(repeats: int = 3) -> None:
    """Print one table per model; the best time of ``repeats`` counts."""
    torch.set_num_threads(THREADS)
    models: dict[str, Callable[[], nn.Module]] = {
        "ResNet18": lambda: resnet18(num_classes=10, in_shape=(3, 32, 32)),
        "LeNet": lambda: lenet_zhu(num_classes=10, in_shape=(3, 32, 32)),
    }
    for name, make_model in models.items():
        backward, dense, rows = measure(make_model, repeats)
        print(f"{name}: {dense:,} bytes dense; backward pass of {BATCH} images {backward * 1e3:.1f} ms")
        print(f"{'':30}{'bytes':>12}{'of dense':>10}{'of bound':>10}{'encode':>9}{'decode':>9}{'sum':>9}")
        for row in rows:
            times = (row.encode / backward, row.decode / backward, (row.encode + row.decode) / backward)
            of_bound = f"{row.size / row.bound:10.4f}" if row.bound else f"{'':10}"
            print(
                f"{row.case:30}{row.size:12,}{row.size / dense:10.4f}{of_bound}"
                + "".join(f"{t:9.3f}" for t in times)
            )
        print()


def _train(model: nn.Module, repeats: int) -> tuple[Update, Update, Update, float]:
    """Take SGD steps on smooth random images; return weights, a gradient, an earlier one, and seconds."""
    names = [name for name, _ in model.named_parameters()]
    parameters = list(model.parameters())
    seconds, gradients, before = [], [], {}
    for _ in range(2 * repeats + 1):
        images = nn.functional.interpolate(torch.randn(BATCH, 3, 8, 8), scale_factor=4, mode="bilinear")
        loss = cross_entropy(model(images), torch.randint(10, (BATCH,)))
        start = time.perf_counter()
        gradient = torch.autograd.grad(loss, parameters)
        seconds.append(time.perf_counter() - start)
        gradients.append(dict(zip(names, gradient, strict=True)))
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        with torch.no_grad():
            for parameter, g in zip(parameters, gradient, strict=True):
                parameter -= 0.01 * g
    return before, gradients[-1], gradients[-2], min(seconds)


def _top(tensor: Tensor, share: float) -> Tensor:
    mask = torch.zeros(tensor.numel(), dtype=torch.bool)
    mask[tensor.abs().flatten().topk(max(1, int(share * tensor.numel()))).indices] = True
    return mask.view(tensor.shape)


def _keep(update: Update, share: float, known: dict[str, Tensor] | None = None) -> Update:
    inside = {k: g.masked_fill(~known[k], 0.0) if known else g for k, g in update.items()}
    return {k: g.masked_fill(~_top(g, share), 0.0) for k, g in inside.items()}


def _round_int8(tensor: Tensor) -> Tensor:
    step = tensor.abs().max() / 127
    return torch.round(tensor / step) * step


def _best(call: Callable[[], Any], repeats: int) -> tuple[Any, float]:
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        result = call()
        seconds.append(time.perf_counter() - start)
    return result, min(seconds)


def _check(sent: Update, received: Update) -> None:
    for name, tensor in sent.items():
        if not torch.equal(tensor.view(torch.int32), received[name].view(torch.int32)):
            raise RuntimeError(f"benchmarks.wire: tensor {name!r} did not come back bit for bit")


if __name__ == "__main__":
    main()
