"""Identifies a collective of a foreign file: our name of its operation, its bytes, types and group.

Strongest first: the arguments of its kernel, the backend's range around its launch, the kernel's name.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ddptrace.load.kineto.args import element_nbytes
from ddptrace.load.kineto.events import CollectiveArgs, FileFacts
from ddptrace.load.tables import Identity
from ddptrace.load.windows.comm_kernels import UNKNOWN_OP, CommRule, op_named
from ddptrace.ops import (
    ALL_GATHER,
    ALL_TO_ALL,
    BY_NAME,
    BY_SPELLING,
    RECEIVE,
    REDUCE_SCATTER,
    SEND,
    family_of,
)

DTYPES: Final[Mapping[str, tuple[str, int]]] = {
    "float": ("float32", 4), "double": ("float64", 8), "half": ("float16", 2), "bfloat16": ("bfloat16", 2),
    "long": ("int64", 8), "long int": ("int64", 8), "int": ("int32", 4), "short": ("int16", 2),
    "short int": ("int16", 2), "char": ("int8", 1), "signed char": ("int8", 1), "byte": ("uint8", 1),
    "unsigned char": ("uint8", 1), "bool": ("bool", 1), "float8_e4m3fn": ("float8_e4m3fn", 1),
    "float8_e5m2": ("float8_e5m2", 1), "complexfloat": ("complex64", 8), "complex<float>": ("complex64", 8),
    "complexdouble": ("complex128", 16), "complex<double>": ("complex128", 16),
}  # fmt: skip
"""By lower-case C++ name: torch's name, and bytes of one element."""


NO_ARGUMENTS: Final = CollectiveArgs()


@dataclass(frozen=True, slots=True)
class Described:
    """What one collective was. Group "" and 0 bytes: unknown."""

    op: str
    group: str
    group_size: int | None
    nbytes_in: int
    nbytes_out: int
    dtype: str
    identity: Identity
    description: str  # of its group, in the program's words
    turn: int | None  # k-th collective of its group, as the backend counts; None unknown, or of a message
    sent_nbytes: tuple[int, ...] | None = None  # of an all-to-all: to each rank of its group
    peer: int | None = None  # of a message: global rank at its other end
    unknown: str | None = None  # JSON of the arguments that ddptrace does not know


@dataclass(frozen=True, slots=True)
class Groups:
    """The process groups that a file knows. `alone`: all communication in the file seems to use one communicator."""

    facts: FileFacts
    alone: bool

    def of(self, arguments: CollectiveArgs) -> tuple[str, int | None]:
        """Return a collective's group, and the number of its ranks. If one group is listed, it is that group; if none
        is, it is the group of all ranks, provided that there is only one communicator."""
        sizes = {name: len(ranks) for name, _, ranks in self.facts.groups}
        only = next(iter(sizes), "") if len(sizes) == 1 else ""
        name = only if arguments.group is None else arguments.group
        is_default = self.alone and (not sizes or name == only)
        size = arguments.group_size or len(arguments.ranks or ()) or sizes.get(name)
        return name, size or (self.facts.world_size if is_default else None)


def identified(
    kernel_name: str,
    kernel: CollectiveArgs,
    range_name: str,
    around: CollectiveArgs,
    groups: Groups,
    rules: Sequence[CommRule],
) -> Described:
    """Identify by a kernel's name and arguments, and those of the backend's range around its launch ("" without
    one)."""
    if kernel.collective:
        op, identity = usual_op(kernel.collective), Identity.ARGUMENTS
    elif range_name or around.collective:
        op, identity = usual_op(range_name or around.collective or ""), Identity.ANNOTATION
    else:
        op, identity = op_named(kernel_name, rules), Identity.NAME
    return described(op, merged(kernel, around), groups, identity)


def described(op: str, arguments: CollectiveArgs, groups: Groups, identity: Identity) -> Described:
    """Return the collective in the terms of ddptrace."""
    group, size = groups.of(arguments)
    dtype, _ = dtype_of(arguments.dtype)
    nbytes, description = _nbytes(op, arguments, size), arguments.group_description or ""
    turn = None if family_of(op).is_message else arguments.turn
    sent = _sent_nbytes(arguments, nbytes[0], size) if family_of(op) is ALL_TO_ALL else None
    peer = _peer(op, arguments)
    return Described(op, group, size, *nbytes, dtype, identity, description, turn, sent, peer, arguments.unknown)


def _peer(op: str, arguments: CollectiveArgs) -> int | None:
    family = family_of(op)
    return arguments.destination if family is SEND else arguments.source if family is RECEIVE else None


def _sent_nbytes(arguments: CollectiveArgs, nbytes: int, size: int | None) -> tuple[int, ...] | None:
    """Return what an all-to-all of `nbytes` sends to each rank of its group; None where its arguments do not tell."""
    splits = arguments.splits
    if splits is None or not size or not nbytes or (splits and len(splits) != size):
        return None
    rows = splits or (1,) * size
    return tuple(nbytes * count // total for count in rows) if (total := sum(rows)) else None


def usual_op(name: str) -> str:
    """Return our name of an op from "nccl:_all_gather_base", "c10d::allreduce_", "allreduce" or "nccl:send 0->1"."""
    bare = name.rpartition(":")[2].split(" ")[0].strip("_").lower()
    return BY_SPELLING[bare].name if bare in BY_SPELLING else bare or UNKNOWN_OP


def dtype_of(name: str | None) -> tuple[str, int | None]:
    """Return torch's name of a type, and the bytes of one element if known."""
    if name is None:
        return "", None
    bare = name.removeprefix("c10::").removeprefix("torch.").removeprefix("nccl")
    return DTYPES.get(bare.lower(), (bare, element_nbytes(bare)))


def merged(first: CollectiveArgs, second: CollectiveArgs) -> CollectiveArgs:
    """Return the values of the first, completed by those of the second."""
    if first == NO_ARGUMENTS or second == NO_ARGUMENTS:
        return second if first == NO_ARGUMENTS else first
    arguments = {field.name: getattr(first, field.name) for field in dataclasses.fields(first)}
    return dataclasses.replace(second, **{name: value for name, value in arguments.items() if value is not None})


def _nbytes(op: str, arguments: CollectiveArgs, size: int | None) -> tuple[int, int]:
    """Return bytes in and out. If only the input is known, the output of a gather or scatter follows from the group's
    size."""
    _, element = dtype_of(arguments.dtype)
    nbytes_in, nbytes_out = arguments.nbytes_in or 0, 0
    if element is not None and arguments.nelems_in is not None:
        nbytes_in, nbytes_out = arguments.nelems_in * element, (arguments.nelems_out or 0) * element
    elif size and family_of(op) is ALL_GATHER:
        nbytes_out = nbytes_in * size
    elif size and family_of(op) is REDUCE_SCATTER:
        nbytes_out = nbytes_in // size
    in_place = op in BY_NAME and BY_NAME[op].family.in_place
    return (max(nbytes_in, nbytes_out), 0) if in_place else (nbytes_in, nbytes_out)
