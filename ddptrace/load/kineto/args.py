"""What the arguments of an event say: the correlation of a launch and its kernel, the collective that it carries out,
and the bytes that a copy moves."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from ddptrace.load.kineto.events import FAR_NS, NO_CORRELATION, CollectiveArgs, Ints
from ddptrace.load.kineto.text import cleaned

RANGES: Final = ("nccl:", "gloo:", "rccl:")  # of a backend, around its work: their inputs are the tensors sent
OPERATORS: Final = ("c10d::", "record_param_comms")
ELEMENT_NBYTES: Final = {
    "double": 8, "float": 4, "half": 2, "bfloat16": 2, "long": 8, "long int": 8, "int": 4, "short": 2,
    "short int": 2, "char": 1, "signed char": 1, "unsigned char": 1, "byte": 1, "bool": 1, "unsigned short": 2,
    "unsigned int": 4, "unsigned long": 8, "complex<float>": 8, "complex<double>": 16, "float8_e4m3fn": 1,
    "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1, "float16": 2, "float32": 4,
    "float64": 8, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
}  # fmt: skip
"""By lower-case name, C++'s or torch's, without what stands before it: `c10::`, `torch.` or `nccl`."""
OF_TYPES: Final = ("c10::", "torch.", "nccl")
RANK_LIST: Final = re.compile(r"\s*\[\s*(?:\d{1,9}\s*(?:,\s*\d{1,9}\s*)*)?\]\s*")


class Args(msgspec.Struct, gc=False):
    """The arguments that are read. What they hold is judged where it is used."""

    correlation: Any = NO_CORRELATION
    collective: Any = msgspec.field(default=None, name="Collective name")
    group: Any = msgspec.field(default=None, name="Process Group Name")
    description: Any = msgspec.field(default=None, name="Process Group Description")
    ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    size: Any = msgspec.field(default=None, name="Group size")
    turn: Any = msgspec.field(default=None, name="Seq")
    nelems_in: Any = msgspec.field(default=None, name="In msg nelems")
    nelems_out: Any = msgspec.field(default=None, name="Out msg nelems")
    splits: Any = msgspec.field(default=None, name="In split size")
    source: Any = msgspec.field(default=None, name="Src Rank")
    destination: Any = msgspec.field(default=None, name="Dst Rank")
    dtype: Any = None
    nbytes: Any = msgspec.field(default=None, name="bytes")
    dims: Any = msgspec.field(default=None, name="Input Dims")
    types: Any = msgspec.field(default=None, name="Input type")
    unknown: Any = msgspec.field(default=None, name="unknown to ddptrace")  # JSON of those that `KNOWN` has not


class _Naming(msgspec.Struct):
    name: Any = None


_NAMES: Final = (
    "Collective name|In msg nelems|Out msg nelems|dtype|Group size|In split size|Out split size|"
    "Process Group Name|Process Group Description|Process Group Ranks|Src Rank|Dst Rank|Seq|Comms Id|Rank|"
    "Global rank start|Global rank stride|Input Tensors start|Output Tensors start|Is asynchronized op|"
    "Input Dims|Input type|Input Strides|Concrete Inputs|Call stack|Module Hierarchy|Backend|CallFrom|"
    "External id|external id|Ev Idx|Profiler Event Index|Record function id|Sequence number|Fwd thread id|"
    "Trace name|Trace iteration|correlation|bytes|graph id|graph node id|stream|device|context|queued|"
    "priority|channel|channel_type|hsa_queue|grid|block|shared memory|registers per thread|blocks per SM|"
    "warps per SM|est. achieved occupancy %|occupancy|memory bandwidth (GB/s)|cbid|cid|kernel|kind|src|dst|"
    "ptr|size"
)
KNOWN: Final = frozenset(_NAMES.split("|"))
"""All arguments of a collective's kernel, range or operator that torch 2.1 or newer writes. docs/traces.md says what
ddptrace does with each."""
REFUSED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_NONE: Final = Args()
_ALL: Final = msgspec.json.Decoder(list[Args | None])
_ONE: Final = msgspec.json.Decoder(Args | None)
_NAMED: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class ReadArgs:
    """The arguments of some events, one row each."""

    of: list[Args]
    readable: NDArray[np.bool_]  # false where they are no object
    correlation: Ints
    is_collective: NDArray[np.bool_]


def thread_name(args: bytes) -> str:
    """The name that the arguments of a `thread_name` event give; empty where they give none."""
    try:
        given = msgspec.json.decode(cleaned(bytes(args)), type=_Naming | None)
    except REFUSED:
        return ""
    return (given and text(given.name)) or ""


def is_named_as_collective(name: str) -> bool:
    """A range or operator whose inputs may tell how much a collective moves."""
    return name.startswith((*RANGES, *OPERATORS))


def read_args(texts: Sequence[bytes]) -> ReadArgs:
    """Read the arguments, given as JSON text. Null stands for none."""
    try:
        found: list[Args | None] = _ALL.decode(b"[%b]" % b",".join(texts))
        readable = np.ones(len(found), np.bool_)
    except REFUSED:
        pairs = [_read_one(bytes(text)) for text in texts]
        found, readable = [args for args, _ in pairs], np.array([good for _, good in pairs], np.bool_)
    of = [args or _NONE for args in found]
    is_collective = np.array([args.collective is not None for args in of], np.bool_)
    for position in np.flatnonzero(is_collective).tolist():
        of[position].unknown = unknown_args(bytes(texts[position]))
    return ReadArgs(of, readable, _correlations([args.correlation for args in of]), is_collective)


def unknown_args(text: bytes) -> str | None:
    """The arguments of a collective that no torch known to ddptrace writes, as JSON; None where there are none."""
    if _has_known_alone(text):
        return None
    try:
        given = msgspec.json.decode(cleaned(text), type=dict[str, msgspec.Raw])
    except REFUSED:
        return None
    others = {name: value for name, value in given.items() if name not in KNOWN}
    return msgspec.json.encode(others).decode(errors="replace") if others else None


def _has_known_alone(text: bytes) -> bool:
    """Whether a text that needs no cleaning, as nearly all do, has none but known arguments."""
    try:
        return KNOWN.issuperset(_NAMED.decode(text))
    except REFUSED:
        return False


def _read_one(text: bytes) -> tuple[Args | None, bool]:
    for attempt in (bytes, cleaned):
        try:
            return _ONE.decode(attempt(text)), True
        except REFUSED:
            continue
    return None, False


def _correlations(values: list[Any]) -> Ints:
    if set(map(type, values)) <= {int}:
        try:
            ids = np.array(values, np.int64)
            return np.where((ids > 0) & (ids < FAR_NS), ids, NO_CORRELATION)
        except OverflowError:
            pass
    return np.array([_identity(value) for value in values], np.int64)


def _identity(value: Any) -> int:
    """A correlation id; what is none, or fits no int64, links nothing."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return NO_CORRELATION
    try:
        number = int(value, 0) if isinstance(value, str) else int(value)
    except (ValueError, OverflowError):
        return NO_CORRELATION
    return number if 0 < number < FAR_NS else NO_CORRELATION


