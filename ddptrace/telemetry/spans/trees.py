"""Builds trees of spans from the tables of a run, one for each step and rank: their names, times and order.

`attributes.py` declares what each span carries besides. Nothing here knows of OpenTelemetry.

step ─┬─ data
      ├─ forward
      ├─ backward ─┬─ bucket ── all_reduce        in the phase that launched them, even if they end in another
      │            └─ bucket ── all_reduce
      └─ optimizer ── all_reduce                  a collective that carried no bucket
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow
from ddptrace.analysis.tables.steps import PhaseRow, StepRow
from ddptrace.telemetry.common_attributes import KIND, PHASE, RANK, RUN_ID, STEP, Value, carried
from ddptrace.telemetry.rows import Parent, RankRows, StepsAt, whole_calls
from ddptrace.telemetry.spans.attributes import (
    BUCKET_ATTRIBUTES,
    COLLECTIVE_ATTRIBUTES,
    MEETING_ATTRIBUTES,
    PHASE_ATTRIBUTES,
    STEP_ATTRIBUTES,
    read_attributes,
)
from ddptrace.units import size


@dataclass(frozen=True, slots=True)
class Node:
    """One future span. `key` identifies it among the spans of its rank and step. `error` is the message of its
    failure."""

    name: str
    key: Key
    begin_at_ns: int
    end_at_ns: int
    attributes: dict[str, Value]
    children: list[Node] = field(default_factory=list)
    links: tuple[LinkTo, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Tree:
    """The spans of one step of one rank, with one root. If `step` is None: those outside of all steps, with any number
    of roots. `parents` as in `RankRows`."""

    run_id: str
    zero_unix_ns: int
    rank: int
    step: int | None
    roots: tuple[Node, ...]
    parents: Mapping[int, Parent | None] = field(default_factory=dict)


LINKS_MAX: Final = 8
"""Most links of one span. The ranks of a larger group are still connected, each linked to the next ones of the ring.
Without a bound a step of n ranks would cost n * n links, and the SDK silently drops those beyond 128."""
Key = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class LinkTo:
    """The span with this key on another rank, in the same step."""

    rank: int
    key: Key


def trees(rows: RankRows, steps: Container[int] | None = None, *, strays: bool = True) -> Iterator[Tree]:
    """Yield the tree of each step. `steps` chooses ordinals, None all of them; `strays` adds the tree outside of all
    steps."""
    rank = _Rank(rows)
    yield from (rank.tree(row) for row in rows.steps if steps is None or row.step in steps)
    if strays and (roots := rank.strays()):
        yield Tree(rows.run_id, rows.zero_unix_ns, rows.rank, None, tuple(roots), rows.parents)


class _Rank:
    """One rank's rows by step. A collective belongs to the step that launched it, as a bucket does."""

    def __init__(self, rows: RankRows) -> None:
        self._rows = rows
        self._rings = rings(rows.rank, rows.groups)
        step_at = StepsAt(rows.steps)
        self._phases: dict[int, list[PhaseRow]] = defaultdict(list)
        self._buckets: dict[int | None, list[BucketRow]] = defaultdict(list)
        self._collectives: dict[int | None, list[CollectiveRow]] = defaultdict(list)
        for phase in rows.phases:
            self._phases[phase.step].append(phase)
        for bucket in rows.buckets:
            self._buckets[bucket.step].append(bucket)
        for collective in whole_calls(rows.collectives):
            self._collectives[step_at(collective.launch_at_ns)].append(collective)

    def tree(self, row: StepRow) -> Tree:
        step = row.step
        attributes = self._common("step", step) | read_attributes(STEP_ATTRIBUTES, row)
        root = Node(self._named("step"), ("step",), row.begin_at_ns, row.end_at_ns, attributes)
        phases = [self._phase_node(step, k, phase) for k, phase in enumerate(self._phases[step])]
        root.children.extend(phases)
        self._hang(step, root.children, phases)
        rows = self._rows
        return Tree(rows.run_id, rows.zero_unix_ns, rows.rank, step, (root,), rows.parents)

    def strays(self) -> list[Node]:
        roots: list[Node] = []
        self._hang(None, roots, [])
        return roots

    def _named(self, what: str) -> str:
        return f"{what} · rank {self._rows.rank}"

    def _common(self, kind: str, step: int | None) -> dict[str, Value]:
        always: dict[str, Value] = {KIND: kind, RUN_ID: carried(self._rows.run_id), RANK: self._rows.rank}
        return always if step is None else always | {STEP: step}

    def _phase_node(self, step: int, position: int, row: PhaseRow) -> Node:
        attributes = self._common("phase", step) | read_attributes(PHASE_ATTRIBUTES, row)
        return Node(self._named(row.phase), ("phase", position), row.begin_at_ns, row.end_at_ns, attributes)

    def _hang(self, step: int | None, loose: list[Node], phases: Sequence[Node]) -> None:
        """Add the step's buckets and collectives to the phases that launched them, or to `loose` outside of all
        phases."""
        begins = [phase.begin_at_ns for phase in phases]
        carriers: dict[int, Node] = {}
        for bucket in self._buckets[step]:
            node = _bucket_node(bucket, self._named(f"bucket {bucket.index}"), self._common("bucket", step))
            carriers |= dict.fromkeys(bucket.seqs, node)
            _hang_one(node, _phase_at(bucket.launch_at_ns, begins, phases), None, loose)
        for collective in self._collectives[step]:
            node = self._collective_node(collective, self._common("collective", step))
            phase = _phase_at(collective.launch_at_ns, begins, phases)
            _hang_one(node, phase, carriers.get(collective.seq), loose)

    def _collective_node(self, row: CollectiveRow, common: dict[str, Value]) -> Node:
        begin = row.launch_at_ns if row.exec_start_at_ns is None else row.exec_start_at_ns
        attributes = common | read_attributes(COLLECTIVE_ATTRIBUTES, row)
        meeting = self._rows.meetings.get(row.seq)
        if meeting is not None:
            attributes |= read_attributes(MEETING_ATTRIBUTES, meeting)
        return Node(
            self._named(f"{row.op} {size(row.nbytes)}"),
            collective_key(row),
            begin,
            max(begin, _end(row)),
            attributes,
            links=links_of(row, self._rings),
            error=row.error,
        )


