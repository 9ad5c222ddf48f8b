"""Where the time of each rank went while its pipeline ran once: a turn.

window    ├──────────────────────────────────────────────────────────┤   first computation to last, of all ranks
rank 0    [F0)[F1)┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄[B0 )┄┄┄┄┄┄┄┄┄┄┄┄┄┄[B1 )
rank 1    ┄┄┄┄[F0 slow   )[F1 slow   )[B0 )[B1 )┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄
          idle: as much as the schedule implies if all stages took as long as a typical one is bubble; what is beyond
          that, a slow stage has cost
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddptrace.analysis.intervals import EMPTY, Ints, Measure, pairs, subtract
from ddptrace.analysis.pipeline.rows import PipelineFacts, matched_messages, pipeline_facts
from ddptrace.analysis.pipeline.schedule import Computation, computation_of, input_of, length, of_typical_stage, spent
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.tables.parallelism import BubbleRow, MessageRow, PipelineRow, Work
from ddptrace.load.tables import Intervals
from ddptrace.ops import SEND, family_of
from ddptrace.schema import Phase


@dataclass(frozen=True, slots=True)
class Pipelines:
    """All pipelines of a run, with their ranks compared."""

    messages: tuple[MessageRow, ...] = ()
    computations: tuple[PipelineRow, ...] = ()
    bubbles: tuple[BubbleRow, ...] = ()
    facts: tuple[PipelineFacts, ...] = ()  # by number of the pipeline in the run


@dataclass(frozen=True, slots=True)
class Blocked:
    """One rank's waits for messages, in time order, each cut where both ranks had come to it."""

    peer: Measure
    transfer: Measure

    @classmethod
    def of(cls, messages: Iterable[MessageRow]) -> Blocked:
        peer, transfer = [], []
        for row in messages:
            begin, end = row.wait_begin_at_ns, row.wait_end_at_ns
            if begin is not None and end is not None:
                both = end if row.other_arrived_at_ns is None else min(max(row.other_arrived_at_ns, begin), end)
                peer.append((begin, both))
                transfer.append((both, end))
        return cls(*(Measure(_apart(spans)) for spans in (peer, transfer)))

    def within(self, begins: Ints, ends: Ints) -> tuple[list[int], list[int]]:
        """In each stretch, blocked on other ranks, and on transfers."""
        return self.peer.within(begins, ends).tolist(), self.transfer.within(begins, ends).tolist()

    def between(self, begin: int, end: int) -> tuple[int, int]:
        """The same of one stretch."""
        (peer,), (transfer,) = self.within(np.array([begin]), np.array([end]))
        return peer, transfer


def _apart(spans: Iterable[tuple[int, int]]) -> Intervals:
    """Leave out what is empty: the waits of one thread do not overlap."""
    return pairs(sorted(span for span in spans if span[1] > span[0]))


def pipelines(ranks: Sequence[RankTables]) -> Pipelines:
    """Compare the ranks of each pipeline. `ranks`: by rank, on one time line."""
    messages = matched_messages([(rank.facts, rank.messages) for rank in ranks])
    facts, numbers = _numbered(ranks)
    rows = [
        replace(row, pipeline=numbers[row.rank, row.pipeline]) for rank in ranks for row in rank.pipeline
    ]  # in the run
    by_rank: defaultdict[int, list[MessageRow]] = defaultdict(list)
    for message in messages:
        if message.unit is not None:
            by_rank[message.rank].append(message)
    blocked = {rank.facts.rank: Blocked.of(by_rank[rank.facts.rank]) for rank in ranks}
    blocked |= _blocked_on_inputs([rank for rank in ranks if not rank.facts.recorded], rows)
    compute = {rank.facts.rank: rank.activity.compute for rank in ranks}
    found: dict[tuple[int, int], list[PipelineRow]] = defaultdict(list)
    for row in rows:
        found[row.pipeline, row.turn].append(row)
    computations: list[PipelineRow] = []
    bubbles: list[BubbleRow] = []
    for (number, _), mine in sorted(found.items()):
        turn = Turn.of(mine, facts[number])
        computations += mine if turn is None else turn.computations(blocked)
        bubbles += [] if turn is None else turn.bubbles(blocked, compute)
    computations.sort(key=lambda row: (row.rank, row.begin_at_ns))
    bubbles.sort(key=lambda row: (row.rank, row.turn, row.pipeline))
    return Pipelines(messages, tuple(computations), tuple(bubbles), facts)


