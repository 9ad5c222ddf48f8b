"""What a comparison of runs answers with."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from statistics import median_low
from typing import Any, Literal

from ddptrace.analysis.tables.html import ROWS_MAX, findings_html, grid, paragraph, table_names
from ddptrace.analysis.tables.table import Table
from ddptrace.errors import printable
from ddptrace.load.tables import Finding

Kind = Literal["step", "part", "total", "phase", "bucket", "rank"]
Basis = Literal["pairs", "runs", "blocks", "none"]
"""What varies, and so tells what chance does: pairs of runs that ran next to each other, runs, or where there are too
few of these, blocks of steps within them; with "none" nothing does."""


@dataclass(frozen=True, slots=True)
class BucketId:
    """A bucket that is the same in several runs: of the same parameters, or where these are not known, of the same
    number and size. `layout`, `index` and `nbytes` are those of the run that names it."""

    reducer: int
    parameters: tuple[str, ...]
    layout: int
    index: int
    nbytes: int | None

    @property
    def key(self) -> tuple[object, ...]:
        return (self.reducer, self.parameters or (self.layout, self.index, self.nbytes))


@dataclass(frozen=True, slots=True)
class Quantity:
    """What is compared: a time per typical step, mean over ranks, or of one rank.

    kind    name
    step    "step": the window that the parts divide
    part    "compute", "exposed_comm", "exposed_memory", "idle": add up to the step
    total   "comm": the communication, hidden or not; "wall": the host's time, where that is not the window
    phase   "data", "forward", "backward", "optimizer", "other": add up to the wall time
    bucket  "exposed": what is charged to it of the exposed communication; "comm": its own, hidden or not
    rank    "compute", "exposed_comm", "idle" of one rank
    """

    kind: Kind
    name: str
    bucket: BucketId | None = None
    rank: int | None = None

    @property
    def key(self) -> tuple[object, ...]:
        return (self.kind, self.name, None if self.bucket is None else self.bucket.key, self.rank)


@dataclass(frozen=True, slots=True)
class Change:
    """One quantity on both sides: means over the runs of each. `low_ns` to `high_ns` hold the change with 95 %.

    `p`: how often chance alone makes at least so much of this quantity; `adjusted_p`: of any quantity here, so that of
    20 comparisons of equal sides 19 call none sure. Times are of a typical step; None: nothing tells how runs vary."""

    kind: Kind
    name: str
    reducer: int | None
    layout: int | None
    index: int | None
    nbytes: int | None
    parameters: tuple[str, ...]
    rank: int | None
    before_ns: int
    after_ns: int
    change_ns: int
    change_ratio: float | None  # of its own time before; None where that is 0
    step_ratio: float | None  # of the step before
    low_ns: int | None
    high_ns: int | None
    p: float | None
    adjusted_p: float | None
    is_sure: bool  # adjusted_p is below 5 %, and runs, not blocks of steps, tell so


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One run of a side. `order`: its place among all runs by the time at which they began."""

    side: Literal["before", "after"]
    path: str
    run_id: str
    order: int
    steps: int  # typical (rank, step) pairs
    step_ns: int
    population: str


@dataclass(frozen=True, slots=True)
class Setting:
    """Something in which the sides' runs were not set up alike; each distinct value once, with how many runs have it
    where it is not all of them."""

    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, repr=False)
class Diff:
    """What changed from one side to the other. `units`: how many pairs, runs or blocks (before, after) tell of chance;
    `run_ratio`: the deviation of a run's step from its side's mean, as a share of the step; None with fewer than two
    runs on both sides."""

    before: str
    after: str
    basis: Basis
    units: tuple[int, int]
    run_ratio: float | None
    runs: Table[ComparedRun]
    changes: Table[Change]
    settings: Table[Setting]
    findings: Table[Finding]

    def __repr__(self) -> str:
        sides = " to ".join(map(printable, (self.before, self.after)))
        return f"Diff of {sides}: {sum(row.is_sure for row in self.changes)} of {len(self.changes)} changes are sure"

    def _repr_html_(self) -> str:
        """Show in a notebook what surely changed, the findings, and which tables there are."""
        names = ("kind", "name", "rank", "index", "before_ns", "after_ns", "change_ns", "low_ns", "high_ns", "is_sure")
        shown = [row for row in self.changes if row.is_sure or row.kind in ("step", "part")][:ROWS_MAX]
        sections = [
            paragraph(repr(self)),
            grid(names, ([getattr(row, name) for name in names] for row in shown)),
            findings_html(self.findings),
            table_names({"runs": self.runs, "changes": self.changes, "settings": self.settings}),
        ]
        return "".join(sections)

    @property
    def step(self) -> Change:
        """Of the typical step, which there is always."""
        return next(row for row in self.changes if row.kind == "step")

    @property
    def is_changed(self) -> bool:
        """Whether anything surely differs."""
        return any(row.is_sure for row in self.changes)

    @property
    def bucket(self) -> Change | None:
        """That surely changed most: by its own communication, since what it delays is charged to others; else by what
        is exposed of it. In the direction of the step, where that surely changed."""
        return self._most("bucket", "comm") or self._most("bucket", "exposed")

    @property
    def rank(self) -> Change | None:
        """Whose compute surely changed most, and twice as much as that of the median rank."""
        most = self._most("rank", "compute")
        changes = [row.change_ns for row in self.changes if (row.kind, row.name) == ("rank", "compute")]
        is_apart = most is not None and abs(most.change_ns) >= 2 * abs(median_low(sorted(changes, key=abs)))
        return most if is_apart else None

    def _most(self, kind: Kind, name: str) -> Change | None:
        way = self.step.change_ns if self.step.is_sure else 0
        rows = (row for row in self.changes if (row.kind, row.name) == (kind, name) and row.is_sure)
        return max((row for row in rows if row.change_ns * way >= 0), key=lambda row: abs(row.change_ns), default=None)

    def to_json_dict(self) -> dict[str, Any]:
        """The documented keys of `ddptrace diff --json`."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        named = {"bucket": self.bucket, "rank": self.rank}
        return {name: value.to_dicts() if isinstance(value, Table) else value for name, value in plain.items()} | {
            "is_changed": self.is_changed,
            **{name: row and asdict(row) for name, row in named.items()},
        }
