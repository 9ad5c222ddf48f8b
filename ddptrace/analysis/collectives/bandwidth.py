"""How fast a collective moved its bytes. The definitions are those of nccl-tests, so that numbers compare with its."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ddptrace.load.tables import Call

Factor = Callable[[int], float]


def _twice(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


def _others(ranks: int) -> float:
    return (ranks - 1) / ranks


def _once(ranks: int) -> float:
    return 1.0


FACTORS: Final[Mapping[str, Factor]] = {
    "all_reduce": _twice, "all_reduce_coalesced": _twice, "allreduce_sparse": _twice,
    "all_gather": _others, "all_gather_into_tensor": _others, "all_gather_coalesced": _others,
    "all_gather_into_tensor_coalesced": _others,
    "reduce_scatter": _others, "reduce_scatter_tensor": _others, "reduce_scatter_tensor_coalesced": _others,
    "all_to_all": _others, "all_to_all_single": _others, "gather": _others, "scatter": _others,
    "broadcast": _once, "reduce": _once, "send": _once, "recv": _once, "recv_any_source": _once,
}  # fmt: skip
"""By op: bytes that one link carries, as a share of the collective's bytes, by the number of ranks."""

_GATHERING: Final = ("all_gather", "gather")
_SCATTERING: Final = ("reduce_scatter", "scatter")


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """In bytes per second; None where it is not known."""

    algbw: float | None = None
    busbw: float | None = None


def bandwidth(call: Call, group_size: int | None, exec_ns: int) -> Bandwidth:
    """`exec_ns`: the whole execution. An op that is not known here has bytes of unknown meaning: nothing is said."""
    factor, nbytes = FACTORS.get(call.op), moved_nbytes(call, group_size)
    if factor is None or not nbytes or exec_ns <= 0:
        return Bandwidth()
    algbw = nbytes * 1e9 / exec_ns
    return Bandwidth(algbw, algbw * factor(group_size) if group_size else None)


def moved_nbytes(call: Call, group_size: int | None) -> int | None:
    """The whole of what is gathered or scattered, also on a rank that holds only its part; None where not known."""
    whole, part = call.nbytes_in, call.nbytes_out
    if call.op.startswith(_GATHERING):
        whole, part = part, whole
    elif not call.op.startswith(_SCATTERING):
        return max(whole, part)
    return whole or (part * group_size if group_size else None)
