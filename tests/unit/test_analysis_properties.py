"""Whole runs of one rank against an answer worked out instant by instant: the promises that every number rests on."""

from __future__ import annotations

import itertools
from collections import defaultdict

from analysis_records import MAIN, OTHER_THREAD, call, mark, pause, rank, run, spans, step, window
from hypothesis import given, settings
from hypothesis import strategies as st

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.result import Result
from ddptrace.analysis.steps.phases import main_thread
from ddptrace.load.tables import RankRun
from ddptrace.schema import Phase

LAST = 70

span = st.tuples(st.integers(0, 60), st.integers(0, 15)).map(lambda s: (s[0], s[0] + s[1]))


@st.composite
def ranks(draw: st.DrawFn) -> RankRun:
    """Steps with gaps, marks that overlap, pauses, profiler windows, calls with and without known execution."""
    edges = sorted(draw(st.lists(st.integers(0, LAST), min_size=2, max_size=8, unique=True)))
    steps = [step(k, *edge) for k, edge in enumerate(itertools.pairwise(edges)) if draw(st.booleans())]
    phases = [
        mark(draw(st.sampled_from(Phase)), *draw(span), None, draw(st.sampled_from([MAIN, MAIN, OTHER_THREAD])))
        for _ in range(draw(st.integers(0, 6)))
    ]
    calls = []
    for seq in range(1, draw(st.integers(1, 7))):
        ran = draw(st.none() | span)
        waits = draw(st.lists(span, max_size=2)) if ran else []
        calls.append(call(seq, draw(st.integers(0, ran[0] if ran else LAST)), ran=ran, waits=tuple(waits)))
    windows = []
    if draw(st.booleans()):
        begin, end = draw(span)
        inside = [(max(begin, b), min(end, e)) for b, e in draw(st.lists(span, max_size=4))]
        memory = [(max(begin, b), min(end, e)) for b, e in draw(st.lists(span, max_size=2))]
        windows.append(window(begin, end, *inside, memory=memory))
    pauses = [pause(*draw(span)) for _ in range(draw(st.integers(0, 1)))]
    return rank(steps=steps, phases=phases, calls=calls, windows=windows, pauses=pauses)


def the_run(one: RankRun) -> tuple[Result, set[int]]:
    result = analyze_run(run(one))
    return result, {t for begin, end in result.activity[0].compute.tolist() for t in range(begin, end)}


@settings(max_examples=100)
@given(ranks())
def test_the_parts_of_every_step_add_up_to_its_window_exactly(one: RankRun) -> None:
    result, compute = the_run(one)
    comm = {t for c in one.calls if c.exec for t in range(c.exec.begin_at_ns, c.exec.end_at_ns)}
    memory = {t for w in one.windows for b, e in w.memory.tolist() for t in range(b, e)}
    assert len(result.steps) == len(one.steps)
    for row in result.steps:
        inside = set(range(row.begin_at_ns, row.end_at_ns))
        copied = memory - compute - comm if row.profiled else set()
        assert row.window_ns == row.wall_ns == len(inside)
        assert row.compute_ns == len(inside & compute)
        assert row.comm_ns == len(inside & comm)
        assert row.hidden_ns == len(inside & comm & compute)
        assert row.exposed_comm_ns == len(inside & comm - compute)
        assert row.exposed_memory_ns == len(inside & copied)
        assert row.idle_ns == len(inside - compute - comm - copied)
        assert row.overlap_ratio == (row.hidden_ns / row.comm_ns if row.comm_ns else None)


@settings(max_examples=100)
@given(ranks())
def test_every_exposed_instant_is_charged_to_the_collective_that_started_first(one: RankRun) -> None:
    result, compute = the_run(one)
    owed: dict[tuple[int | None, int], int] = defaultdict(int)
    for t in range(LAST + 20):
        running = [c for c in one.calls if c.exec and c.exec.begin_at_ns <= t < c.exec.end_at_ns]
        if running and t not in compute:
            payer = min(running, key=lambda c: (c.exec.begin_at_ns, c.seq))  # type: ignore[union-attr]
            within = next((s.ordinal for s in one.steps if s.begin_at_ns <= t < s.end_at_ns), None)
            owed[within, payer.seq] += 1
    charged = {(row.step, row.seq, row.part): row.exposed_charged_ns for row in result.collectives}
    for (within, seq), ns in owed.items():
        assert ns == sum(v or 0 for (s, q, _), v in charged.items() if (s, q) == (within, seq))
    assert sum(owed.values()) == sum(value or 0 for value in charged.values())


