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
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ddptrace.analysis.tables import BucketRow, CollectiveRow, PhaseRow, Result, StepRow
from ddptrace.telemetry.attributes import (
    BUCKET_ATTRIBUTES,
    COLLECTIVE_ATTRIBUTES,
    PHASE,
    PHASE_ATTRIBUTES,
    RANK,
    RUN_ID,
    STEP,
    STEP_ATTRIBUTES,
    Value,
    read_attributes,
)

Key = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One span to be. `key` names it among the spans of its rank and step."""

    name: str
    key: Key
    begin_at_ns: int
    end_at_ns: int
    attributes: dict[str, Value]
    children: list[Node] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Tree:
    """The spans of one step of one rank: one root. With `step` None, all that the rank did outside of its steps."""

    run_id: str
    zero_unix_ns: int
    rank: int
    step: int | None
    roots: tuple[Node, ...]


def trees(result: Result, steps: Container[int] | None = None, *, strays: bool = True) -> Iterator[Tree]:
    """By rank, then step. `steps` chooses ordinals, None takes all; `strays` adds what is outside of all steps."""
    for rank in result.ranks:
        rows = _RankRows(result, rank.rank)
        yield from (rows.tree(step) for step in rows.steps if steps is None or step.step in steps)
        if strays and (roots := rows.strays()):
            yield Tree(result.run_id, result.zero_unix_ns, rank.rank, None, tuple(roots))


class _RankRows:
    """One rank's rows by step. A collective belongs to the step that launched it, as a bucket does."""

    def __init__(self, result: Result, rank: int) -> None:
        self._result = result
        self._rank = rank
        self.steps = [row for row in result.steps if row.rank == rank]
        self._begins = [row.begin_at_ns for row in self.steps]
        self._phases: dict[int, list[PhaseRow]] = defaultdict(list)
        self._buckets: dict[int | None, list[BucketRow]] = defaultdict(list)
        self._collectives: dict[int | None, list[CollectiveRow]] = defaultdict(list)
        for phase in result.phases:
            if phase.rank == rank:
                self._phases[phase.step].append(phase)
        for bucket in result.buckets:
            if bucket.rank == rank:
                self._buckets[bucket.step].append(bucket)
        for collective in _whole(row for row in result.collectives if row.rank == rank):
            self._collectives[self._step_at(collective.launch_at_ns)].append(collective)

    def tree(self, row: StepRow) -> Tree:
        step = row.step
        attributes = self._common(step) | read_attributes(STEP_ATTRIBUTES, row)
        root = Node("step", ("step",), row.begin_at_ns, row.end_at_ns, attributes)
        phases = [self._phase_node(step, k, phase) for k, phase in enumerate(self._phases[step])]
        root.children.extend(phases)
        self._hang(step, root.children, phases)
        return Tree(self._result.run_id, self._result.zero_unix_ns, self._rank, step, (root,))

    def strays(self) -> list[Node]:
        roots: list[Node] = []
        self._hang(None, roots, [])
        return roots

    def _step_at(self, at_ns: int) -> int | None:
        position = bisect_right(self._begins, at_ns) - 1
        return self.steps[position].step if position >= 0 and at_ns < self.steps[position].end_at_ns else None

    def _common(self, step: int | None) -> dict[str, Value]:
        always: dict[str, Value] = {RUN_ID: self._result.run_id, RANK: self._rank}
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
            node = _collective_node(collective, self._common(step))
            phase = _phase_at(collective.launch_at_ns, begins, phases)
            _hang_one(node, phase, carriers.get(collective.seq), loose)


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


def _collective_node(row: CollectiveRow, common: dict[str, Value]) -> Node:
    begin = row.launch_at_ns if row.exec_start_at_ns is None else row.exec_start_at_ns
    key = ("collective", row.group, row.ordinal)
    return Node(row.op, key, begin, max(begin, _end(row)), common | read_attributes(COLLECTIVE_ATTRIBUTES, row))


def _end(row: BucketRow | CollectiveRow) -> int:
    """Execution's end; where it is not known when the host learned of it, else the launch."""
    if row.exec_end_at_ns is not None:
        return row.exec_end_at_ns
    return row.launch_at_ns if row.done_at_ns is None else row.done_at_ns


def _whole(rows: Iterator[CollectiveRow]) -> Iterator[CollectiveRow]:
    """One row per call: one that ran past the end of its step is told in parts, a row for each step it ran in."""
    parts: dict[int, list[CollectiveRow]] = defaultdict(list)
    for row in rows:
        parts[row.seq].append(row)
    for first, *others in parts.values():
        yield _joined(first, others) if others else first


def _joined(first: CollectiveRow, others: list[CollectiveRow]) -> CollectiveRow:
    every = (first, *others)
    return replace(
        first,
        exec_end_at_ns=others[-1].exec_end_at_ns,
        comm_ns=sum(row.comm_ns or 0 for row in every),
        hidden_ns=sum(row.hidden_ns or 0 for row in every),
        exposed_ns=sum(row.exposed_ns or 0 for row in every),
        exposed_charged_ns=sum(row.exposed_charged_ns or 0 for row in every),
    )
