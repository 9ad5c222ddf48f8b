"""Every collective operation, declared once: what it is called where, and what is true of it.

Capture, the loader, analysis and benchmarks read it. To add an operation, add an `Op` to `OPS`, and a `Family` if it
behaves like no other operation.

An operation that is not here is recorded, loaded and shown under its own name. If that begins with a family's name
(`all_reduce_of_tomorrow`), it gets what is true of the family, but no bandwidth, since its bytes may mean something
else. Of any other operation nothing is known, and ranks are not compared by its ends.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Final

Factor = Callable[[int], float]
"""From the number of ranks in the group to a share of the operation's bytes."""


def _twice_the_others(ranks: int) -> float:
    return 2 * (ranks - 1) / ranks


def _the_others(ranks: int) -> float:
    return (ranks - 1) / ranks


def _one_rank_for_all(ranks: int) -> float:
    """The root's traffic, spread over all ranks."""
    return (ranks - 1) / ranks**2


def _once(ranks: int) -> float:
    return 1.0


def _nothing(ranks: int) -> float:
    return 0.0


class Root(enum.Enum):
    """Which way the bytes go between one rank and all others."""

    FROM = "from"  # only the root has to arrive, and it waits for nobody
    TO = "to"  # only the root waits


class Argument(enum.Enum):
    """What a method of `ProcessGroup` takes before its other arguments."""

    TENSORS = "tensors"  # sent, or changed in place
    OUTPUT = "output"
    INPUT = "input"
    PEER = "peer"  # the rank at the other end, the root, or the options that hold the root


class Whole(enum.Enum):
    """Which side holds the whole of what is moved, on every rank; the other holds a rank's part."""

    INPUT = "input"
    OUTPUT = "output"
    EITHER = "either"  # both are as large, or one is empty


@dataclass(frozen=True, slots=True)
class Family:
    """What is true of all operations that do the same, whatever tensors they take.

    `busbw`: bytes that one link carries, as a share of the operation's bytes; the definition is that of nccl-tests, so
    that numbers compare with its. `sent`: bytes that one rank sends, on average over the group, with an algorithm that
    sends as little as the operation allows (a ring). As `busbw` where it is not given: an operation with a root loads
    one link more than the others.
    """

    name: str
    busbw: Factor | None = None
    sent: Factor | None = None
    whole: Whole = Whole.EITHER
    root: Root | None = None
    ends_together: bool = False  # no rank is over before all have arrived, so that ranks end together
    same_nbytes: bool = False  # every rank must give the same number of bytes
    is_message: bool = False  # between two ranks of the group
    is_queued: bool = True  # False: it runs on the caller's thread, past the backend's queue
    in_place: bool = False  # its tensors are input and output at once, and count once
    arguments: tuple[Argument, ...] = (Argument.OUTPUT, Argument.INPUT)
    kernel: str | None = None  # regular expression, searched in the names of communication kernels
    also: tuple[str, ...] = ()  # other words that names of the family begin with


