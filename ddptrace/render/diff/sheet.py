"""What changed between two sides of runs, as a sheet of tables and charts, and as a JUnit file of its limits for CI."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree as ET

from ddptrace.analysis.diff.tables import Change, Diff
from ddptrace.errors import printable
from ddptrace.findings import gravest_first
from ddptrace.render.diff.words import (
    basis,
    bucket_name,
    exceeded_words,
    further,
    headline,
    reach,
    sides,
    whole_name,
)
from ddptrace.render.sheet import Chart, Grid, Line, Sheet
from ddptrace.render.whole_file import whole_file
from ddptrace.render.words import some_of
from ddptrace.units import NOT_MEASURED, counted, millis, percent, signed_millis, signed_percent

KINDS: Final = {
    "Typical step": ("step", "part", "total"), "Phases": ("phase",), "Buckets": ("bucket",),
    "Units": ("unit",), "Collectives": ("collective",), "Ranks": ("rank",),
}  # fmt: skip
MOST_ROWS: Final = 64
"""Of a table, sure ones first, then by how much they changed; diff.json has all."""

MOST_BARS: Final = 30
NOTE: Final = (
    "Milliseconds of a typical step, mean over the runs of a side; parts add up to the step. 95 %: the "
    "interval that holds the change. p: how often chance alone changes this quantity as much; of any: how often it "
    "changes the largest of all quantities as much, which is the p to go by. Exposed: an instant in which several "
    "collectives run counts once, for the one that began first."
)


def diff_sheet(diff: Diff) -> Sheet:
    words = (
        headline(diff),
        *further(diff),
        basis(diff),
        *(finding.message + "." for finding in gravest_first(diff.findings)),
    )
    grids = (*_changes(diff), *_settings(diff), _runs(diff))
    title = f"What changed: {sides(diff)}"
    setup = (("step before", f"{millis(diff.step.before_ns)} ms"), ("after", f"{millis(diff.step.after_ns)} ms"))
    return Sheet("diff", title, setup, words, grids, tuple(_charts(diff)))


def _changes(diff: Diff) -> Iterator[Grid]:
    heads = ("quantity", "before ms", "after ms", "change ms", "of itself", "95 %", "", "p", "p of any", "holds")
    for title, kinds in KINDS.items():
        rows = _most([row for row in diff.changes if row.kind in kinds and (row.before_ns or row.after_ns)], kinds)
        if rows:
            yield Grid(title, heads, tuple(map(_change_cells, rows)), NOTE)


def _most(rows: list[Change], kinds: tuple[str, ...]) -> list[Change]:
    if kinds[0] in ("bucket", "unit", "collective", "rank"):
        rows.sort(key=lambda row: (not row.is_sure, -abs(row.change_ns)))
    return rows[:MOST_ROWS]


def _change_cells(row: Change) -> tuple[str, ...]:
    chances = (NOT_MEASURED if p is None else f"{p:.4f}" for p in (row.p, row.adjusted_p))
    ratio = NOT_MEASURED if row.change_ratio is None else signed_percent(row.change_ratio)
    return (
        whole_name(row),
        millis(row.before_ns),
        millis(row.after_ns),
        signed_millis(row.change_ns),
        ratio,
        reach(row),
        "sure" if row.is_sure else "",
        *chances,
        some_of(row.parameters, 2),
    )


def _settings(diff: Diff) -> Iterator[Grid]:
    if diff.settings:
        rows = tuple((setting.name, setting.before, setting.after) for setting in diff.settings)
        yield Grid("Not set up alike", ("what", "before", "after"), rows)


def _runs(diff: Diff) -> Grid:
    rows = tuple(
        (str(row.order + 1), row.side, row.path, row.run_id[:8], millis(row.step_ns), str(row.steps), row.population)
        for row in diff.runs
    )
    spread = "" if diff.run_ratio is None else f" Runs of one side differ by {percent(diff.run_ratio)}."
    heads = ("began", "side", "run", "id", "step ms", "rank-steps", "which")
    return Grid("Runs", heads, rows, f"In the order in which they began.{spread}")


def _charts(diff: Diff) -> Iterator[Chart]:
    yield _bars("Where the change is", [row for row in diff.changes if row.kind in ("step", "part", "phase")])
    buckets = [row for row in diff.changes if row.kind == "bucket"]
    if buckets:
        yield _by_bucket(buckets)
    yield _each_run(diff)


def _bars(title: str, rows: Sequence[Change]) -> Chart:
    shown = [row for row in rows if row.before_ns or row.after_ns]
    names = tuple(f"{row.kind}: {whole_name(row)}" if row.kind == "phase" else whole_name(row) for row in shown)
    line = Line("change", names, tuple(row.change_ns / 1e6 for row in shown), *_ends(shown))
    return Chart(
        title, "", "change, ms", (line,), "bars", caption="Each bar with the 95 % interval of its quantity alone."
    )


def _ends(rows: Sequence[Change]) -> tuple[tuple[float, ...], ...]:
    low, high = (
        [end / 1e6 for end in ends if end is not None]
        for ends in ([row.low_ns for row in rows], [row.high_ns for row in rows])
    )
    return (tuple(low), tuple(high)) if len(low) == len(rows) else ()


def _by_bucket(rows: Sequence[Change]) -> Chart:
    most = sorted(
        {(row.reducer, row.layout, row.index): abs(row.change_ns) for row in rows}.items(), key=lambda o: -o[1]
    )
    kept = {place for place, _ in most[:MOST_BARS]}
    shown = [row for row in rows if (row.reducer, row.layout, row.index) in kept]
    lines = []
    for name, what in (("comm", "communication"), ("exposed", "exposed")):
        mine = [row for row in shown if row.name == name]
        names = tuple(bucket_name(row) for row in mine)
        lines.append(Line(what, names, tuple(row.change_ns / 1e6 for row in mine), *_ends(mine)))
    return Chart(
        "Buckets",
        "",
        "change, ms",
        tuple(lines),
        "bars",
        caption=f"{counted(len(kept), 'bucket')}: how much longer each communicates, and how much more exposed time is"
        " charged to it.",
    )


def _each_run(diff: Diff) -> Chart:
    lines = [
        Line(side, tuple(float(row.order + 1) for row in mine), tuple(row.step_ns / 1e6 for row in mine))
        for side in ("before", "after")
        if (mine := [row for row in diff.runs if row.side == side])
    ]
    return Chart("Each run", "run, in the order in which they began", "step, ms", tuple(lines))


def write_junit(diff: Diff, exceeded: Mapping[str, Sequence[Change]], path: Path) -> None:
    """Write `path` whole or not at all. `exceeded`: by limit, what exceeds it; nothing where nothing does."""
    with whole_file(path) as file:
        file.write(ET.tostring(junit(diff, exceeded), encoding="utf-8", xml_declaration=True))


def junit(diff: Diff, exceeded: Mapping[str, Sequence[Change]]) -> ET.Element:
    failures = sum(map(bool, exceeded.values()))
    counts = {"name": "ddptrace diff", "tests": str(len(exceeded)), "failures": str(failures), "errors": "0"}
    suite = ET.Element("testsuite", counts)
    for limit, rows in exceeded.items():
        case = ET.SubElement(suite, "testcase", {"classname": "ddptrace diff", "name": printable(limit)})
        if rows:
            failure = ET.SubElement(case, "failure", {"message": exceeded_words(limit, rows)})
            failure.text = printable(f"{headline(diff)} {basis(diff)}")
    ET.SubElement(suite, "system-out").text = printable(f"{sides(diff)}: {headline(diff)}")
    return suite
