"""Reads the numbers of HTA (Holistic Trace Analysis) on the same files, and compares them with ours.

Only here is HTA known. It is loud and heavy, and one odd rank ends all of it: here each rank and each of its analyses
stands alone, and what fails is a sentence.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import logging
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.hta.rules import NO_FIGURES, OTHER_KIND, Explained, Figures, FileTimes, Reading, Strays, explain
from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.result import Result
from ddptrace.errors import DdptraceError, printable
from ddptrace.load.tables import DeviceWork, Work

NOT_FOR_HTA: Final = (".pftrace", ".pftrace.gz", ".zst")


@dataclass(frozen=True, slots=True)
class Failure:
    """HTA could not read, or not judge, one rank."""

    rank: int
    message: str


@dataclass(frozen=True, slots=True)
class HtaReport:
    """HTA beside ours. `lost`: ranks that HTA itself, given the files alone, would not have told apart."""

    version: str
    ranks: tuple[Explained, ...]
    tables: tuple[HtaTable, ...]
    failures: tuple[Failure, ...]
    lost: tuple[int, ...]


def compare(result: Result, files: Mapping[int, Path], *, include_last_step: bool = False) -> HtaReport:
    """Run HTA on one file per rank and explain each difference from `result`.

    `include_last_step` is HTA's own switch: by default it drops the last profiler step. Raises DdptraceError where HTA
    is not installed.
    """
    demand()
    with _contained(), tempfile.TemporaryDirectory() as folder:
        return _Session(_named_for_hta(files, Path(folder)), include_last_step).report(result)


def demand() -> None:
    """Raises DdptraceError where HTA is not installed."""
    if importlib.util.find_spec("hta") is None:
        raise DdptraceError("HTA is not installed: pip install 'ddptrace[hta]'")


@contextlib.contextmanager
def _contained() -> Iterator[None]:
    """HTA prints, logs and warns; none of it reaches the reader, and logging is afterwards as it was."""
    disabled = logging.root.manager.disable
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(disabled)


def _named_for_hta(files: Mapping[int, Path], folder: Path) -> dict[int, str]:
    """HTA takes only names that end in `.json` or `.gz`, in small letters; others get a link that does."""
    named = {}
    for rank, path in sorted(files.items()):
        if path.name.lower().endswith(NOT_FOR_HTA):
            raise DdptraceError(f"HTA reads JSON, plain or packed by gzip, and {printable(path)} is neither")
        suffix = ".json.gz" if path.name.lower().endswith(".gz") else ".json"
        link = folder / f"rank-{rank}{suffix}"
        link.symlink_to(path.resolve())
        named[rank] = str(path.resolve() if path.name.endswith((".json", ".gz")) else link)
    return named


class _Session:
    """One run of HTA over the files of some ranks."""

    def __init__(self, files: dict[int, str], include_last_step: bool) -> None:
        from hta.common.trace import Trace
        from hta.trace_analysis import TraceAnalysis

        self.files = files
        self.include_last_step = include_last_step
        self.failures: list[Failure] = []
        self.readings: dict[int, Reading] = {}
        self.trace = Trace(trace_files=dict(files))
        self.analysis = TraceAnalysis.__new__(TraceAnalysis)  # its own start would read all ranks or none
        self.analysis.t = self.trace

    def report(self, result: Result) -> HtaReport:
        from hta.version import __version__

        self._load()
        ranks = tuple(self._explained(result, rank) for rank in sorted(self.readings))
        tables = tuple(self._tables()) if any(map(self._has_work, self.readings)) else ()
        return HtaReport(__version__, ranks, tables, tuple(self.failures), self._lost())

    def _load(self) -> None:
        """What `Trace.load_traces` does, rank by rank and in this process."""
        for rank in self.files:
            with self._told(rank):
                self.trace.parse_single_rank(rank)
        times = {}
        for rank in list(self.trace.traces):
            with self._told(rank):
                times[rank] = _times_of(self.trace, rank, self.include_last_step)
        self.trace.traces = {rank: self.trace.traces[rank] for rank in times}
        try:
            self.trace.align_and_filter_trace(self.include_last_step)
        except Exception as error:  # HTA raises whatever its libraries do
            self.failures += [Failure(rank, _sentence(error)) for rank in times]
            self.trace.traces = {}
        for rank, frame in list(self.trace.traces.items()):
            with self._told(rank):
                self.trace.traces[rank] = frame.set_index("index", drop=False).rename_axis(None)
                self.readings[rank] = _reading_of(self.trace, rank, times[rank])
        self.trace.is_parsed = True

    @contextlib.contextmanager
    def _told(self, rank: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # HTA raises whatever its libraries do
            self.failures.append(Failure(rank, _sentence(error)))

    def _explained(self, result: Result, rank: int) -> Explained:
        reading = self.readings[rank]
        return explain(rank, self._figures(rank), _work_in(result, rank, reading), reading, result.zero_unix_ns)

    def _figures(self, rank: int) -> Figures | None:
        """Of this rank alone: another that fails must not take it with it. None where HTA raises."""
        if not self._has_work(rank):
            why = "its rules leave none of it" if len(self.readings[rank].times.begins_us) else "this file has none"
            self.failures.append(Failure(rank, f"it judges nothing but a device's work, and {why}"))
            return NO_FIGURES
        trace, alone = copy.copy(self.trace), copy.copy(self.analysis)
        trace.traces, alone.t = {rank: self.trace.traces[rank]}, trace
        with self._told(rank):
            overlap = _cell(alone.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].iloc[0])
            row = alone.get_temporal_breakdown(visualize=False).iloc[0]
            times = (row[f"{name}_time(us)"] for name in ("idle", "compute", "non_compute", "kernel"))
            return Figures(overlap, *(round(us * 1000) for us in times))
        return None

    def _has_work(self, rank: int) -> bool:
        return bool(self.trace.traces[rank]["stream"].ne(-1).any())

    def _tables(self) -> Iterator[HtaTable]:
        """Its other analyses, each by itself; `ranks` must be given, or some look at rank 0 alone, and one without work
        of a device ends all."""
        hta, ranks = self.analysis, [rank for rank in sorted(self.readings) if self._has_work(rank)]
        asked: tuple[tuple[str, Callable[[], Any]], ...] = (
            ("gpu_kernel_breakdown by type", lambda: hta.get_gpu_kernel_breakdown(visualize=False)[0]),
            ("gpu_kernel_breakdown by kernel", lambda: _by_length(hta.get_gpu_kernel_breakdown(visualize=False)[1])),
            ("idle_time_breakdown", lambda: hta.get_idle_time_breakdown(ranks=ranks, visualize=False)[0]),
            ("potential_stragglers", lambda: _stragglers(hta.get_potential_stragglers())),
            ("cuda_kernel_launch_stats", lambda: launches(hta.get_cuda_kernel_launch_stats(ranks, visualize=False))),
            ("queue_length_summary", lambda: hta.get_queue_length_summary(ranks)),
            ("memory_bw_summary", lambda: hta.get_memory_bw_summary(ranks)),
            ("gpu_user_annotation_breakdown", lambda: hta.get_gpu_user_annotation_breakdown(visualize=False)),
        )
        for name, ask in asked:
            try:
                yield _table_of(name, ask())
            except Exception as error:  # HTA raises whatever its libraries do
                yield HtaTable(name, (), (), _sentence(error))

    def _lost(self) -> tuple[int, ...]:
        from hta.common.trace_file import create_rank_to_trace_dict

        try:
            found = create_rank_to_trace_dict(list(self.files.values()))[1]
        except Exception:  # it cannot read one of them, and then finds none
            return ()
        return tuple(rank for rank, path in self.files.items() if found.get(rank) != path)


def _work_in(result: Result, rank: int, reading: Reading) -> DeviceWork | None:
    """The device's work in the window that the file holds."""
    begin_at_ns, end_at_ns = (
        ns - result.zero_unix_ns for ns in (reading.times.begin_unix_ns, reading.times.end_unix_ns)
    )
    for work in next((activity.device for activity in result.activity if activity.rank == rank), ()):
        if work.begin_at_ns[0] <= end_at_ns and begin_at_ns <= work.end_at_ns.max():
            return work
    return None


