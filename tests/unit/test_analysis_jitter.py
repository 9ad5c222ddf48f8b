"""What varies from step to step, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from analysis_records import MAIN, call, mark, pause, rank, step

from ddptrace.analysis.analyze import analyze_rank
from ddptrace.analysis.rank_tables import RankTables
from ddptrace.analysis.steps.variation import jitter_rows
from ddptrace.analysis.tables.ranks import LOCAL_PHASES
from ddptrace.analysis.tables.steps import JitterRow
from ddptrace.load.tables import Call, PhaseMark, RankRun, StepMark
from ddptrace.schema import Phase

GAP = 100_000


def made(lengths: Sequence[tuple[int, int, int]], **fields: object) -> RankRun:
    """Step k: `forward`, then `backward` of which the host waits for the last `wait`."""
    steps: list[StepMark] = []
    phases: list[PhaseMark] = []
    calls: list[Call] = []
    for k, (forward, backward, wait) in enumerate(lengths):
        begin, middle = k * GAP, k * GAP + forward
        end = middle + backward
        steps.append(step(k, begin, end))
        phases += [mark(Phase.FORWARD, begin, middle), mark(Phase.BACKWARD, middle, end, k)]
        calls.append(call(k + 1, end - wait - 10, ran=(end - wait, end), thread=MAIN, waits=((end - wait, end),)))
    return rank(steps=steps, phases=phases, calls=calls, **fields)


def rows_of(table: RankTables) -> dict[str, JitterRow]:
    return {row.part: row for row in jitter_rows(table)}


CONSTANT = [(3000, 5000, 1000)] * 2
FORWARD = [(3000 + 10 * k, 5000, 1000) for k in range(12)]


def test_a_step_is_its_phases_without_waiting_and_the_waiting() -> None:
    rows = rows_of(analyze_rank(made(FORWARD)))
    assert list(rows) == [*LOCAL_PHASES, "waiting", "step"]
    assert {row.steps for row in rows.values()} == {11}  # step 0 is left out
    medians = {part: row.median_ns for part, row in rows.items()}
    assert medians == {
        "data": 0, "forward": 3060, "backward": 4000, "optimizer": 0, "other": 0, "waiting": 1000, "step": 8060,
    }  # fmt: skip
    assert rows["forward"].p95_ns == 3110
    assert rows["forward"].spread_ns == round(1.4826 * 30) == 44
    assert rows["backward"].spread_ns == 0


def test_what_alone_varies_has_all_of_the_variance() -> None:
    rows = rows_of(analyze_rank(made(FORWARD)))
    assert rows["forward"].share_ratio == pytest.approx(1)
    assert rows["waiting"].share_ratio == rows["backward"].share_ratio == 0
    assert rows["step"].share_ratio is None


def test_the_shares_of_a_rank_add_up_to_one_and_waiting_less_for_a_late_peer_is_below_zero() -> None:
    late = [(3000 + 100 * (k % 4), 5000 - 40 * (k % 4), 1000 - 40 * (k % 4)) for k in range(13)]
    rows = rows_of(analyze_rank(made(late)))
    assert sum(row.share_ratio or 0 for row in rows.values()) == pytest.approx(1)
    assert rows["forward"].share_ratio == pytest.approx(100 / 60)
    assert rows["waiting"].share_ratio == pytest.approx(-40 / 60)


def test_steps_all_alike_have_no_shares() -> None:
    assert {row.share_ratio for row in rows_of(analyze_rank(made(CONSTANT * 6))).values()} == {None}


def test_of_fewer_than_ten_steps_nothing_is_said() -> None:
    assert rows_of(analyze_rank(made(FORWARD[:10]))) == {}
    assert rows_of(analyze_rank(made(FORWARD[:11]))) != {}


def test_steps_in_which_the_profiler_was_started_do_not_count() -> None:
    held = made(FORWARD, pauses=[pause(5 * GAP, 5 * GAP + 2000)])
    assert {row.steps for row in rows_of(analyze_rank(held)).values()} == {10}


def test_where_nobody_knows_whether_the_host_waited_the_phases_stand_as_they_are() -> None:
    run = made(FORWARD)
    blind = replace(run, calls=tuple(replace(one, waits=(), exec=None) for one in run.calls))
    rows = rows_of(analyze_rank(blind))
    assert "waiting" not in rows
    assert rows["backward"].median_ns == 5000
    assert sum(row.share_ratio or 0 for row in rows.values()) == pytest.approx(1)


def test_waiting_is_told_by_the_phase_that_it_lies_in_and_adds_up_to_the_steps() -> None:
    run = made([(3000, 5000, 1000), (3000, 5000, 800)])
    across = call(9, 2000, ran=(2100, 3400), thread=MAIN, waits=((2500, 3400),))
    table = analyze_rank(replace(run, calls=(across, *run.calls)))
    assert table.waited_ns == ((0, 500, 400 + 1000, 0, 0), (0, 0, 800, 0, 0))
    assert [sum(row) for row in table.waited_ns] == [row.wait_ns for row in table.steps]