def _numbered(ranks: Sequence[RankTables]) -> tuple[tuple[PipelineFacts, ...], Mapping[tuple[int, int], int]]:
    """Number the pipelines of a run; by rank and number there. Of several over the same ranks, each rank's first is the
    same as the others' first."""
    found: dict[tuple[tuple[int, ...], int], PipelineFacts] = {}
    keys: dict[tuple[int, int], tuple[tuple[int, ...], int]] = {}
    stage_ranks = owners(ranks)
    for rank in ranks:
        seen: defaultdict[tuple[int, ...], int] = defaultdict(int)
        for number, facts in enumerate(_whole(pipeline_facts(rank.facts.units), stage_ranks)):
            keys[rank.facts.rank, number] = key = facts.ranks, seen[facts.ranks]
            found.setdefault(key, facts)
            seen[facts.ranks] += 1
    order = {key: number for number, key in enumerate(sorted(found))}
    return tuple(found[key] for key in sorted(found)), {mine: order[key] for mine, key in keys.items()}


def owners(ranks: Iterable[RankTables]) -> tuple[int, ...]:
    """Return the rank of each stage of the one pipeline of profiler files; nothing if ranks share a stage, as copies of
    a pipeline do, or if the file of one is missing."""
    told = [(unit.stage, rank.facts.rank) for rank in ranks for unit in rank.facts.units if unit.stage is not None]
    found = {stage.number: rank for stage, rank in told if not stage.ranks}
    is_one = sorted(found) == list(range(len(told)))
    return tuple(found[at] for at in sorted(found)) if is_one else ()


def _whole(facts: Iterable[PipelineFacts], stage_ranks: tuple[int, ...]) -> Iterator[PipelineFacts]:
    """Give the pipelines of profiler files, which do not tell them, the ranks of their stages."""
    return (one if one.ranks else replace(one, ranks=stage_ranks) for one in facts)


def _blocked_on_inputs(ranks: Iterable[RankTables], rows: Iterable[PipelineRow]) -> Iterator[tuple[int, Blocked]]:
    """Yield the waits of ranks whose profiler files tell when an input came, and not from which rank: from the end of
    the computation before, until its stage has computed the input, and then for the transfer."""
    by_turn: defaultdict[tuple[int, int], dict[Computation, PipelineRow]] = defaultdict(dict)
    by_rank: defaultdict[tuple[int, int, int], list[PipelineRow]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.begin_at_ns):
        by_turn[row.pipeline, row.turn][computation_of(row)] = row
        by_rank[row.rank, row.pipeline, row.turn].append(row)
    for rank in ranks:
        peer: list[tuple[int, int]] = []
        transfer: list[tuple[int, int]] = []
        came = _inputs(rank)
        for (number, *turn), mine in by_rank.items():
            computed = by_turn[turn[0], turn[1]]
            begin = min(row.begin_at_ns for row in computed.values())
            for since, row in zip([begin, *(row.end_at_ns for row in mine)], mine, strict=False):
                source = input_of(computation_of(row), computed)
                there = came.get((row.stage, row.work == Work.FORWARD, row.microbatch, row.turn))
                if number == rank.facts.rank and there is not None and source in computed:
                    over = min(max(there, since), row.begin_at_ns)
                    both = min(max(computed[source].end_at_ns, since), over)
                    peer.append((since, both))
                    transfer.append((both, over))
        yield rank.facts.rank, Blocked(Measure(_apart(peer)), Measure(_apart(transfer)))