# What HTA read of a file ----------------------------------------------------------------------------------------------


DEVICE_CATEGORIES: Final = frozenset(("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"))
"""In any case. What else HTA finds on a stream is no work of a device."""
KINDS: Final = {"COMPUTATION": Work.COMPUTE, "COMMUNICATION": Work.COMM, "MEMORY": Work.MEMORY}


def _times_of(trace: Any, rank: int, include_last_step: bool) -> FileTimes:
    """`trace` is HTA's, all ranks parsed and none aligned."""
    frame = trace.traces[rank]
    base_ns = int(trace.meta_data[rank].get("baseTimeNanoseconds", 0))
    begin, end = (base_ns + round(us * 1000) for us in (frame["ts"].min(), frame["end"].max()))
    on_device = frame[frame["stream"].ne(-1) & _is_device(trace, frame)]
    begins_us = np.sort(on_device["ts"].to_numpy().astype(np.int64))
    return FileTimes(base_ns, begin, end, begins_us, _launches_before_us(trace, frame, include_last_step))


def _reading_of(trace: Any, rank: int, times: FileTimes) -> Reading:
    """`trace` is HTA's, aligned and filtered."""
    import hta.configs.env_options as options
    from hta.utils.utils import get_kernel_type

    frame, words = trace.traces[rank], trace.symbol_table.get_sym_table()
    on_stream = frame[frame["stream"].ne(-1)]
    names = {words[name] for name in on_stream["name"].unique()}
    kinds = {name: int(KINDS.get(get_kernel_type(name), OTHER_KIND)) for name in names}
    strays = _strays(trace, on_stream[~_is_device(trace, on_stream)], kinds)
    rounds = not options.disable_ns_rounding() and bool((frame["dur"] % 1 == 0).all())
    float_zero_us = int(trace.min_ts) if frame["dur"].dtype.kind == "f" else None
    return Reading(times, rounds, _filters(trace), kinds, strays, float_zero_us)


