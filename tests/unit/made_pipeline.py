"""Pipelines whose every instant is known: schedules, played with given times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ddptrace.analysis.pipeline.rows import PipelineFacts, with_other
from ddptrace.analysis.pipeline.schedule import Computation, input_of
from ddptrace.analysis.pipeline.turns import Blocked, Turn
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.parallelism import BubbleRow, MessageRow, PipelineRow, Work
from ddptrace.analysis.tables.table import Table

FORWARD, BACKWARD = 100, 200


def one_f_one_b(stages: int, microbatches: int) -> list[list[Computation]]:
    """One forward, one backward, after as many forwards as there are stages to come."""
    orders = []
    for stage in range(stages):
        first = min(stages - stage, microbatches)
        forward = [Computation(stage, k, Work.FORWARD) for k in range(microbatches)]
        backward = [Computation(stage, k, Work.BACKWARD) for k in range(microbatches)]
        order = forward[:first]
        for k in range(microbatches):
            order += [backward[k], *forward[first + k : first + k + 1]]
        orders.append(order)
    return orders


def all_then_all(stages: int, microbatches: int) -> list[list[Computation]]:
    """GPipe: all forwards, then all backwards."""
    works = (Work.FORWARD, Work.BACKWARD)
    return [[Computation(stage, k, work) for work in works for k in range(microbatches)] for stage in range(stages)]


def equal(orders: Sequence[Sequence[Computation]]) -> dict[Computation, int]:
    return {one: FORWARD if one.work == Work.FORWARD else BACKWARD for order in orders for one in order}


def played(
    orders: Sequence[Sequence[Computation]], durations: Mapping[Computation, int], transfer: int = 0
) -> tuple[Turn, dict[int, Blocked]]:
    """Run the orders: each computation begins when its rank is free and its input has come."""
    ends: dict[Computation, int] = {}
    rows: list[PipelineRow] = []
    waits: dict[int, list[MessageRow]] = {rank: [] for rank in range(len(orders))}
    free, at = [0] * len(orders), [0] * len(orders)
    while any(at[rank] < len(order) for rank, order in enumerate(orders)):
        for rank, order in enumerate(orders):
            while at[rank] < len(order):
                one = order[at[rank]]
                needed = input_of(one, durations)
                if needed is not None and needed not in ends:
                    break
                begin = free[rank]
                if needed is not None:
                    begin = max(begin, ends[needed] + transfer)
                    waits[rank].append(received(rank, one, needed, free[rank], begin, ends[needed]))
                free[rank] = ends[one] = begin + durations[one]
                rows.append(PipelineRow(rank, 1, 0, 1, one.stage, one.microbatch, one.work, begin, ends[one]))
                at[rank] += 1
    stages = tuple(rank for rank, order in enumerate(orders) for _ in {one.stage for one in order})
    microbatches = len({one.microbatch for one in durations})
    turn = Turn.of(rows, PipelineFacts(stages, "Schedule", microbatches))
    assert turn is not None
    return turn, {rank: Blocked.of(mine) for rank, mine in waits.items()}


def received(rank: int, one: Computation, needed: Computation, launch: int, end: int, sent: int) -> MessageRow:
    phase = "forward" if one.work == Work.FORWARD else "backward"
    row = MessageRow(
        rank, 1, 0, "recv", "0", needed.stage, rank, 1, phase, one.microbatch, 0, 8, 1, launch, launch, launch, end
    )
    return with_other(row, replace(row, op="send", rank=needed.stage, arrived_at_ns=sent))


def with_pipeline(result: Result) -> Result:
    """With a pipeline of two stages that ran once."""
    turn, blocked = played(orders := one_f_one_b(2, 4), equal(orders))
    rows, bubbles = turn.computations(blocked), turn.bubbles(blocked, {})
    return replace(result, pipeline=Table(PipelineRow, rows), bubbles=Table(BubbleRow, bubbles))
