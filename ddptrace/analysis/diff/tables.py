"""What a comparison of runs answers with."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from statistics import median_low
from typing import Any, Final, Literal

from ddptrace.analysis.tables.table import ROWS_MAX, Table, findings_html, grid, paragraph, table_names
from ddptrace.errors import printable
from ddptrace.findings import Finding

Kind = Literal["step", "part", "total", "phase", "bucket", "unit", "collective", "rank"]
Basis = Literal["pairs", "runs", "blocks", "none"]
"""What varies, and so tells what chance does: pairs of runs that ran next to each other, runs, or where there are too
few of these, blocks of steps within them; with "none" nothing does."""


OF_BUCKETS: Final = "buckets"
"""Origin of collectives that carry buckets of gradients."""
EXPOSED_MIN_RATIO: Final = 0.005
"""Of the step before: where exposed communication changed by less, nothing is named for it."""


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
class CollectiveId:
    """Collectives of one kind, which is the same in several runs."""

    op: str  # operation, without the underscore of one in place
    origin: str | None  # who asked for them, or `OF_BUCKETS`; None where nothing tells


@dataclass(frozen=True, slots=True)
class UnitId:
    """What one unit other than a bucket does in one role and phase, which is the same in several runs."""

    name: str
    role: str
    phase: str | None


@dataclass(frozen=True, slots=True)
class Quantity:
    """What is compared: a time per typical step, mean over ranks, or of one rank.

    kind    name
    step    "step": the window that the parts divide
    part    "compute", "exposed_comm", "exposed_memory", "idle": add up to the step
    total   "comm": the communication, hidden or not; "wall": the host's time, where that is not the window
    phase   "data", "forward", "backward", "optimizer", "other": add up to the wall time
    bucket  "exposed": what is charged to it of the exposed communication; "comm": its own, hidden or not
    unit    "exposed": the same of what a unit does in one role and phase
    collective  "exposed": the same of all collectives of one kind; the kinds add up to exposed_comm
    rank    "compute", "exposed_comm", "idle" of one rank
    """

    kind: Kind
    name: str
    bucket: BucketId | None = None
    rank: int | None = None
    collective: CollectiveId | None = None
    unit: UnitId | None = None

    @property
    def key(self) -> tuple[object, ...]:
        bucket = None if self.bucket is None else self.bucket.key
        return (self.kind, self.name, bucket, self.rank, self.collective, self.unit)


@dataclass(frozen=True, slots=True)
class Change:
    """One quantity on both sides: means over the runs of each, of a typical step. None: nothing tells how runs vary."""

    kind: Kind  # "step", "part", "total", "phase", "bucket", "unit", "collective" or "rank"
    name: str  # of the quantity, as in "exposed_comm"
    reducer: int | None  # of a bucket
    layout: int | None  # of a bucket, in the run that names it
    index: int | None  # of a bucket, in the run that names it
    nbytes: int | None  # of a bucket, in the run that names it
    parameters: tuple[str, ...]  # of a bucket
    rank: int | None  # of a rank's time
    before_ns: int  # mean of the side before
    after_ns: int  # mean of the side after
    change_ns: int  # after - before
    change_ratio: float | None  # change / before; None where that is 0
    step_ratio: float | None  # change / step before
    low_ns: int | None  # low end of the 95 % interval of the change
    high_ns: int | None  # high end
    p: float | None  # how often chance alone makes this quantity change at least as much
    adjusted_p: float | None  # how often chance alone makes any quantity here change as much: of 20 comparisons of
    #   equal sides, 19 call none sure
    is_sure: bool  # adjusted_p is below 5 %, and runs, not blocks of steps, tell so
    op: str | None = None  # of a kind of collective
    origin: str | None = None  # who asked for these, "buckets" where they carry DDP's buckets; None where nothing tells
    unit: str | None = None  # name of a unit
    role: str | None = None  # what the unit does there, as in `units`
    phase: str | None = None  # phase that it does so in; None for neither forward nor backward


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One run of a side."""

    side: Literal["before", "after"]  # "before" or "after"
    path: str  # of the run
    run_id: str  # of the run
    order: int  # its place among all runs, by when they began
    steps: int  # typical (rank, step) pairs
    step_ns: int  # its typical step
    population: str  # which steps are typical, in words