def _filters(trace: Any) -> bool:
    """With no or one profiler step HTA keeps all events, launched or not."""
    return len(trace.symbol_table.get_profiler_step_ids()) > 1


def _launches_before_us(trace: Any, frame: Any, include_last_step: bool) -> float | None:
    """The first instant of the file whose launches HTA drops; None where it drops none."""
    from hta.common.trace_filter import CPUOperatorFilter

    if not _filters(trace):
        return None
    host = CPUOperatorFilter()(frame, trace.symbol_table)
    steps = host[host["name"].isin(trace.symbol_table.get_profiler_step_ids())]
    if not include_last_step:
        return float(host["ts"].min() if steps.empty else steps["ts"].max())
    # the ends that it compares with were not moved to the first event of all ranks, as the begins were
    moved = min(one["ts"].min() for one in trace.traces.values())
    return float(np.nextafter((host if steps.empty else steps)["end"].max() + moved, np.inf))


def _is_device(trace: Any, frame: Any) -> NDArray[np.bool_]:
    words = trace.symbol_table.get_sym_table()
    return np.array([words[category].lower() in DEVICE_CATEGORIES for category in frame["cat"]], np.bool_)


def _strays(trace: Any, rows: Any, kinds: Mapping[str, int]) -> Strays:
    words = trace.symbol_table.get_sym_table()
    begin_ns = _ns(rows["ts"] + trace.min_ts)
    kind = np.array([kinds[words[name]] for name in rows["name"]], np.int64)
    return Strays(begin_ns, begin_ns + _ns(rows["dur"]), kind)


def _ns(us: Any) -> Ints:
    return np.asarray(np.rint(us.to_numpy(np.float64) * 1000), np.int64)


# What HTA's analyses answer -------------------------------------------------------------------------------------------


Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class HtaTable:
    """What one of HTA's analyses answered, its names and units kept. `why_not` says why it has no rows."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    why_not: str | None = None


TOTAL: Final = "sum (us)"
"""What HTA calls the column of a kernel's whole time."""


def _by_length(frame: Any) -> Any:
    """HTA sorts its kernels by name."""
    return frame.sort_values(TOTAL, ascending=False, kind="stable") if TOTAL in frame.columns else frame


def _stragglers(ranks: list[int]) -> Any:
    import pandas as pd

    return pd.DataFrame({"rank": ranks})


def launches(by_rank: Mapping[int, Any]) -> Any:
    """One row per rank instead of one per kernel."""
    import pandas as pd

    rows = [{"rank": rank, "kernels": len(frame), **_medians(frame)} for rank, frame in by_rank.items()]
    return pd.DataFrame(rows)


def _medians(frame: Any) -> dict[str, float]:
    return {f"{name} median (us)": frame[name].median() for name in ("cpu_duration", "gpu_duration", "launch_delay")}


def _table_of(name: str, frame: Any) -> HtaTable:
    """A DataFrame with its labels as columns."""
    if frame is None or frame.empty:
        return HtaTable(name, (), (), "HTA finds nothing of it in these files")
    if any(frame.index.names):
        frame = frame.reset_index()
    columns = (" ".join(filter(None, column)) if isinstance(column, tuple) else str(column) for column in frame.columns)
    return HtaTable(name, tuple(columns), tuple(tuple(map(_cell, row)) for row in frame.itertuples(index=False)))


def _cell(value: Any) -> Any:
    plain = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain


def _sentence(error: Exception) -> str:
    """What HTA raised, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
