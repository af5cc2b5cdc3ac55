"""Path of an image to a model's first linear layer: flattened at once, or through convolutions.

A size-preserving convolution of stride 1 can pass its input on, if it has enough channels:
its kernels are then a single 1. The first one converts its input to pixels, which no ReLU
clips.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from attacks.optimisation.problem import Problem

_NEUTRAL = (nn.ReLU, nn.Identity, nn.Flatten)


class LinearCall(NamedTuple):
    """The first linear layer that a model calls, and its input."""

    name: str
    sees_pixels: bool
    """Whether its first inputs are pixels; otherwise they are the flattened input of the model."""

    def pixels(self, inputs: Tensor, problem: Problem) -> Tensor:
        """Return flat pixels from inputs of the layer (N, in_features)."""
        shape = problem.input_shape
        images = inputs[:, : torch.Size(shape).numel()]
        return images if self.sees_pixels else problem.to_pixels(images.view(-1, *shape)).flatten(1)


def pass_pixels(
    model: nn.Module, in_shape: Sequence[int], mean: Sequence[float], std: Sequence[float], *, who: str
) -> bool:
    """Make convolutions before the first linear layer pass pixels on, in place; return False without any."""
    called = _calls(model, torch.zeros(1, *in_shape, device="cpu"))
    first = next((i for i, (_, module) in enumerate(called) if isinstance(module, nn.Linear)), None)
    if first is None:
        raise ValueError(f"{who}: the model must have a linear layer, got one without")
    convolutions = []
    for name, module in called[:first]:
        if isinstance(module, nn.Conv2d):
            _check_passes(name, module, in_shape[0], who)
            convolutions.append(module)
        elif not isinstance(module, _NEUTRAL):
            allowed = ", ".join(kind.__name__ for kind in (nn.Conv2d, *_NEUTRAL))
            raise ValueError(
                f"{who}: before the first linear layer only {allowed} can pass an image on; "
                f"got {type(module).__name__} ({name})"
            )
    for i, convolution in enumerate(convolutions):
        scale, shift = (std, mean) if i == 0 else ([1.0] * in_shape[0], [0.0] * in_shape[0])
        _become_identity(convolution, scale, shift)
    return bool(convolutions)


def first_linear_call(
    model: nn.Module, in_shape: Sequence[int], mean: Sequence[float], std: Sequence[float], *, who: str
) -> LinearCall:
    """Return the first linear layer, if it sees the whole image."""
    like = next(model.parameters())
    shift, scale = (torch.tensor(values).to(like).view(-1, 1, 1) for values in (mean, std))
    generator = torch.Generator(device="cpu").manual_seed(0)
    # two samples: BatchNorm in train mode, further on, refuses one
    pixels = torch.rand((2, *in_shape), generator=generator, device="cpu").to(like)
    found: list[tuple[str, Tensor]] = []
    handles = [
        module.register_forward_pre_hook(lambda _, args, name=name: found.append((name, args[0].detach())))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    inputs = (pixels - shift) / scale
    _run(model, inputs, handles)
    if found:
        name, seen = found[0]
        for sees_pixels, expected in ((False, inputs.flatten(1)), (True, pixels.flatten(1))):
            part = seen[:, : expected.shape[1]]
            if part.shape == expected.shape and torch.allclose(part, expected, atol=1e-5):
                return LinearCall(name, sees_pixels)
    raise ValueError(
        f"{who}: the model's first linear layer must see the image itself, got one that does not"
    )


def _calls(model: nn.Module, images: Tensor) -> list[tuple[str, nn.Module]]:
    """Return the layers in call order."""
    found: list[tuple[str, nn.Module]] = []
    handles = [
        module.register_forward_pre_hook(lambda layer, args, name=name: found.append((name, layer)))
        for name, module in model.named_modules()
        if not any(True for _ in module.children())
    ]
    _run(model, images.to(next(model.parameters())), handles)
    return found


def _run(model: nn.Module, images: Tensor, handles: list[torch.utils.hooks.RemovableHandle]) -> None:
    """Call the model once in eval mode, then restore the mode of every layer."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.no_grad():
            model.eval()(images)
    finally:
        for module, mode in modes:
            module.training = mode
        for handle in handles:
            handle.remove()


def _check_passes(name: str, layer: nn.Conv2d, channels: int, who: str) -> None:
    size, width = layer.kernel_size
    same = layer.padding == "same" or layer.padding == (size // 2, width // 2)
    plain = layer.stride == (1, 1) and layer.dilation == (1, 1) and layer.groups == 1
    if not (plain and same and size % 2 and width % 2 and layer.bias is not None):
        raise ValueError(
            f"{who}: to pass an image on, {name} must have stride 1, an odd kernel padded to keep the size, "
            f"no dilation, one group and a bias; got {layer}"
        )
    if layer.out_channels < channels:
        raise ValueError(f"{who}: to pass an image on, {name} must have {channels} channels, got {layer}")


@torch.no_grad()
def _become_identity(layer: nn.Conv2d, scale: Sequence[float], shift: Sequence[float]) -> None:
    height, width = (size // 2 for size in layer.kernel_size)
    bias = cast(nn.Parameter, layer.bias)  # `_check_passes` refuses a layer without
    layer.weight.zero_()
    bias.zero_()
    for channel, (factor, offset) in enumerate(zip(scale, shift, strict=True)):
        layer.weight[channel, channel, height, width] = factor
        bias[channel] = offset
