"""Floating-point operations of an operator, from the shapes of its inputs, as `torch.utils.flop_counter` counts them.

Only operators that hand their whole work to the device are counted: of `aten::linear` and the `aten::addmm` inside it,
the latter. A multiplication and an addition are two operations. What a causal mask saves is not subtracted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ddptrace.load.tables import Operation

Shape = tuple[int, ...]
Formula = Callable[..., int]


@dataclass(frozen=True, slots=True)
class OperatorFlops:
    """What an operator's name and inputs tell of its work."""

    operation: Operation
    flops: int | None  # None where no shapes are recorded, or no formula fits them
    dtype: str  # of the operand that the formula begins with, as written; empty where none is recorded


@dataclass(frozen=True, slots=True)
class Counted:
    """How the operations of one kind of operator are counted."""

    operation: Operation
    formula: Formula | None = None  # takes the shapes of the operands
    first: int = 0  # of the inputs that are operands
    end: int = 0  # behind the last of them


def product(a: Shape, b: Shape) -> int:
    """(m, k) by (k, n). Raises ValueError where the shapes are no such pair, as all formulas here do."""
    (m, k), (inner, n) = a, b
    _demand(k == inner)
    return 2 * m * n * k


def batched_product(a: Shape, b: Shape) -> int:
    """(batch, m, k) by (batch, k, n)."""
    _demand(len(a) == len(b) == 3 and a[0] == b[0])
    return a[0] * product(a[1:], b[1:])


def attention(query: Shape, key: Shape, value: Shape) -> int:
    """Shapes are (batch, heads, sequence, width). Several heads of the query may share one of the keys."""
    batch, heads, queries, keys, width, out = _attended(query, key, value)
    return 2 * batch * heads * queries * keys * (width + out)


def attention_backward(gradient: Shape, query: Shape, key: Shape, value: Shape) -> int:
    """Scores are computed again, then come the gradients of query, key and value."""
    batch, heads, queries, keys, width, out = _attended(query, key, value)
    _demand(gradient == (batch, heads, queries, out))
    return 2 * batch * heads * queries * keys * (3 * width + 2 * out)


def _attended(query: Shape, key: Shape, value: Shape) -> Shape:
    (batch, heads, queries, width), (_, shared, keys, _), out = query, key, value[-1]
    _demand(key == (batch, shared, keys, width) and value == (batch, shared, keys, out))
    _demand(shared > 0 and heads % shared == 0)
    return batch, heads, queries, keys, width, out


def _demand(fits: bool) -> None:
    if not fits:
        raise ValueError("the shapes do not fit each other")


MATRICES: Final = Counted(Operation.MATRIX, product, 0, 2)
ADDED_MATRICES: Final = Counted(Operation.MATRIX, product, 1, 3)
CONVOLUTION: Final = Counted(Operation.CONVOLUTION)
ATTENTIONS: Final = ("flash", "efficient", "cudnn")
COUNTED: Final[dict[str, Counted]] = {
    "aten::mm": MATRICES,
    "aten::_scaled_mm": MATRICES,
    "aten::_int_mm": MATRICES,
    "aten::addmm": ADDED_MATRICES,
    "aten::_addmm_activation": ADDED_MATRICES,
    "aten::bmm": Counted(Operation.MATRIX, batched_product, 0, 2),
    "aten::baddbmm": Counted(Operation.MATRIX, batched_product, 1, 3),
    "aten::convolution": CONVOLUTION,
    "aten::convolution_backward": CONVOLUTION,
    "aten::cudnn_convolution_backward": CONVOLUTION,
    **{
        f"aten::_scaled_dot_product_{kind}_attention": Counted(Operation.ATTENTION, attention, 0, 3)
        for kind in ATTENTIONS
    },
    **{
        f"aten::_scaled_dot_product_{kind}_attention_backward": Counted(Operation.ATTENTION, attention_backward, 0, 4)
        for kind in ATTENTIONS
    },
    **dict.fromkeys(
        (
            "flash_attn::_flash_attn_forward",
            "flash_attn::_flash_attn_backward",
            "flash_attn::_flash_attn_varlen_forward",
            "flash_attn::_flash_attn_varlen_backward",
            "flash_attn_3::fwd",
            "flash_attn_3::bwd",
        ),
        Counted(Operation.ATTENTION),
    ),
}
"""By the operator's name. The output of a convolution is not recorded, and packed sequences have no shape of their own:
those are known, and not counted."""
LARGEST: Final = 2**62  # two of them still fit an int64


def flops_of(name: str, dims: Any, types: Any) -> OperatorFlops:
    """What the arguments `Input Dims` and `Input type` tell of an operator that `COUNTED` knows."""
    counted = COUNTED[name]
    dtypes = types[counted.first : counted.end] if isinstance(types, list) else []
    dtype = dtypes[-1] if dtypes and isinstance(dtypes[-1], str) else ""
    return OperatorFlops(counted.operation, _flops(counted, dims), dtype)


def _flops(counted: Counted, dims: Any) -> int | None:
    if counted.formula is None or not isinstance(dims, list):
        return None
    shapes = dims[counted.first : counted.end]
    if not all(map(_is_shape, shapes)):
        return None
    try:
        flops = counted.formula(*map(tuple, shapes))
    except (ValueError, TypeError, IndexError):
        return None
    return flops if flops < LARGEST else None


def _is_shape(extents: Sequence[Any]) -> bool:
    return isinstance(extents, list) and all(type(extent) is int and extent >= 0 for extent in extents)