@dataclass(frozen=True, slots=True)
class Setting:
    """Something in which the runs of the sides were not set up alike: each distinct value once, with how many runs have
    it where it is not all of them."""

    name: str  # of the setting
    before: str  # values of the side before
    after: str  # values of the side after


@dataclass(frozen=True, slots=True, repr=False)
class Diff:
    """Hold what changed from one side to the other."""

    before: str  # name of the side before
    after: str  # name of the side after
    basis: Basis  # what varies by chance: "pairs" of runs in turns, "runs", "blocks" of steps, or "none"
    units: tuple[int, int]  # how many pairs, runs or blocks (before, after)
    run_ratio: float | None  # deviation of a run's step from its side's mean / step; None with fewer than two runs on
    #   both sides
    runs: Table[ComparedRun]  # all runs, in the order given
    changes: Table[Change]  # one row per quantity
    settings: Table[Setting]  # what the sides do not have in common
    findings: Table[Finding]  # what to know before you rely on it

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
        """The change of the typical step; there is always one."""
        return next(row for row in self.changes if row.kind == "step")

    @property
    def is_changed(self) -> bool:
        """Whether anything surely differs."""
        return any(row.is_sure for row in self.changes)

    @property
    def bucket(self) -> Change | None:
        """The bucket that surely changed most, in the direction of the step where that surely changed.

        It is judged by its own communication, since what it delays is charged to others; else by its exposed time.
        """
        return self._most("bucket", "comm") or self._most("bucket", "exposed")

    @property
    def rank(self) -> Change | None:
        """The rank whose compute surely changed most, and at least twice as much as that of the median rank."""
        most = self._most("rank", "compute")
        changes = [row.change_ns for row in self.changes if (row.kind, row.name) == ("rank", "compute")]
        is_apart = most is not None and abs(most.change_ns) >= 2 * abs(median_low(sorted(changes, key=abs)))
        return most if is_apart else None

    @property
    def overlap(self) -> tuple[float, float] | None:
        """The hidden share of the communication before and after; None where a side has none, or it is not known."""
        rows = {(row.kind, row.name): row for row in self.changes}
        comm, exposed = rows.get(("total", "comm")), rows.get(("part", "exposed_comm"))
        if comm is None or exposed is None or not comm.before_ns or not comm.after_ns:
            return None
        return 1 - exposed.before_ns / comm.before_ns, 1 - exposed.after_ns / comm.after_ns

    @property
    def overlap_changed_by(self) -> Change | None:
        """The kind of collective whose exposed time changed most in the direction of the whole, or the bucket that is
        half of its change; None where exposed time hardly changed."""
        whole = next((row for row in self.changes if (row.kind, row.name) == ("part", "exposed_comm")), None)
        if whole is None or abs(whole.change_ns) < EXPOSED_MIN_RATIO * self.step.before_ns:
            return None
        kind = self._largest("collective", whole.change_ns)
        bucket = self._largest("bucket", whole.change_ns) if kind is not None and kind.origin == OF_BUCKETS else None
        is_most = bucket is not None and kind is not None and 2 * abs(bucket.change_ns) >= abs(kind.change_ns)
        return bucket if is_most else kind

    def _largest(self, kind: Kind, way: int) -> Change | None:
        """Whose exposed time changed most in the direction of `way`."""
        rows = (row for row in self.changes if (row.kind, row.name) == (kind, "exposed") and row.change_ns * way > 0)
        return max(rows, key=lambda row: abs(row.change_ns), default=None)

    def _most(self, kind: Kind, name: str) -> Change | None:
        way = self.step.change_ns if self.step.is_sure else 0
        rows = (row for row in self.changes if (row.kind, row.name) == (kind, name) and row.is_sure)
        return max((row for row in rows if row.change_ns * way >= 0), key=lambda row: abs(row.change_ns), default=None)

    def to_json_dict(self) -> dict[str, Any]:
        """Return the documented keys of `ddptrace diff --json`."""
        plain = {field.name: getattr(self, field.name) for field in fields(self)}
        shares = self.overlap and dict(zip(("before", "after"), self.overlap, strict=True))
        named = {"bucket": self.bucket, "rank": self.rank}
        return {name: value.to_dicts() if isinstance(value, Table) else value for name, value in plain.items()} | {
            "is_changed": self.is_changed,
            **{name: row and asdict(row) for name, row in named.items()},
            "overlap": shares,
            "overlap_changed_by": self.overlap_changed_by and asdict(self.overlap_changed_by),
        }
