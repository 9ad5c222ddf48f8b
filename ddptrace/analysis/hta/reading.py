"""What HTA made of each file, looked up in its own tables before and after it drops events; and what its analyses
answer, as plain rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.hta.rules import OTHER_KIND, FileTimes, Reading, Strays
from ddptrace.analysis.intervals import Ints
from ddptrace.load.tables import Work

DEVICE_CATEGORIES: Final = frozenset(("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"))
"""In any case. What else HTA finds on a stream is no work of a device."""
KINDS: Final = {"COMPUTATION": Work.COMPUTE, "COMMUNICATION": Work.COMM, "MEMORY": Work.MEMORY}


def times_of(trace: Any, rank: int, include_last_step: bool) -> FileTimes:
    """`trace` is HTA's, all ranks parsed and none aligned."""
    frame = trace.traces[rank]
    base_ns = int(trace.meta_data[rank].get("baseTimeNanoseconds", 0))
    begin, end = (base_ns + round(us * 1000) for us in (frame["ts"].min(), frame["end"].max()))
    on_device = frame[frame["stream"].ne(-1) & _is_device(trace, frame)]
    begins_us = np.sort(on_device["ts"].to_numpy().astype(np.int64))
    return FileTimes(base_ns, begin, end, begins_us, _launches_before_us(trace, frame, include_last_step))


def reading_of(trace: Any, rank: int, times: FileTimes) -> Reading:
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


def longest_first(frame: Any) -> Any:
    """HTA sorts its kernels by name."""
    return frame.sort_values(TOTAL, ascending=False, kind="stable") if TOTAL in frame.columns else frame


def stragglers(ranks: list[int]) -> Any:
    import pandas as pd

    return pd.DataFrame({"rank": ranks})


def launches(by_rank: Mapping[int, Any]) -> Any:
    """One row per rank instead of one per kernel."""
    import pandas as pd

    rows = [{"rank": rank, "kernels": len(frame), **_medians(frame)} for rank, frame in by_rank.items()]
    return pd.DataFrame(rows)


def _medians(frame: Any) -> dict[str, float]:
    return {f"{name} median (us)": frame[name].median() for name in ("cpu_duration", "gpu_duration", "launch_delay")}


def table_of(name: str, frame: Any) -> HtaTable:
    """A DataFrame with its labels as columns."""
    if frame is None or frame.empty:
        return HtaTable(name, (), (), "HTA finds nothing of it in these files")
    if any(frame.index.names):
        frame = frame.reset_index()
    columns = (" ".join(filter(None, column)) if isinstance(column, tuple) else str(column) for column in frame.columns)
    return HtaTable(name, tuple(columns), tuple(tuple(map(cell, row)) for row in frame.itertuples(index=False)))


def cell(value: Any) -> Any:
    plain = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain


def sentence(error: Exception) -> str:
    """What HTA raised, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