def said_of_collective(args: Args, name: str) -> CollectiveArgs | None:
    """What the arguments of an event of this name say of its collective; None where they say nothing."""
    if args == _NONE:
        return None
    nelems_in, nbytes, dtype = count(args.nelems_in), None, text(args.dtype)
    if nelems_in is None:
        shaped = _sizes(name, args.dims, args.types)
        nbytes, dtype = shaped[0], dtype or shaped[1]
    said = CollectiveArgs(
        text(args.collective),
        text(args.group),
        text(args.description),
        rank_list(args.ranks),
        count(args.size),
        nelems_in,
        count(args.nelems_out),
        dtype,
        nbytes,
        count(args.turn),
        split_sizes(args.splits),
        count(args.source),
        count(args.destination),
        text(args.unknown),
    )
    return None if said == _NOTHING else said


_NOTHING: Final = CollectiveArgs()


def text(value: Any) -> str | None:
    """A name, which some files write as a number; None where there is none."""
    return str(value) if isinstance(value, int | str) and not isinstance(value, bool) and value != "" else None


def count(value: Any) -> int | None:
    """A whole number, which some files write as text; None where it is none, or negative, or fits no int64."""
    if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) < 19:
        value = int(value)
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63
    return value if is_count else None


def rank_list(value: Any) -> tuple[int, ...] | None:
    """Ranks written as a list, or as the text of one. None where it names none, or any of them is no rank."""
    if isinstance(value, str):
        return _ranks_in(value) or None
    ranks = [count(rank) for rank in value] if isinstance(value, list) else []
    return tuple(rank for rank in ranks if rank is not None) if ranks and None not in ranks else None


def split_sizes(value: Any) -> tuple[int, ...] | None:
    """Rows for each rank, written as a list or as text; () where all get as many, None if unknown. A profiler
    shortens long lists, which then tell nothing."""
    if isinstance(value, list) and not value:
        return ()
    if isinstance(value, str) and RANK_LIST.fullmatch(value):
        return _ranks_in(value)
    return rank_list(value) if isinstance(value, list) else None


@lru_cache(maxsize=1024)
def _ranks_in(text: str) -> tuple[int, ...]:
    return tuple(int(rank) for rank in re.findall(r"\d+", text)) if RANK_LIST.fullmatch(text) else ()


def _sizes(name: str, dims: Any, types: Any) -> tuple[int | None, str | None]:
    """Bytes of the tensors that go in, and their type, where shapes and types leave no doubt.

    A range's inputs are all tensors sent. Of an operator's, one list may be the output: only a single one is sure.
    """
    if not isinstance(dims, list) or not isinstance(types, list) or len(dims) != len(types):
        return None, None
    tensors = [
        (shape, kind)
        for shape, kind in zip(dims, types, strict=True)
        if isinstance(kind, str) and element_nbytes(kind) is not None
    ]
    others = [kind for kind in types if isinstance(kind, str) and "List" in kind]
    if not tensors or others or (len(tensors) > 1 and not name.startswith(RANGES)):
        return None, None
    sizes = [_nelems(shape) for shape, _ in tensors]
    kinds = {kind for _, kind in tensors}
    dtype = kinds.pop() if len(kinds) == 1 else None
    if None in sizes:
        return None, dtype
    return count(
        sum((n or 0) * (element_nbytes(kind) or 0) for n, (_, kind) in zip(sizes, tensors, strict=True))
    ), dtype


def element_nbytes(kind: str) -> int | None:
    """Bytes of one element of this type, however it is spelt; None where it is none that is known."""
    for prefix in OF_TYPES:
        kind = kind.removeprefix(prefix)
    return ELEMENT_NBYTES.get(kind.lower())


def _nelems(shape: Any) -> int | None:
    """Elements of a tensor of this shape; one without dimensions holds one."""
    extents = [count(extent) for extent in shape] if isinstance(shape, list) else [None]
    return math.prod(extent for extent in extents if extent is not None) if None not in extents else None
