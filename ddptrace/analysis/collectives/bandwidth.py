"""How fast a collective moved its bytes. The definitions are those of nccl-tests, so that numbers compare with its."""

from __future__ import annotations

from dataclasses import dataclass

from ddptrace.load.tables import Call
from ddptrace.ops import FACTORS, Whole, family_of


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
    match family_of(call.op).whole:
        case Whole.EITHER:
            return max(whole, part)
        case Whole.OUTPUT:
            whole, part = part, whole
    return whole or (part * group_size if group_size else None)
