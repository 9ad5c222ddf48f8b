"""What changed between two sides of runs, in at most `WIDTH` columns of plain text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from ddptrace.analysis.diff.tables import Change, Diff
from ddptrace.errors import printable
from ddptrace.findings import gravest_first
from ddptrace.render.diff.words import (
    basis,
    collective_name,
    further,
    headline,
    named,
    reach,
    setting_words,
    sides,
    unit_name,
)
from ddptrace.render.terminal import finding_lines
from ddptrace.render.words import PARTS, WIDTH, both_ends, cut, indented
from ddptrace.units import NOT_MEASURED, duration, millis, percent, signed_millis, signed_percent, size

MOST_ROWS: Final = 8
"""Of buckets and of ranks; the most changed ones."""
NAME_WIDTH: Final = 26
HEADS: Final = f"{'before ms':>10} {'after ms':>10} {'change ms':>10} {'':>7}  95 %"


def diff_text(diff: Diff) -> str:
    """The whole comparison, its lines ending in a newline."""
    sections = [
        textwrap.wrap(f"ddptrace diff · {sides(diff)}", WIDTH),
        [line for sentence in sentences(diff) for line in textwrap.wrap(sentence, WIDTH)],
        [*_rows("Typical step", _of(diff, "step", "part", "total")), *_overlap_line(diff)],
        list(_rows("Phases", _of(diff, "phase"))),
        list(_most("Buckets", _of(diff, "bucket"))),
        list(_most("Units", _of(diff, "unit"))),
        list(_most("Exposed time", _of(diff, "collective"))),
        list(_most("Ranks", _of(diff, "rank"))),
        list(_settings(diff)),
        list(finding_lines("Before you rely on this", gravest_first(diff.findings))),
        indented(basis(diff)),
    ]
    return "\n\n".join("\n".join(lines) for lines in sections if lines) + "\n"


def sentences(diff: Diff) -> Iterator[str]:
    """From the step to what made it so."""
    yield headline(diff)
    yield scaling_words(diff)
    yield from further(diff)


def _of(diff: Diff, *kinds: str) -> list[Change]:
    """Without those that are nothing on both sides."""
    return [row for row in diff.changes if row.kind in kinds and (row.before_ns or row.after_ns)]


def _rows(title: str, rows: Sequence[Change]) -> Iterator[str]:
    if rows:
        yield f"{title:<{NAME_WIDTH + 2}} {HEADS}"
        yield from map(_change_line, rows)


def _overlap_line(diff: Diff) -> Iterator[str]:
    if diff.overlap is not None:
        before, after = map(percent, diff.overlap)
        yield f"  {'hidden communication':<{NAME_WIDTH}} {before:>10} {after:>10}"


def _most(title: str, rows: Sequence[Change]) -> Iterator[str]:
    """Sure ones first, then by how much they changed."""
    ordered = sorted(rows, key=lambda row: (not row.is_sure, -abs(row.change_ns)))
    of = f" ({MOST_ROWS} of {len(rows)})" if len(rows) > MOST_ROWS else ""
    yield from _rows(title + of, ordered[:MOST_ROWS])


def _change_line(row: Change) -> str:
    ratio = NOT_MEASURED if row.change_ratio is None else signed_percent(row.change_ratio)
    times = f"{millis(row.before_ns):>10} {millis(row.after_ns):>10} {signed_millis(row.change_ns):>10}"
    return f"  {_name(row):<{NAME_WIDTH}} {times} {ratio:>7}  {reach(row)}{'  sure' if row.is_sure else ''}"


def _name(row: Change) -> str:
    if row.kind == "bucket":
        what = "comm" if row.name == "comm" else "exposed"
        return f"{row.reducer}/{row.index} {size(row.nbytes)} {what}"
    if row.kind == "collective":
        return cut(collective_name(row), NAME_WIDTH)
    if row.kind == "unit":
        return both_ends(printable(unit_name(row)), NAME_WIDTH)
    if row.kind == "rank":
        return f"{row.rank} {'exposed' if row.name == 'exposed_comm' else named(row)}"
    return f"  {named(row)}" if row.kind == "part" else named(row)


def _settings(diff: Diff) -> Iterator[str]:
    if diff.settings:
        yield "Not set up alike"
        for setting in diff.settings:
            yield from textwrap.wrap(
                setting_words(setting.name, setting.before, setting.after),
                WIDTH,
                initial_indent="  ",
                subsequent_indent="    ",
            )


# What more ranks cost a step ------------------------------------------------------------------------------------------


LOST_MIN_RATIO: Final = 0.05
"""By so much longer must the step be before that is said."""
LOOK: Final = {
    "compute": "ranks of one machine take processors and memory bandwidth from each other: give each its own, and start"
    " fewer threads",
    "exposed_comm": "`ddptrace analyze` of the larger run names the bucket, and says whether it waits for a rank or for"
    " the wire",
    "exposed_memory": "copies are not hidden: pin the host's memory, and copy without blocking",
    "idle": "ranks wait for something other than a collective: data, the host, remote calls",
}


def scaling_words(diff: Diff) -> str:
    """Nothing where no rank was added, or a step with more of them takes no longer."""
    ranks = _ranks_added(diff)
    step = diff.step
    parts = [row for row in diff.changes if row.kind == "part"]
    if ranks is None or step.change_ns < LOST_MIN_RATIO * step.before_ns or not step.before_ns or not parts:
        return ""
    before, after = ranks
    worst = max(parts, key=lambda row: row.change_ns)
    return (
        f"With {after} ranks instead of {before} a step takes {step.after_ns / step.before_ns:.2f} times as long."
        f" If each rank adds a batch, that is an efficiency of {percent(step.before_ns / step.after_ns)}."
        f" {_each(step, after - before)}, and {_part(worst, step)} of that is {PARTS[worst.name]}: {LOOK[worst.name]}."
    )


def _ranks_added(diff: Diff) -> tuple[int, int] | None:
    """How many took part before and after, where they are more."""
    told = next((row for row in diff.settings if row.name == "world size"), None)
    if told is None or not (told.before.isdecimal() and told.after.isdecimal()):
        return None
    before, after = int(told.before), int(told.after)
    return (before, after) if 0 < before < after else None


def _each(step: Change, more: int) -> str:
    """As if each cost the same."""
    fixed = f"{duration(step.before_ns)} of the step were there before"
    return f"{fixed}; each further rank costs {duration(step.change_ns / more)} more"


def _part(part: Change, step: Change) -> str:
    return percent(min(part.change_ns / step.change_ns, 1.0))
