"""Plausible hand-made results with device windows, for the tests of what is drawn and said of devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from ddptrace.analysis.device.rows import population
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.device import Activity, CopyRow, KernelRow, LaunchRow, RankRow, ScopeRow, StreamRow
from ddptrace.analysis.tables.ranks import MatchRow
from ddptrace.analysis.tables.steps import WindowRow
from ddptrace.analysis.tables.table import Table
from ddptrace.load.tables import DeviceWork, Identity, Work
from ddptrace.schema import Evidence
from tests.made import make_result

KERNELS = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, x>(int, float)",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "Memcpy HtoD (Pinned -> Device)",
)
"""By Work."""

Piece = tuple[Work, str, int, int, int | None]
"""Kind, stream, begin, end, and when it was launched (None: its launch is not in the file)."""


def device_work(pieces: Sequence[Piece], names: Sequence[str] = KERNELS) -> DeviceWork:
    """`names`: of a kernel, by kind; the last three are module, annotation and operator, where there are more."""
    pieces = sorted(pieces, key=lambda piece: piece[2])
    kinds, streams, begins, ends, launches = zip(*pieces, strict=True)
    known = tuple(dict.fromkeys(streams))
    launched = np.array([at is not None for at in launches])
    launch = np.array([0 if at is None else at for at in launches], np.int64)
    scopes = range(3, 6) if len(names) == 6 else (-1, -1, -1)
    return DeviceWork(
        np.array(kinds, np.uint8), np.array([known.index(stream) for stream in streams]),
        np.array(begins, np.int64), np.array(ends, np.int64), launched,
        launch, np.where(launched, launch + 10, 0), np.array(kinds, np.int64),
        *(np.full(len(pieces), scope) for scope in scopes), known, tuple(names),
    )  # fmt: skip


def training_pieces(steps: int, offset: int = 0) -> list[Piece]:
    """Per step three kernels, a copy, and communication beside the last of the kernels that goes on after it. The first
    copy of all was queued before the window."""
    pieces: list[Piece] = []
    for begin in range(offset, offset + 10_000 * steps, 10_000):
        pieces.append((Work.MEMORY, "0:7", begin, begin + 500, begin - 100 if begin > offset else None))
        pieces += [(Work.COMPUTE, "0:7", begin + at, begin + at + 900, begin + at - 200) for at in (1000, 2000, 3000)]
        pieces.append((Work.COMM, "0:20", begin + 3000, begin + 6000, begin + 2500))
    return pieces


def make_device_result(ranks: int = 2, steps: int = 3, names: Sequence[str] = KERNELS) -> Result:
    """A foreign run on devices: no host, no records. Its steps are those of `make_result`."""
    result = make_result(ranks, steps, 2)
    works = [device_work(training_pieces(steps, 100 * rank), names) for rank in range(ranks)]
    activity = tuple(dataclasses.replace(a, device=(work,)) for a, work in zip(result.activity, works, strict=True))
    pairs = list(zip(result.ranks, works, strict=True))
    return dataclasses.replace(
        result, activity=activity,
        ranks=Table(RankRow, [rank_row(row, work) for row, work in pairs]),
        streams=Table(StreamRow, [row for rank in range(ranks) for row in stream_rows(rank, steps)]),
        launches=Table(LaunchRow, [launch_row(rank, step) for rank in range(ranks) for step in range(steps)]),
        scopes=Table(ScopeRow, [row for rank in range(ranks) for row in scope_rows(rank, names)]),
        kernels=Table(KernelRow, [row for rank in range(ranks) for row in kernel_rows(rank, steps, names)]),
        copies=Table(CopyRow, [copy_row(rank, step, names[2]) for rank in range(ranks) for step in range(steps)]),
        collectives=Table(CollectiveRow, [annotated(row) for row in result.collectives]),
        matches=Table(MatchRow, [match_row(match, ranks) for match in range(steps)]),
        recorded=False,
    )  # fmt: skip


def annotated(row: CollectiveRow) -> CollectiveRow:
    return dataclasses.replace(row, identity=Identity.ANNOTATION)


def rank_row(row: RankRow, work: DeviceWork) -> RankRow:
    return dataclasses.replace(
        row, host="", pid=0, file=f"rank{row.rank}.json", gpu_events=len(work.kind),
        gpu_events_with_launch=int(work.launched.sum()), all=population([work], False),
        with_launch=population([work], True),
    )  # fmt: skip


def stream_rows(rank: int, steps: int) -> list[StreamRow]:
    """The same in every step: 2700 ns of compute and 500 of copies on one stream, communication on the other."""
    figures = {"0:7": (4, 3200, 2700, 0, 500), "0:20": (1, 3000, 0, 3000, 0)}
    whole = [StreamRow(rank, None, name, *(steps * one for one in row)) for name, row in figures.items()]
    return whole + [StreamRow(rank, step, name, *row) for step in range(steps) for name, row in figures.items()]


def launch_row(rank: int, step: int) -> LaunchRow:
    return LaunchRow(rank, step, 5, 2, 200, 500, 500 + step, 10_000, 4000, 3000, launch_bound=rank == 1)


def scope_rows(rank: int, names: Sequence[str]) -> list[ScopeRow]:
    kinds = zip(("module", "annotation", "operator"), names[3:], strict=False)
    return [ScopeRow(rank, kind, name, 15, 8100, 9000, 1500) for kind, name in kinds]


def kernel_rows(rank: int, steps: int, names: Sequence[str]) -> list[KernelRow]:
    """As in `training_pieces`; the kernels that compute are matrix products."""
    product, comm, copied = names[:3]
    return [
        KernelRow(rank, "communication", comm, steps, 3000 * steps, 3000, 0, None, None, None),
        KernelRow(rank, "matrix product", product, 3 * steps, 2700 * steps, 900, 2700 * steps, 10**9, 1e14, 900),
        KernelRow(rank, "copy", copied, steps, 500 * steps, 500, 0, None, None, None),
    ]


def copy_row(rank: int, step: int, name: str) -> CopyRow:
    return CopyRow(rank, step, name, "Pageable" in name, 1, 4096, 500, 8.192e9, 500, 0, 0)


def match_row(match: int, ranks: int) -> MatchRow:
    begin = 10_000 * match
    instants = begin, begin + 700, begin + 3000, begin + 3002
    return MatchRow(match, "", match, "all_reduce", 4096, tuple(range(ranks)), (1 + match,) * ranks, *instants, 2300)


def without_steps(result: Result) -> Result:
    """The same where nothing tells steps."""
    empty = {name: Table(getattr(result, name).row_type) for name in ("steps", "phases", "buckets", "launches")}
    loose = [dataclasses.replace(row, step=None, bucket=None) for row in result.collectives]
    streams = [row for row in result.streams if row.step is None]
    kept = {"collectives": Table(type(loose[0]), loose), "streams": Table(StreamRow, streams)}
    return dataclasses.replace(result, **empty, **kept)


def windows_of(result: Result) -> Table[WindowRow]:
    """One profiler window of each rank, as its population."""
    rows = []
    for row in result.ranks:
        assert row.all is not None
        one = row.all
        memory_ns = one.span_ns - one.compute_ns - one.exposed_ns - one.idle_ns
        parts = one.compute_ns, one.comm_ns, one.hidden_ns, one.exposed_ns, memory_ns, one.idle_ns, 0
        rows.append(
            WindowRow(
                row.rank, 0, row.file, True, 0, one.span_ns, one.span_ns, *parts, one.overlap_ratio, Evidence.DEVICE
            )
        )
    return Table(WindowRow, rows)


def moved(result: Result, rank: int, by_ns: int) -> Result:
    """One rank's instants, all of them, moved in time."""
    tables = {}
    for name in ("steps", "phases", "buckets", "collectives"):
        table = getattr(result, name)
        rows = [shifted(row, by_ns) if row.rank == rank else row for row in table]
        tables[name] = Table(table.row_type, rows)
    activity = tuple(later(one, by_ns) if one.rank == rank else one for one in result.activity)
    return dataclasses.replace(result, activity=activity, **tables)


def shifted(row: Any, by_ns: int) -> Any:
    known = {f.name: getattr(row, f.name) for f in dataclasses.fields(row) if f.name.endswith("_at_ns")}
    return dataclasses.replace(row, **{name: at + by_ns for name, at in known.items() if at is not None})


def later(activity: Activity, by_ns: int) -> Activity:
    backend = tuple((lane, name, b + by_ns, e + by_ns, seq) for lane, name, b, e, seq in activity.backend)
    works = []
    for work in activity.device:
        columns = {name: getattr(work, name) + by_ns for name in ("begin_at_ns", "end_at_ns")}
        for name in ("launch_begin_at_ns", "launch_end_at_ns"):
            columns[name] = getattr(work, name) + by_ns * work.launched
        works.append(dataclasses.replace(work, **columns))
    return Activity(activity.rank, activity.compute + by_ns, backend, tuple(works))