def _inputs(rank: RankTables) -> dict[tuple[int, bool, int, int], int]:
    """Return when each input of a rank's stages came, by stage, whether it is of forward, microbatch and turn."""
    stages = {unit.unit: unit.stage.number for unit in rank.facts.units if unit.stage is not None}
    counts: Counter[tuple[int, bool, int]] = Counter()
    found = {}
    for row in rank.units:
        if row.unit in stages and family_of(row.role) is not SEND and row.microbatch is not None:
            key = stages[row.unit], row.phase == Phase.FORWARD.name.lower(), row.microbatch
            if row.exec_end_at_ns is not None:
                found[*key, counts[key]] = row.exec_end_at_ns
            counts[key] += 1
    return found


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of which every computation is known."""

    facts: PipelineFacts
    by_rank: Mapping[int, Sequence[PipelineRow]]  # in time order
    begin_at_ns: int
    end_at_ns: int

    @classmethod
    def of(cls, rows: Iterable[PipelineRow], facts: PipelineFacts) -> Turn | None:
        """None if a computation of it is missing."""
        by_rank: defaultdict[int, list[PipelineRow]] = defaultdict(list)
        for row in sorted(rows, key=lambda one: one.begin_at_ns):
            by_rank[row.rank].append(row)
        forward = {(row.stage, row.microbatch) for mine in by_rank.values() for row in mine if row.work == Work.FORWARD}
        if len(forward) != facts.microbatches * len(facts.ranks):
            return None
        every = [row for mine in by_rank.values() for row in mine]
        return cls(facts, by_rank, min(row.begin_at_ns for row in every), max(row.end_at_ns for row in every))

    def computations(self, blocked: Mapping[int, Blocked]) -> Iterator[PipelineRow]:
        """Yield them with what lies before each."""
        for rank, rows in self.by_rank.items():
            before = [self.begin_at_ns, *(row.end_at_ns for row in rows[:-1])]
            begins = [row.begin_at_ns for row in rows]
            waits = blocked[rank].within(np.array(before), np.array(begins))
            for row, since, peer, transfer in zip(rows, before, *waits, strict=True):
                gap = row.begin_at_ns - since
                other = gap - peer - transfer
                yield replace(row, before_ns=gap, peer_wait_ns=peer, transfer_ns=transfer, other_ns=other)

    def bubbles(self, blocked: Mapping[int, Blocked], compute: Mapping[int, Intervals]) -> Iterator[BubbleRow]:
        """Yield where each rank's time went; nothing if the computations are in an order that cannot be."""
        durations = {computation_of(row): row.end_at_ns - row.begin_at_ns for row in self._rows()}
        orders = {rank: [computation_of(row) for row in rows] for rank, rows in self.by_rank.items()}
        typical = of_typical_stage(durations)
        ideal = length(list(orders.values()), typical)
        if ideal is None:
            return
        window = self.end_at_ns - self.begin_at_ns
        for rank, rows in self.by_rank.items():
            computed = spent(orders[rank], durations)
            peer, transfer = blocked[rank].between(self.begin_at_ns, self.end_at_ns)
            idle = peer + self._drained(rows[-1].end_at_ns, blocked[rank], compute.get(rank, EMPTY))
            ideal_bubble = ideal - spent(orders[rank], typical)
            bubble = min(idle, ideal_bubble)
            yield BubbleRow(
                rank,
                rows[0].step,
                rows[0].pipeline,
                rows[0].turn,
                self.facts.schedule,
                tuple(sorted({row.stage for row in rows})),
                self.facts.microbatches,
                window,
                computed,
                bubble,
                idle - bubble,
                transfer,
                window - computed - idle - transfer,
                ideal_bubble,
                ideal,
            )

    def _rows(self) -> Iterator[PipelineRow]:
        return (row for rows in self.by_rank.values() for row in rows)

    def _drained(self, since: int, blocked: Blocked, compute: Intervals) -> int:
        """How long a rank that has computed everything is not busy until all have, other than blocked on messages."""
        free = subtract(pairs([(since, self.end_at_ns)]), compute) if self.end_at_ns > since else EMPTY
        waits = sum(sum(ns) for ns in blocked.within(free[:, 0], free[:, 1]))
        return int((free[:, 1] - free[:, 0]).sum()) - waits