REDUCE_SCATTER: Final = Family(
    "reduce_scatter", _the_others, whole=Whole.INPUT, ends_together=True, same_nbytes=True, kernel="reduce_?scatter"
)
ALL_REDUCE: Final = Family(
    "all_reduce",
    _twice_the_others,
    ends_together=True,
    same_nbytes=True,
    in_place=True,
    arguments=(Argument.TENSORS,),
    kernel="all_?reduce",
    also=("allreduce",),
)
ALL_GATHER: Final = Family(
    "all_gather", _the_others, whole=Whole.OUTPUT, ends_together=True, same_nbytes=True, kernel="all_?gather"
)
ALL_TO_ALL: Final = Family("all_to_all", _the_others, ends_together=True, kernel="all_?to_?all")
BROADCAST: Final = Family(
    "broadcast",
    _once,
    _the_others,
    root=Root.FROM,
    same_nbytes=True,
    in_place=True,
    arguments=(Argument.TENSORS, Argument.PEER),
    kernel="broadcast",
)
BARRIER: Final = Family("barrier", ends_together=True, in_place=True, arguments=(), kernel="barrier")
REDUCE: Final = Family(
    "reduce",
    _once,
    _the_others,
    root=Root.TO,
    in_place=True,
    arguments=(Argument.TENSORS, Argument.PEER),
    kernel="(?<![a-z])reduce",
)
GATHER: Final = Family(
    "gather",
    _the_others,
    _one_rank_for_all,
    whole=Whole.OUTPUT,
    root=Root.TO,
    arguments=(Argument.OUTPUT, Argument.INPUT, Argument.PEER),
)
SCATTER: Final = Family(
    "scatter",
    _the_others,
    _one_rank_for_all,
    whole=Whole.INPUT,
    root=Root.FROM,
    arguments=(Argument.OUTPUT, Argument.INPUT, Argument.PEER),
)
SEND: Final = Family("send", _once, is_message=True, is_queued=False, arguments=(Argument.TENSORS, Argument.PEER))
RECEIVE: Final = Family(
    "recv", _once, _nothing, is_message=True, is_queued=False, arguments=(Argument.OUTPUT, Argument.PEER)
)
MONITORED_BARRIER: Final = Family("monitored_barrier", is_queued=False, arguments=())
UNKNOWN: Final = Family("")

FAMILIES: Final = (
    REDUCE_SCATTER,
    ALL_REDUCE,
    ALL_GATHER,
    ALL_TO_ALL,
    BROADCAST,
    BARRIER,
    REDUCE,
    GATHER,
    SCATTER,
    SEND,
    RECEIVE,
    MONITORED_BARRIER,
)
"""In the order in which kernels are searched: `reduce` is a part of other names. A kernel called `SendRecv` carries out
all-to-all, gather and scatter too, `Generic` anything."""


@dataclass(frozen=True, slots=True)
class Op:
    """One operation.

    `operator`: its name in the dispatcher (`c10d::allreduce_`), if that is not `name` (underscores around it apart).
    `spellings`: its other names in profiler files, in lower case and without underscores around them: those of c10d, of
    the NCCL backend and of annotations. `gloo`: the ranges in which Gloo runs it; empty: any range may be its own.
    `methods`: the methods of `ProcessGroup` that issue it, in any version of torch; empty: the method called `name`.
    `arguments`: of these methods, if they differ from those of the family.
    """

    name: str  # as people know it from `torch.distributed`, and as records have it
    family: Family
    _: KW_ONLY
    operator: str | None = None
    spellings: tuple[str, ...] = ()
    gloo: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    arguments: tuple[Argument, ...] | None = None


