"""Words for a reader: names of buckets, hosts, collectives and kernels, and what evidence means."""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Sequence
from typing import Final

from ddptrace.analysis.collectives.digest import CollectiveDigest
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import BucketSummary, Share, Summary
from ddptrace.analysis.tables.collectives import BucketRow
from ddptrace.analysis.tables.parallelism import Kind, ParallelismRow
from ddptrace.errors import printable
from ddptrace.load.tables import Identity
from ddptrace.schema import Evidence
from ddptrace.units import counted, duration, percent, size

WIDTH: Final = 96
"""Of the terminal, in columns."""
UNLIKE_MIN_RATIO: Final = 0.1
"""Share of the typical step's length; the lengths of all steps are printed if they differ by more."""

TRAINING: Final = ("forward", "backward", "optimizer")
"""Phases that every training has."""

EVIDENCE: Final = {
    Evidence.DEVICE: "kernels on the device, linked by correlation id",
    Evidence.BACKEND: "the backend's own ranges in a profiler window",
    Evidence.EVENT: "ends measured by events on the device; begins from the backend, or inferred",
    Evidence.CALLBACK: "ends measured, starts inferred from the queue's order: approximate",
    Evidence.HOST: "from launch to the end of the host's wait: the communication took at most that",
}
LEFT_OPEN_MIN_RATIO: Final = 0.01
"""Of the step, that events leave open, to be told."""
IDENTITY: Final = {
    Identity.RECORDED: "ddptrace's own record of the call",
    Identity.ARGUMENTS: "the arguments of its kernel or of the backend's range",
    Identity.ANNOTATION: "the range around its launch (nccl:… or gloo:…)",
    Identity.NAME: "its kernel's name alone: bytes and group are not known",
}
"""What tells which collective it was."""
IDENTIFIED: Final = {
    Identity.RECORDED: "ddptrace's record",
    Identity.ARGUMENTS: "arguments",
    Identity.ANNOTATION: "annotation",
    Identity.NAME: "the kernel's name",
}
"""The same in short."""
PARTS: Final = {
    "compute": "compute",
    "exposed_comm": "exposed communication",
    "exposed_memory": "exposed memory copies",
    "idle": "idle",
    "rpc_wait": "waiting for remote calls",
    "unseen": "not seen",
}
KINDS: Final = {
    Kind.DDP: "data parallel (DDP)",
    Kind.DATA: "data parallel (without DDP)",
    Kind.FSDP: "fully sharded data parallel (FSDP)",
    Kind.ZERO: "sharded optimizer (ZeRO)",
    Kind.TENSOR: "tensor parallel",
    Kind.PIPELINE: "pipeline parallel",
    Kind.EXPERT: "expert parallel",
    Kind.EMBEDDINGS: "sharded embedding tables",
    Kind.INFERENCE: "inference",
}
"""Kinds of parallelism."""
UNKNOWN_ORIGIN: Final = "origin unknown"
UNSEEN: Final = "When it computed and communicated is unknown: the findings say why."

KERNEL_NAME_MAX: Final = 80
HULLS: Final = ("Kernel", "Kernel2")
"""Of CUTLASS: what they are instantiated with is the kernel."""
DEVICE_KERNEL: Final = "device_kernel"
"""Another one of CUTLASS: of those kernels the namespace often tells more than the name."""
WRAPPERS: Final = re.compile(r"\w*elementwise_kernel|multi_tensor_apply_kernel|reduce_kernel")
"""Names that tell little without what they are instantiated with."""
SAY_NOTHING: Final = frozenset((
    "AUnaryFunctor", "BUnaryFunctor", "BinaryFunctor", "ReduceOp", "TensorListMetadata", "func_wrapper_t",
    "gpu_kernel_impl", "gpu_kernel_impl_nocast", "BFloat16", "Half", "complex", "unsigned", "double",
    "enable_sm80", "enable_sm90", "enable_sm90_or_later", "enable_sm80_to_sm89",
))  # fmt: skip
"""Template arguments that only wrap another one, and types."""
IS_FUNCTION: Final = re.compile(r"[^<(]*[^<( ][<(]")
"""Template or arguments follow the name at once."""
INNERMOST: Final = re.compile(r"<[^<>]*>")
COMPARISON: Final = ")>("
"""In an argument of a template, not its end."""
WORD: Final = re.compile(r"(?:\b(\w+)::)?\b([A-Za-z_]\w{5,})\b(?!::)")
"""With the namespace that it is in."""


