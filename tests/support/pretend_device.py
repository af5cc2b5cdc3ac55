"""A second device without hardware, `device=pretend`, whose tensors hold tensors of the CPU.

As on a GPU, mixing its tensors with those of the CPU is an error, and every value that Python reads is a copy
from the device. All kernels are the CPU's, so a run there has the bits of a run on the CPU. torch registers
one such device for a whole process, so whoever imports this needs a process of its own.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretend"
copies: Counter[str] = Counter()
"""Copies since the start: `up` to the device, `down` from it, and `read`, numbers that Python reads."""

_setup_privateuseone_for_python_backend(NAME)
_CPU = torch.device("cpu")


_FORM = torch._C.DispatchKeySet(torch._C.DispatchKey.Meta)


def _wrap(value: Any) -> Any:
    """Return a tensor of the device with the form of ``value``: also its strides, on which layouts depend."""
    if not isinstance(value, torch.Tensor):
        return value
    held = torch._C._acc.create_empty_tensor(value.shape, value.dtype)
    if not value.is_contiguous():
        # the kernel of tensors without content
        held = torch.ops.aten.as_strided.default.redispatch(_FORM, held, value.shape, value.stride(), 0)
    # kept by the storage: torch makes other objects for the same tensor, such as a parameter's data
    held.untyped_storage().raw = value
    return held


def _reshape(held: torch.Tensor, raw: torch.Tensor) -> None:
    """Give a tensor the form that an operation has given to its content, such as an empty output."""
    if held.shape != raw.shape:
        held.data = _wrap(raw)


def _is_there(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def _unwrap(value: Any) -> Any:
    if isinstance(value, torch.device):
        return _CPU
    if not _is_there(value):
        return value
    raw = value.untyped_storage().raw
    # some views are made without asking the device, also of the same bits as another type
    if raw.dtype != value.dtype:
        raw = raw.view(value.dtype)
    offset = raw.storage_offset() + value.storage_offset()
    return raw.as_strided(value.shape, value.stride(), offset)


def _refuse_mixing(name: str, values: list[Any]) -> None:
    here = any(_is_there(value) for value in values)
    # as on a GPU: a number in a tensor without dimensions may come from anywhere
    elsewhere = [v for v in values if isinstance(v, torch.Tensor) and not _is_there(v) and v.dim() > 0]
    if here and elsewhere:
        raise RuntimeError(f"{name}: expected all tensors on one device, got {NAME}:0 and cpu")


def _compute(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute any operation on the CPU; an operation in place returns the tensor that it changed."""
    _refuse_mixing(str(op), tree_leaves((args, kwargs)))
    given: dict[int, torch.Tensor] = {}

    def content(value: Any) -> Any:
        raw = _unwrap(value)
        if raw is not value and isinstance(value, torch.Tensor):
            given[id(raw)] = value
        return raw

    there = tree_map(content, (args, kwargs))
    out = op(*there[0], **there[1])
    for raw in tree_leaves(there):
        if id(raw) in given:
            _reshape(given[id(raw)], raw)
    return tree_map(lambda value: given[id(value)] if id(value) in given else _wrap(value), out)


def _view(held: torch.Tensor, shape: Any, stride: Any, offset: int | None = None) -> torch.Tensor:
    """Return a view by offsets into the content, which may itself be a part of something."""
    start = held.untyped_storage().raw.storage_offset()
    offset = held.storage_offset() if offset is None else offset
    return _wrap(_unwrap(held).as_strided(shape, stride, start + offset))


def _view_in_place(held: torch.Tensor, shape: Any, stride: Any, offset: int | None = None) -> torch.Tensor:
    held.data = _view(held, shape, stride, offset)
    return held


def _copy(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if _is_there(source) != _is_there(target):
        copies["up" if _is_there(target) else "down"] += 1
    _unwrap(target).copy_(_unwrap(source))
    return target


def _copy_and_resize(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    _unwrap(target).resize_(source.shape)
    return _copy(source, target)


def _read(value: torch.Tensor) -> Any:
    copies["read"] += 1
    return _unwrap(value).item()


def _convolve(x: Any, weight: Any, bias: Any, *settings: Any) -> Any:
    _refuse_mixing("convolution", [x, weight, bias])
    return _wrap(torch.ops.aten.convolution(_unwrap(x), _unwrap(weight), _unwrap(bias), *settings))


def _convolve_back(grad: Any, x: Any, weight: Any, *settings: Any) -> Any:
    _refuse_mixing("convolution_backward", [grad, x, weight])
    *settings_, mask = settings
    transposed, groups = settings_[3], settings_[5]
    sizes = [weight.shape[1] * groups if transposed else weight.shape[0]]
    raw = (_unwrap(value) for value in (grad, x, weight))
    return tuple(
        None if out is None else _wrap(out)
        for out in torch.ops.aten.convolution_backward(*raw, sizes, *settings_, mask)
    )


_kernels = torch.library.Library("aten", "IMPL")
_kernels.impl("_copy_from", _copy, "PrivateUse1")
_kernels.impl("_copy_from_and_resize", _copy_and_resize, "PrivateUse1")
_kernels.impl("_local_scalar_dense", _read, "PrivateUse1")
_kernels.impl("as_strided", _view, "PrivateUse1")
_kernels.impl("as_strided_", _view_in_place, "PrivateUse1")
_kernels.impl("convolution_overrideable", _convolve, "PrivateUse1")
_kernels.impl("convolution_backward_overrideable", _convolve_back, "PrivateUse1")
_all = torch.library.Library("_", "IMPL")
_all.fallback(_compute, "PrivateUse1")


_honest_deepcopy = torch.Tensor.__deepcopy__


def _deepcopy(tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
    """Copy a tensor of the device; torch would copy its storage, of which this device has none of its own."""
    if not _is_there(tensor) or id(tensor) in memo:
        return _honest_deepcopy(tensor, memo)
    memo[id(tensor)] = tensor.detach().clone().requires_grad_(tensor.requires_grad)
    return memo[id(tensor)]


torch.Tensor.__deepcopy__ = _deepcopy  # type: ignore[method-assign]
