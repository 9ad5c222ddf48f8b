"""The numbers of a run that are worth a line in a tracker of experiments."""

from __future__ import annotations

from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import summarize

NS_PER_MS = 1e6


def summary_metrics(result: Result) -> dict[str, float]:
    """Return the typical step's numbers by name, as in `ddptrace/step_ms`; without those that were not measured.

    Args:
        result: What `ddptrace.analyze` returned.

    Returns:
        Times in milliseconds (`_ms`), shares from 0 to 1 (`_ratio`), and counts.
    """
    summary = summarize(result)
    found = {
        "step_ms": _ms(summary.typical.window_ns if summary.typical else None),
        "step_p95_ms": _ms(summary.all_steps.wall_p95_ns if summary.all_steps else None),
        "comm_ms": _ms(summary.comm_ns),
        "overlap_ratio": summary.overlap_ratio,
        "worst_bucket_exposed_ms": _ms(summary.worst.exposed_charged_ns if summary.worst else None),
        **{f"{part.name}_ms": _ms(part.ns) for part in summary.parts},
        **{f"{part.name}_ratio": part.ratio for part in summary.parts},
        "ranks": len(result.ranks),
        "steps": len({row.step for row in result.steps}),
        "findings": len(result.findings),
    }
    return {f"ddptrace/{name}": float(value) for name, value in found.items() if value is not None}


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / NS_PER_MS
