"""Tensors in the arguments of a collective: how many bytes they are, and of which dtype."""

from __future__ import annotations

from typing import Any

import torch

from ddptrace.capture.collectives.tap import Operator


def nbytes_of(value: Any) -> int:
    """Return the bytes of a tensor, or of all tensors in a list at any depth. A view counts only its own elements."""
    if isinstance(value, _TENSOR):
        return value.nbytes if value.layout is _STRIDED else _sparse_nbytes(value)
    total = 0
    if isinstance(value, _LISTS):
        for item in value:
            total += nbytes_of(item)
    return total


_TENSOR, _STRIDED, _LISTS = torch.Tensor, torch.strided, (list, tuple)


def _sparse_nbytes(tensor: torch.Tensor) -> int:
    """Return the bytes of its indices and values, which a backend sends; 0 for layouts that no backend takes."""
    if tensor.layout is not torch.sparse_coo:
        return 0
    return tensor._indices().nbytes + tensor._values().nbytes


def first_tensor(args: tuple[Any, ...], op: Operator) -> torch.Tensor | None:
    """Return the first input tensor; the first output if there is no input, as where another rank scatters."""
    for i in op.inputs + op.outputs:
        value = args[i]
        while isinstance(value, _LISTS):
            value = value[0] if value else None
        if isinstance(value, _TENSOR):
            return value
    return None


def is_symbolic(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and any(isinstance(size, torch.SymInt) for size in tensor.shape)


_dtype_names: dict[torch.dtype, str] = {}


def dtype_name(dtype: torch.dtype) -> str:
    name = _dtype_names.get(dtype)
    if name is None:
        name = _dtype_names[dtype] = str(dtype).removeprefix("torch.")
    return name
