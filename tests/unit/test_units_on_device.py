"""FSDP units of a device: the clock of its stream, and steps under settings held against runs made with them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.rank_view import view_of
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.analysis.tables.table import Table
from ddptrace.analysis.units.advice import best_ways, calls_of
from ddptrace.analysis.units.clock import clock_of
from ddptrace.analysis.units.forecast import BY_CALL, NEVER_AHEAD, Sent, UnitPredictor, even, flat
from ddptrace.analysis.units.script import script_of
from ddptrace.analysis.whatif.tables import Setting
from ddptrace.errors import DdptraceError
from ddptrace.load.tables import RankRun, Run, UnitEvent
from ddptrace.schema import Phase, UnitMark, UnitRole
from tests.unit.made_device_units import COPY, UPDATE, device_units_run
from tests.unit.made_units import MS, Plan

COMM_BOUND = Plan(nbytes=(4, 4, 4, 4, 4, 4), compute_ms=1)
EVEN = Plan(nbytes=(4, 4, 4, 4, 4, 4), compute_ms=4)
COMPUTE_BOUND = Plan(nbytes=(2, 2, 2, 2, 2, 2), compute_ms=6)


def predictor_of(made: Run, wall_ratio: float | None = None, window_ratio: float = 1.0) -> UnitPredictor:
    """`wall_ratio`: what the host takes for a step, of the device's time; `window_ratio`: how much longer the typical
    step is than the profiled ones."""
    result = analyze_run(made)
    rows = [
        replace(
            row,
            wall_ns=row.wall_ns if wall_ratio is None else round(wall_ratio * row.window_ns),
            window_ns=round(window_ratio * row.window_ns),
        )
        for row in result.steps
    ]
    result = replace(result, steps=Table(StepRow, rows))
    scripts = [script for rank in made.ranks if (script := script_of(view_of(rank))) is not None]
    return UnitPredictor(result, scripts)


def step_ns(plan: Plan) -> float:
    return predictor_of(device_units_run(plan)).recorded_ns


@pytest.mark.parametrize("plan", [COMM_BOUND, EVEN, COMPUTE_BOUND])
@pytest.mark.parametrize(
    ("changed", "setting"),
    [
        ({}, Setting()),
        ({"reshards": False}, Setting(reshard_after_forward=False)),
        ({"ahead": 2, "ahead_backward": 2}, Setting(forward_prefetch=2, backward_prefetch=2)),
        ({"ahead_backward": 0}, Setting(backward_prefetch=0)),
    ],
)
def test_settings_are_predicted_as_runs_made_with_them_take(
    plan: Plan, changed: dict[str, int], setting: Setting
) -> None:
    found = predictor_of(device_units_run(plan)).predict("asked", setting)
    assert found.step_ns == pytest.approx(step_ns(replace(plan, **changed)), rel=0.02)


def test_the_clock_of_a_device_tells_when_its_stream_was_done() -> None:
    (rank, _) = device_units_run(COMM_BOUND).ranks
    view = view_of(rank)
    clock, first, second = clock_of(view, rank.calls), rank.steps[1], rank.steps[2]
    ended = view.windows.ends[1]
    assert clock.at_ns(first.end_at_ns) == ended > first.end_at_ns
    assert clock.at_ns(second.end_at_ns) - ended == view.windows.ends[2] - ended
    work = len(COMM_BOUND.nbytes) * (3 * COMM_BOUND.compute_ms * MS + 3 * COPY) + UPDATE
    assert clock.worked_ns(second.begin_at_ns, second.end_at_ns) == work


def test_a_host_that_never_ran_ahead_may_be_the_limit() -> None:
    asked, made = Setting(reshard_after_forward=False), device_units_run(COMM_BOUND)
    fast = predictor_of(made).predict("kept", asked)
    assert NEVER_AHEAD not in fast.basis and (fast.gain_low_ratio or 0.0) > 0
    beside = predictor_of(made, wall_ratio=1.0)
    kept = beside.predict("kept", asked)
    assert NEVER_AHEAD in kept.basis and kept.high_ns == beside.recorded_ns and kept.gain_low_ratio == 0.0
    ahead = predictor_of(made, wall_ratio=0.8)
    assert ahead.predict("free", Setting(free_network=True)).step_ns == pytest.approx(0.8 * ahead.recorded_ns, rel=0.01)


def test_units_of_one_size_do_not_tell_what_other_sizes_take() -> None:
    alike = predictor_of(device_units_run(COMM_BOUND)).predict("halves", Setting(unit_size=2.0))
    low, high = (alike.low_ns or 0, alike.high_ns or 0)
    assert BY_CALL in alike.basis and low < 0.7 * (alike.step_ns or 0) < (alike.step_ns or 0) <= high
    told = predictor_of(device_units_run(replace(COMM_BOUND, nbytes=(6, 4, 4, 4, 4, 4)))).predict(
        "kept", Setting(unit_size=2.0)
    )
    assert BY_CALL not in told.basis and (told.low_ns or 0) > 0.85 * (told.step_ns or 0)


def test_the_cost_of_a_byte_is_the_same_in_all_sizes_or_not_told() -> None:
    one = Sent(1, UnitRole.UNSHARD, 1000, 5000.0, 0.0)
    costs, saved = even([one, replace(one, nbytes=2000, alone_ns=10_100.0)]) or ({}, 1.0)
    assert costs[UnitRole.UNSHARD].latency_ns == 0.0 == saved
    assert costs[UnitRole.UNSHARD].ns_per_byte == pytest.approx(5.0, rel=0.01)
    assert even([one, replace(one, nbytes=2000)]) is None
    assert flat([one, replace(one, alone_ns=6000.0)])[UnitRole.UNSHARD].alone_ns(77) == 5500.0


def test_what_wins_on_a_device_is_set_without_the_calls_of_hosts_that_wait() -> None:
    found = predictor_of(device_units_run(COMM_BOUND))
    best = best_ways(found)
    assert best is not None and best.setting.reshard_after_forward is False
    assert not any("async" in line or "prefetch" in line for line in calls_of(best.setting, found.units))
    assert "waits for no gather" in (found.predict("async", Setting(unshard_async_op=True)).refusal or "")


def test_profiled_steps_that_are_not_typical_tell_nothing_of_units() -> None:
    with pytest.raises(DdptraceError, match="they do not show what FSDP units cost"):
        predictor_of(device_units_run(COMM_BOUND), window_ratio=2.0)


def test_a_unit_that_torch_looks_at_again_at_the_end_is_reduced_once() -> None:
    made = device_units_run(COMM_BOUND)
    again = replace(made, ranks=tuple(map(_with_empty_ends, made.ranks)))
    assert predictor_of(again).predict("now", Setting()).step_ns == predictor_of(made).predict("now", Setting()).step_ns


def _with_empty_ends(rank: RankRun) -> RankRun:
    ends = [step.end_at_ns - 1 for step in rank.steps]
    empty = tuple(UnitEvent(1, UnitMark.READY, at, at, Phase.BACKWARD) for at in ends)
    return replace(rank, unit_events=rank.unit_events + empty)
