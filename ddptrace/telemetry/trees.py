"""From the tables of a run to trees of spans, one for each step and rank. Nothing here knows of OpenTelemetry.

step ─┬─ data
      ├─ forward
      ├─ backward ─┬─ bucket ── all_reduce        in the phase that launched them, whatever phase they end in
      │            └─ bucket ── all_reduce
      └─ optimizer ── all_reduce                  a collective that carried no bucket
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ddptrace.analysis.tables.collectives import BucketRow, CollectiveRow
from ddptrace.analysis.tables.steps import PhaseRow, StepRow
from ddptrace.telemetry.attributes import (
    BUCKET_ATTRIBUTES,
    COLLECTIVE_ATTRIBUTES,
    MEETING_ATTRIBUTES,
    PHASE,
    PHASE_ATTRIBUTES,
    RANK,
    RUN_ID,
    STEP,
    STEP_ATTRIBUTES,
    Value,
    carried,
    read_attributes,
)
from ddptrace.telemetry.calls import StepsAt, whole_calls
from ddptrace.telemetry.links import Key, LinkTo, collective_key, links_of, rings
from ddptrace.telemetry.parents import Parent
from ddptrace.telemetry.rows import RankRows


@dataclass(frozen=True, slots=True)
class Node:
    """One span to be. `key` names it among the spans of its rank and step. `error`: what it failed with."""

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
    """The spans of one step of one rank: one root. With `step` None, all that the rank did outside of its steps.
    `parents` as in `RankRows`."""

    run_id: str
    zero_unix_ns: int
    rank: int
    step: int | None
    roots: tuple[Node, ...]
    parents: Mapping[int, Parent | None] = field(default_factory=dict)


def trees(rows: RankRows, steps: Container[int] | None = None, *, strays: bool = True) -> Iterator[Tree]:
    """By step. `steps` chooses ordinals, None takes all; `strays` adds what is outside of all steps."""
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
        attributes = self._common(step) | read_attributes(STEP_ATTRIBUTES, row)
        root = Node("step", ("step",), row.begin_at_ns, row.end_at_ns, attributes)
        phases = [self._phase_node(step, k, phase) for k, phase in enumerate(self._phases[step])]
        root.children.extend(phases)
        self._hang(step, root.children, phases)
        rows = self._rows
        return Tree(rows.run_id, rows.zero_unix_ns, rows.rank, step, (root,), rows.parents)

    def strays(self) -> list[Node]:
        roots: list[Node] = []
        self._hang(None, roots, [])
        return roots

    def _common(self, step: int | None) -> dict[str, Value]:
        always: dict[str, Value] = {RUN_ID: carried(self._rows.run_id), RANK: self._rows.rank}
        return always if step is None else always | {STEP: step}

    def _phase_node(self, step: int, position: int, row: PhaseRow) -> Node:
        attributes = self._common(step) | read_attributes(PHASE_ATTRIBUTES, row)
        return Node(row.phase, ("phase", position), row.begin_at_ns, row.end_at_ns, attributes)

    def _hang(self, step: int | None, loose: list[Node], phases: Sequence[Node]) -> None:
        """Put the step's buckets and collectives where they were launched, in `loose` where no phase was."""
        begins = [phase.begin_at_ns for phase in phases]
        carriers: dict[int, Node] = {}
        for bucket in self._buckets[step]:
            node = _bucket_node(bucket, self._common(step))
            carriers |= dict.fromkeys(bucket.seqs, node)
            _hang_one(node, _phase_at(bucket.launch_at_ns, begins, phases), None, loose)
        for collective in self._collectives[step]:
            node = self._collective_node(collective, self._common(step))
            phase = _phase_at(collective.launch_at_ns, begins, phases)
            _hang_one(node, phase, carriers.get(collective.seq), loose)

    def _collective_node(self, row: CollectiveRow, common: dict[str, Value]) -> Node:
        begin = row.launch_at_ns if row.exec_start_at_ns is None else row.exec_start_at_ns
        attributes = common | read_attributes(COLLECTIVE_ATTRIBUTES, row)
        meeting = self._rows.meetings.get(row.seq)
        if meeting is not None:
            attributes |= read_attributes(MEETING_ATTRIBUTES, meeting)
        return Node(
            row.op, collective_key(row), begin, max(begin, _end(row)), attributes,
            links=links_of(row, self._rings), error=row.error,
        )  # fmt: skip


def _phase_at(at_ns: int, begins: list[int], phases: Sequence[Node]) -> Node | None:
    position = bisect_right(begins, at_ns) - 1
    return phases[position] if position >= 0 and at_ns < phases[position].end_at_ns else None


def _hang_one(node: Node, phase: Node | None, carrier: Node | None, loose: list[Node]) -> None:
    if phase is not None:
        node.attributes[PHASE] = phase.name
    parent = carrier or phase
    (loose if parent is None else parent.children).append(node)


def _bucket_node(row: BucketRow, common: dict[str, Value]) -> Node:
    begin = row.launch_at_ns if row.first_ready_at_ns is None else min(row.first_ready_at_ns, row.launch_at_ns)
    key: Key = ("bucket", row.backward, row.reducer, row.layout, row.index)
    if row.step is None:  # there the ordinal of the backward tells them apart no longer
        key = (*key, row.launch_at_ns)
    end = _end(row)
    return Node("bucket", key, begin, max(begin, end), common | read_attributes(BUCKET_ATTRIBUTES, row))


def _end(row: BucketRow | CollectiveRow) -> int:
    """Execution's end; where it is not known when the host learned of it, else the launch."""
    if row.exec_end_at_ns is not None:
        return row.exec_end_at_ns
    return row.launch_at_ns if row.done_at_ns is None else row.done_at_ns
