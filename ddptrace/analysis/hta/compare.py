"""HTA (Holistic Trace Analysis; on PyPI `traceinsight`) on the same files, and what it says as plain tables.

Only here and in `hta_reading` is HTA known. It is loud and heavy, and one odd rank ends all of it: here each rank and
each of its analyses stands alone, and what fails is a sentence.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import io
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddptrace.analysis.hta.reading import HtaTable, cell, launches, reading_of, sentence, stragglers, table_of, times_of
from ddptrace.analysis.hta.rules import NO_FIGURES, Explained, Figures, Reading, explain
from ddptrace.analysis.result import Result
from ddptrace.errors import DdptraceError
from ddptrace.load.tables import DeviceWork


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
                times[rank] = times_of(self.trace, rank, self.include_last_step)
        self.trace.traces = {rank: self.trace.traces[rank] for rank in times}
        try:
            self.trace.align_and_filter_trace(self.include_last_step)
        except Exception as error:  # HTA raises whatever its libraries do
            self.failures += [Failure(rank, sentence(error)) for rank in times]
            self.trace.traces = {}
        for rank, frame in list(self.trace.traces.items()):
            with self._told(rank):
                self.trace.traces[rank] = frame.set_index("index", drop=False).rename_axis(None)
                self.readings[rank] = reading_of(self.trace, rank, times[rank])
        self.trace.is_parsed = True

    @contextlib.contextmanager
    def _told(self, rank: int) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # HTA raises whatever its libraries do
            self.failures.append(Failure(rank, sentence(error)))

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
            overlap = cell(alone.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].iloc[0])
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
            ("gpu_kernel_breakdown by kernel", lambda: hta.get_gpu_kernel_breakdown(visualize=False)[1]),
            ("idle_time_breakdown", lambda: hta.get_idle_time_breakdown(ranks=ranks, visualize=False)[0]),
            ("potential_stragglers", lambda: stragglers(hta.get_potential_stragglers())),
            ("cuda_kernel_launch_stats", lambda: launches(hta.get_cuda_kernel_launch_stats(ranks, visualize=False))),
            ("queue_length_summary", lambda: hta.get_queue_length_summary(ranks)),
            ("memory_bw_summary", lambda: hta.get_memory_bw_summary(ranks)),
            ("gpu_user_annotation_breakdown", lambda: hta.get_gpu_user_annotation_breakdown(visualize=False)),
        )
        for name, ask in asked:
            try:
                yield table_of(name, ask())
            except Exception as error:  # HTA raises whatever its libraries do
                yield HtaTable(name, (), (), sentence(error))

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