def compute_words(summary: Summary) -> str:
    """Say what its compute rests on, with a space before; empty where a profiler measured it."""
    if summary.profiled:
        return ""
    if summary.unsure_ns is None:
        return " Compute is taken from phases, not from a profiler: coarse."
    told = " Compute is when events show that the device had work"
    if summary.unsure_ns < LEFT_OPEN_MIN_RATIO * (summary.window_ns or 0):
        return f"{told}."
    return f"{told}; for {duration(summary.unsure_ns)} of the step they leave it open."


def bucket_name(row: BucketRow, several_reducers: bool) -> str:
    return named_bucket(row.reducer if several_reducers else None, row.index, row.nbytes)


@functools.lru_cache(4096)
def named_bucket(reducer: int | None, index: int, nbytes: int | None) -> str:
    sized = "" if nbytes is None else f" · {size(nbytes)}"
    return ("" if reducer is None else f"reducer {reducer} ") + f"bucket {index}{sized}"


def bucket_numbers(buckets: Sequence[BucketSummary]) -> list[str]:
    """Each bucket's index, and of its reducer and layout what is needed to tell it from the others."""
    reducers, layouts = ({getattr(bucket, part) for bucket in buckets} for part in ("reducer", "layout"))
    return [
        (f"reducer {bucket.reducer} · " if len(reducers) > 1 else "")
        + str(bucket.index)
        + (f" · layout {bucket.layout}" if len(layouts) > 1 else "")
        for bucket in buckets
    ]


def host_words(host: str) -> str:
    """`node0 · `, or nothing where nobody said on which host it was."""
    return f"{host} · " if host not in ("", "?") else ""


def op_name(op: str) -> str:
    """An op as people write it: torch's own names may end in an underscore."""
    return op.rstrip("_") or op


def origin_words(kind: CollectiveDigest) -> str:
    """Where collectives come from: `fsdp · blocks.0, blocks.1 · train.py:42 in step`."""
    return " · ".join(filter(None, (kind.origin or UNKNOWN_ORIGIN, some_of(kind.modules, 3), some_of(kind.sites, 2))))


def through_words(kind: CollectiveDigest) -> str:
    """`through deepspeed/runtime/zero/stage3.py:1301 in reduce`; empty where the program itself issued them."""
    return f"through {some_of(kind.through, 2)}" if kind.through else ""


def all_steps_words(summary: Summary) -> str | None:
    """Describe the lengths of all steps, if they are unlike the typical one's: `all 360 rank-steps after the
    first: median 3.17 ms, p95 9.51 ms`."""
    every, typical = summary.all_steps, summary.typical
    if every is None or typical is None or not typical.wall_ns:
        return None
    if max(abs(ns / typical.wall_ns - 1) for ns in (every.wall_median_ns, every.wall_p95_ns)) <= UNLIKE_MIN_RATIO:
        return None
    lengths = f"median {duration(every.wall_median_ns)}, p95 {duration(every.wall_p95_ns)}"
    clock = "" if duration(typical.wall_ns) == duration(typical.window_ns) else " on the host"
    return f"all {counted(every.steps, 'rank-step')} after the first{clock}: {lengths}"


def hidden_words(hidden_ns: int | None, comm_ns: int | None) -> str:
    """Return the hidden share of a communication, as in "72 %"."""
    return percent(hidden_ns / comm_ns if comm_ns and hidden_ns is not None else None)


def divided_words(summary: Summary) -> str | None:
    """Say which steps show how the typical step divides; None if the typical ones do."""
    if not summary.is_apart or summary.window_ns is None:
        return None
    steps = counted(summary.steps, "profiled rank-step")
    return f"its parts are those of {steps} ({summary.population}), mean {duration(summary.window_ns)}"