@settings(max_examples=100)
@given(ranks())
def test_charges_of_a_steps_collectives_add_up_to_its_exposed_time(one: RankRun) -> None:
    result, _ = the_run(one)
    for row in result.steps:
        charged = [c.exposed_charged_ns for c in result.collectives if c.step == row.step]
        assert sum(ns or 0 for ns in charged) == row.exposed_comm_ns


@settings(max_examples=100)
@given(ranks())
def test_hidden_and_exposed_of_every_collective_add_up_to_its_time(one: RankRun) -> None:
    result, compute = the_run(one)
    ran: dict[int, int] = defaultdict(int)
    for row in result.collectives:
        if row.comm_ns is None:
            assert (row.hidden_ns, row.exposed_ns, row.exposed_charged_ns, row.evidence) == (None,) * 4
            continue
        assert row.exec_start_at_ns is not None
        assert row.exec_end_at_ns is not None
        during = set(range(row.exec_start_at_ns, row.exec_end_at_ns))
        assert row.comm_ns == len(during)
        assert row.hidden_ns == len(during & compute)
        assert row.exposed_ns == len(during - compute)
        ran[row.seq] += row.comm_ns
    assert ran == {c.seq: c.exec.end_at_ns - c.exec.begin_at_ns for c in one.calls if c.exec}
    assert {row.seq for row in result.collectives} == {c.seq for c in one.calls}


@settings(max_examples=100)
@given(ranks())
def test_the_phases_are_a_partition_of_every_step(one: RankRun) -> None:
    result, _ = the_run(one)
    for row in result.steps:
        parts = [p for p in result.phases if p.step == row.step]
        assert [row.begin_at_ns, *(p.end_at_ns for p in parts)] == [*(p.begin_at_ns for p in parts), row.end_at_ns]
        assert all(a.phase != b.phase for a, b in itertools.pairwise(parts))
        for name in ("data", "forward", "backward", "optimizer", "other"):
            expected = sum(p.end_at_ns - p.begin_at_ns for p in parts if p.phase == name)
            assert getattr(row, f"{name}_ns") == expected
        assert row.data_ns + row.forward_ns + row.backward_ns + row.optimizer_ns + row.other_ns == row.wall_ns


@settings(max_examples=100)
@given(ranks())
def test_compute_without_a_profiler_is_the_computing_phases_without_the_waits(one: RankRun) -> None:
    result, compute = the_run(one)
    trains = main_thread(one) in (MAIN, None)  # what a helper thread waits for does not count
    waited = {t for c in one.calls if trains for b, e in c.waits for t in range(b, e)}
    busy = {t for p in result.phases if p.phase in ("forward", "backward", "optimizer")
            for t in range(p.begin_at_ns, p.end_at_ns)}  # fmt: skip
    for row in result.steps:
        inside = set(range(row.begin_at_ns, row.end_at_ns))
        if row.profiled:
            assert (
                inside & compute
                == {t for w in one.windows for b, e in w.compute.tolist() for t in range(b, e)} & inside
            )
        else:
            assert inside & compute == inside & busy - waited


def test_memory_copies_count_only_where_nothing_else_happens() -> None:
    one = rank(
        steps=[step(0, 0, 20)],
        phases=[mark(Phase.FORWARD, 0, 20)],
        calls=[call(1, 4, ran=(4, 10))],
        windows=[window(0, 20, (0, 5), memory=[(3, 12)])],
    )
    row = analyze_run(run(one)).steps[0]
    assert (row.compute_ns, row.exposed_comm_ns, row.exposed_memory_ns, row.idle_ns) == (5, 5, 2, 8)
    assert spans((0, 5)).tolist() == analyze_run(run(one)).activity[0].compute.tolist()
