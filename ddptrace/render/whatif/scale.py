"""A training on many ranks that was simulated: as lines for the terminal, and as a figure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.whatif.scale import ScaleRow
from ddptrace.render.figures import Figure, axis, layout
from ddptrace.units import millis, percent

SIMULATED: Final = "Simulated from the recorded ranks, not measured."
COLOURS: Final = {"ring": "#41729f", "tree": "#7a9e59", "hierarchical": "#e4683a"}


def scale_lines(rows: Sequence[ScaleRow], setting: str, per_host: int) -> Iterator[str]:
    """A row for each number of ranks. `setting`: in words."""
    yield f"On many ranks, {setting}: step ms, efficiency, jitter ms   ({SIMULATED})"
    names = list(dict.fromkeys(row.algorithm for row in rows))
    yield f"  {'ranks':>6}" + "".join(f"  {name:>26}" for name in names)
    for ranks in dict.fromkeys(row.ranks for row in rows):
        yield f"  {ranks:>6,}" + "".join(f"  {_cell(row):>26}" for row in rows if row.ranks == ranks)
    yield f"  hierarchical: {per_host} ranks share a link; efficiency: recorded compute alone, to the step"
    yield "  jitter: what it adds that the slowest of so many ranks sets the pace, which --ranks leaves out"


def _cell(row: ScaleRow) -> str:
    return f"{millis(row.step_ns):>9} {percent(row.efficiency_ratio):>6} {millis(row.jitter_ns):>8}"


def scaling_figure(rows: Sequence[ScaleRow]) -> Figure | None:
    """Efficiency over ranks, a line for each algorithm."""
    if not rows:
        return None
    data = [_line(name, [row for row in rows if row.algorithm == name]) for name in COLOURS]
    across = axis("ranks", type="log", dtick=0.30103, tickformat=",d")
    shape = layout(xaxis=across, yaxis=axis("efficiency", tickformat=".0%", rangemode="tozero"))
    return Figure(
        "scaling", 360, data, shape, f"{SIMULATED} Efficiency: recorded compute alone, to the simulated step."
    )


def _line(name: str, rows: Sequence[ScaleRow]) -> dict[str, object]:
    return {
        "type": "scatter", "mode": "lines+markers", "name": f"{name} (simulated)",
        "line": {"dash": "dot", "color": COLOURS[name]}, "x": [row.ranks for row in rows],
        "y": [round(row.efficiency_ratio, 4) for row in rows],
    }  # fmt: skip