def _phase_at(at_ns: int, begins: list[int], phases: Sequence[Node]) -> Node | None:
    position = bisect_right(begins, at_ns) - 1
    return phases[position] if position >= 0 and at_ns < phases[position].end_at_ns else None


def _hang_one(node: Node, phase: Node | None, carrier: Node | None, loose: list[Node]) -> None:
    if phase is not None:
        node.attributes[PHASE] = phase.attributes[PHASE]
    parent = carrier or phase
    (loose if parent is None else parent.children).append(node)


def _bucket_node(row: BucketRow, name: str, common: dict[str, Value]) -> Node:
    begin = row.launch_at_ns if row.first_ready_at_ns is None else min(row.first_ready_at_ns, row.launch_at_ns)
    key: Key = ("bucket", row.backward, row.reducer, row.layout, row.index)
    if row.step is None:  # outside of steps the ordinal of the backward is not unique
        key = (*key, row.launch_at_ns)
    end = _end(row)
    return Node(name, key, begin, max(begin, end), common | read_attributes(BUCKET_ATTRIBUTES, row))


def _end(row: BucketRow | CollectiveRow) -> int:
    """Return the end of execution. If it is not known: when the host learned of it, else the launch."""
    if row.exec_end_at_ns is not None:
        return row.exec_end_at_ns
    return row.launch_at_ns if row.done_at_ns is None else row.done_at_ns


def rings(rank: int, groups: Mapping[str, tuple[int, ...]]) -> Mapping[str, tuple[int, ...]]:
    """Return, for each group of the rank, the ranks after it, cyclically."""
    return {name: _after(rank, ranks)[:LINKS_MAX] for name, ranks in groups.items() if rank in ranks}


def _after(rank: int, ranks: tuple[int, ...]) -> tuple[int, ...]:
    place = ranks.index(rank)
    return ranks[place + 1 :] + ranks[:place]


def collective_key(row: CollectiveRow) -> Key:
    """Return a key with its turn, which is the same on all ranks of its group. A send or receive has no turn and no
    links."""
    if row.turn is None:
        return "collective", row.group, row.ordinal
    return "collective", row.group, "turn", row.turn


def links_of(row: CollectiveRow, ring: Mapping[str, tuple[int, ...]]) -> tuple[LinkTo, ...]:
    """Return links to the same collective in the same step. After a desync (`Result.desyncs`) they lead nowhere."""
    if row.turn is None:
        return ()
    key = collective_key(row)
    return tuple(LinkTo(rank, key) for rank in ring.get(row.group, ()))
