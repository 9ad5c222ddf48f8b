"""What more ranks cost a step, where the sides of a comparison differ in their number."""

from __future__ import annotations

from typing import Final

from ddptrace.analysis.diff.tables import Change, Diff
from ddptrace.render.words import PARTS, duration, percent

LOST_MIN_RATIO: Final = 0.05
"""By so much longer must the step be before that is said."""

LOOK: Final = {
    "compute": "ranks of one machine take processors and memory bandwidth from each other: give each its own, and start"
    " fewer threads",
    "exposed_comm": "`ddptrace analyze` of the larger run names the bucket, and says whether it waits for a rank or for"
    " the wire",
    "exposed_memory": "copies are not hidden: pin the host's memory, and copy without blocking",
    "idle": "ranks wait for what is no collective: data, the host, remote calls",
}


def scaling_words(diff: Diff) -> str:
    """Nothing where no rank was added, or a step with more of them takes no longer."""
    ranks = _ranks(diff)
    step = diff.step
    parts = [row for row in diff.changes if row.kind == "part"]
    if ranks is None or step.change_ns < LOST_MIN_RATIO * step.before_ns or not step.before_ns or not parts:
        return ""
    before, after = ranks
    worst = max(parts, key=lambda row: row.change_ns)
    return (
        f"With {after} ranks instead of {before} a step takes {step.after_ns / step.before_ns:.2f} times as long: where"
        f" each rank brings a batch of its own, an efficiency of {percent(step.before_ns / step.after_ns)}."
        f" {_each(step, after - before)}, and {_share(worst, step)} of that is {PARTS[worst.name]}: {LOOK[worst.name]}."
    )


def _ranks(diff: Diff) -> tuple[int, int] | None:
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


def _share(part: Change, step: Change) -> str:
    return percent(min(part.change_ns / step.change_ns, 1.0))