def read_words(result: Result) -> list[str]:
    """What was read, in a few counts: a run by its id, traces that others recorded by the number of their files."""
    counts = [counted(len(result.ranks), "rank"), counted(len({row.step for row in result.steps}), "step")]
    if not result.recorded:
        return [*counts, counted(sum(row.windows for row in result.ranks), "file")]
    return [f"run {printable(result.run_id[:8])}", *counts] if result.run_id else counts


def parallelism_words(result: Result) -> str:
    """As in "inference with vLLM · tensor parallel over 8 ranks"; empty where no kind is known."""
    first = [row for row in result.parallelism if row.kind == Kind.INFERENCE]
    return " · ".join(kind_words(row) for row in (*first, *(row for row in result.parallelism if row not in first)))


def kind_words(row: ParallelismRow) -> str:
    if row.kind == Kind.INFERENCE:
        return f"{KINDS[Kind.INFERENCE]} with {printable(row.told_by)}"
    over = f" over {counted(row.group_size, 'rank')}" if row.group_size else ""
    return f"{KINDS[Kind(row.kind)]}{over}"


def known_phases(summary: Summary) -> tuple[Share, ...]:
    """Without those that nothing marked: where no forward, backward or update is known, 0 % says nothing."""
    trained = any(phase.ns for phase in summary.phases if phase.name in TRAINING)
    known = summary.phases if trained else tuple(phase for phase in summary.phases if phase.ns)
    return known if any(phase.name != "other" for phase in known) else ()


def by_order(result: Result) -> bool:
    """Buckets are known only by the order of their launch."""
    return any(row.identity == "order" for row in result.buckets)


def some_of(names: Sequence[str], most: int = 8) -> str:
    """The first names and how many more there are: a bucket can hold hundreds."""
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" … and {rest} more" if rest > 0 else "")


def shortened(name: str, most: int) -> str:
    """The end of a long name: there names of parameters and modules differ."""
    return name if len(name) <= most else "…" + name[1 - most :]


def cut(name: str, most: int) -> str:
    """`shortened`, of a name that may hold anything, such as what a terminal would obey."""
    return shortened(printable(name), most)


def both_ends(name: str, most: int) -> str:
    """Both ends of a long name: there names of operators differ, as in `all_gather…_tensor`."""
    tail = (most - 1) * 2 // 5
    return name if len(name) <= most else f"{name[: most - 1 - tail]}…{name[len(name) - tail :]}"


def indented(text: str) -> list[str]:
    """A paragraph under a heading of the terminal, as lines of at most `WIDTH` columns; none where it is empty."""
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="  ")


@functools.lru_cache(65536)
def kernel_name(name: str) -> str:
    """The function's own name, without return type, namespaces, template and arguments; of a wrapper also what it runs:
    `vectorized_elementwise_kernel<CUDAFunctor_add>`. What is no C++ function (`Memcpy HtoD (Pinned -> Device)`) stays.
    """
    plain = name.replace("(anonymous namespace)::", "")
    if IS_FUNCTION.match(plain):
        own = _own_name(plain)
        is_hull = own in HULLS or own == DEVICE_KERNEL
        inside = _instantiated_with(plain, own == DEVICE_KERNEL) if is_hull or WRAPPERS.fullmatch(own) else ""
        plain = own if not inside else inside if is_hull else f"{own}<{inside}>"
    shown = plain or name
    return shown if len(shown) <= KERNEL_NAME_MAX else f"{shown[: KERNEL_NAME_MAX - 1]}…"


def _own_name(name: str) -> str:
    """Of `void a::b<c<d> >(e)`: b."""
    bare, shorter = name.replace("->", " ").replace(COMPARISON, ")("), ""
    while bare != shorter:
        bare, shorter = INNERMOST.sub("", bare), bare
    bare = re.split(r"[<(]", bare, maxsplit=1)[0].strip()
    return bare.split(" ")[-1].split("::")[-1]


def _instantiated_with(name: str, with_namespace: bool) -> str:
    """The first template argument that tells anything."""
    found = (match for match in WORD.finditer(name, name.find("<") + 1) if match[2] not in SAY_NOTHING)
    first = next(found, None)
    if first is None:
        return ""
    return f"{first[1]}::{first[2]}" if with_namespace and first[1] else first[2]