OPS: Final = (
    Op(
        "all_reduce",
        ALL_REDUCE,
        operator="allreduce_",
        spellings=("allreduce", "all_reduce_sparse", "allreduce_sparse"),
        gloo=("all_reduce", "sparse_all_reduce"),
        methods=("allreduce",),
    ),
    Op(
        "all_reduce_coalesced",
        ALL_REDUCE,
        operator="allreduce_coalesced_",
        spellings=("allreduce_coalesced",),
        gloo=("all_reduce",),
        methods=("allreduce_coalesced",),
    ),
    Op("allreduce_sparse", ALL_REDUCE),
    Op(
        "all_gather",
        ALL_GATHER,
        operator="allgather_",
        spellings=("allgather",),
        gloo=("all_gather",),
        methods=("allgather",),
    ),
    Op(
        "all_gather_into_tensor",
        ALL_GATHER,
        operator="_allgather_base_",
        spellings=("allgather_base", "all_gather_base"),
        gloo=("all_gather",),
        methods=("_allgather_base", "all_gather_single"),
    ),
    Op(
        "all_gather_coalesced",
        ALL_GATHER,
        operator="allgather_coalesced_",
        spellings=("allgather_coalesced",),
        gloo=("all_gather",),
        methods=("allgather_coalesced",),
    ),
    Op(
        "all_gather_into_tensor_coalesced",
        ALL_GATHER,
        operator="allgather_into_tensor_coalesced_",
        spellings=("allgather_into_tensor_coalesced",),
        gloo=("all_gather",),
        methods=("allgather_into_tensor_coalesced", "all_gather_single_coalesced"),
    ),
    Op("reduce_scatter", REDUCE_SCATTER, gloo=("all_reduce", "reduce_scatter")),  # Gloo makes an all-reduce of it
    Op(
        "reduce_scatter_tensor",
        REDUCE_SCATTER,
        operator="_reduce_scatter_base_",
        spellings=("reduce_scatter_base",),
        gloo=("all_reduce", "reduce_scatter"),
        methods=("_reduce_scatter_base", "reduce_scatter_single"),
    ),
    Op(
        "reduce_scatter_tensor_coalesced",
        REDUCE_SCATTER,
        gloo=("all_reduce", "reduce_scatter"),
        methods=("reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"),
    ),
    Op(
        "all_to_all",
        ALL_TO_ALL,
        operator="alltoall_",
        spellings=("alltoall", "all_to_allv"),
        gloo=("all_to_all",),
        methods=("alltoall",),
    ),
    Op(
        "all_to_all_single",
        ALL_TO_ALL,
        operator="alltoall_base_",
        spellings=("alltoall_base",),
        gloo=("all_to_all",),
        methods=("alltoall_base", "all_to_all_single"),
    ),
    Op("broadcast", BROADCAST, spellings=("broadcast_oop",), gloo=("broadcast",)),
    Op("reduce", REDUCE, spellings=("reduce_oop",), gloo=("reduce",)),
    Op("gather", GATHER, gloo=("gather",)),
    Op("scatter", SCATTER, gloo=("scatter",)),
    Op("barrier", BARRIER, spellings=("all_reduce_barrier", "allreduce_barrier"), gloo=("barrier",)),
    Op("monitored_barrier", MONITORED_BARRIER),
    Op("send", SEND, gloo=("send",)),
    Op("recv", RECEIVE, gloo=("recv",)),
    Op(
        "recv_any_source",
        RECEIVE,
        gloo=("recvAnySource", "recv"),
        methods=("recv_anysource",),
        arguments=(Argument.OUTPUT,),
    ),
)

SPARSE: Final = "allreduce_sparse"
"""How much of a sparse tensor is sent is not recorded."""

COMMUNICATION: Final = re.compile(
    r"(?:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z]))"  # a word begins, or a hump of CamelCase
    r"(?i:all[_-]?(?:to[_-]?|2)all|a2a|all[_-]?reduce|all[_-]?gather|reduce[_-]?scatter|dispatch|combine|comms?|communicat\w*"
    r"|nccl|rccl|collectives?)"
    r"(?![a-z])"
)
"""Words in names of ranges and streams that say that what runs there communicates."""

BY_NAME: Final[Mapping[str, Op]] = {op.name: op for op in OPS}
BY_SPELLING: Final[Mapping[str, Op]] = {spelling: op for op in OPS for spelling in op.spellings}
BY_OPERATOR: Final[Mapping[str, Op]] = {op.operator: op for op in OPS if op.operator is not None}
BY_METHOD: Final[Mapping[str, Op]] = {method: op for op in OPS for method in op.methods or (op.name,)}

FACTORS: Final[Mapping[str, Factor]] = {op.name: op.family.busbw for op in OPS if op.family.busbw is not None}
"""`Family.busbw` by the name of an operation. One without has bytes that mean nothing that can be compared."""
SENT: Final[Mapping[str, Factor]] = {
    **FACTORS,
    **{op.name: op.family.sent for op in OPS if op.family.sent is not None},
}
"""`Family.sent` by the name of an operation."""


@functools.lru_cache(1024)
def family_of(name: str) -> Family:
    """Find the family of an operation by its name, or by what the name begins with; `UNKNOWN` where neither tells."""
    if name in BY_NAME:
        return BY_NAME[name].family
    begins = [
        (len(word), k)
        for k, family in enumerate(FAMILIES)
        for word in (family.name, *family.also)
        if name.startswith(word)
    ]
    return FAMILIES[max(begins)[1]] if begins else UNKNOWN


def is_named_after_communication(name: str) -> bool:
    """Whether a program's name for a range or stream says that what runs there communicates."""
    return COMMUNICATION.search(name) is not None
