"""One thing that `load` measures, in a separate process: `python -m benchmarks.load_work WHAT …`.

It prints JSON: for each rank the numbers that HTA gives too, which shows that all did the same work.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddptrace.bench.launch import end_with_starter

if TYPE_CHECKING:
    from ddptrace.analysis.tables.device import Population

Answer = dict[str, Any]


def inflate(files: list[Path]) -> Answer:
    """Only read and unpack: no reader can be faster."""
    from ddptrace.load.kineto.source import Source

    return {"raw_nbytes": sum(len(piece) for file in files for piece in Source(file).pieces())}


def ours(files: list[Path], cache: Path | None = None) -> Answer:
    """Load every rank, and what its device did in both populations."""
    from ddptrace.analyzer import rank_populations

    rows = list(rank_populations(files, cache=cache))
    return {name: {row.rank: _figures(getattr(row, name)) for row in rows} for name in ("all", "with_launch")}


def hta(files: list[Path]) -> Answer:
    """Run HTA's loading, overlap and temporal breakdown, with times as exact as ours and with every step."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    from hta.trace_analysis import TraceAnalysis

    with contextlib.redirect_stdout(io.StringIO()):
        analysis = TraceAnalysis(trace_files=dict(enumerate(map(str, files))), include_last_profiler_step=True)
        overlap = analysis.get_comm_comp_overlap(visualize=False)
        breakdown = analysis.get_temporal_breakdown(visualize=False)
    percents = dict(zip(overlap["rank"], overlap["comp_comm_overlap_pctg"], strict=True))
    names = ("idle_time(us)", "compute_time(us)", "kernel_time(us)")
    rows = {
        int(row["rank"]): [float(percents[row["rank"]]), *(float(row[name]) for name in names)]
        for _, row in breakdown.iterrows()
    }
    launched_only = len(analysis.t.symbol_table.get_profiler_step_ids()) > 1
    return {"with_launch" if launched_only else "all": rows}


def _figures(ours: Population | None) -> list[float] | None:
    """Return overlap in percent; idle, compute and span in µs."""
    if ours is None or ours.overlap_ratio is None:
        return None
    return [100 * ours.overlap_ratio, ours.idle_ns / 1000, ours.compute_ns / 1000, ours.span_ns / 1000]


def main(what: str, cache: str, *files: str) -> None:
    paths = list(map(Path, files))
    answer = inflate(paths) if what == "inflate" else hta(paths) if what == "hta" else ours(paths, _folder(cache))
    json.dump(answer, sys.stdout)


def _folder(cache: str) -> Path | None:
    return Path(cache) if cache else None


if __name__ == "__main__":
    end_with_starter()
    main(*sys.argv[1:])
