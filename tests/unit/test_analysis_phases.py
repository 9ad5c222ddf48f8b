"""The partition of a step into phases, and which steps count as profiled."""

from __future__ import annotations

from typing import Any

from analysis_records import MAIN, OTHER_THREAD, mark, pause, rank, run, step, window

from ddptrace.analysis.analyze import analyze_run
from ddptrace.load.tables import PhaseMark
from ddptrace.schema import Phase

DATA, FORWARD, BACKWARD, OPTIMIZER = Phase


def phases(*marks: PhaseMark, end: int = 100, **fields: Any) -> list[tuple[str, int, int]]:
    """Name, begin and end of each stretch of one step from 0 to `end`."""
    result = analyze_run(run(rank(steps=[step(0, 0, end)], phases=marks, **fields)))
    return [(row.phase, row.begin_at_ns, row.end_at_ns) for row in result.phases]


def test_a_plain_step_is_cut_at_its_marks_and_the_rest_is_other() -> None:
    marks = mark(DATA, 5, 10), mark(FORWARD, 12, 30), mark(BACKWARD, 30, 60, 0), mark(OPTIMIZER, 65, 80)
    assert phases(*marks) == [
        ("other", 0, 5), ("data", 5, 10), ("other", 10, 12), ("forward", 12, 30), ("backward", 30, 60),
        ("other", 60, 65), ("optimizer", 65, 80), ("other", 80, 100),
    ]  # fmt: skip


def test_the_loss_between_forward_and_backward_belongs_to_forward() -> None:
    assert phases(mark(FORWARD, 0, 30), mark(BACKWARD, 50, 100, 0)) == [("forward", 0, 50), ("backward", 50, 100)]


def test_a_forward_that_another_mark_follows_ends_where_it_ended() -> None:
    marks = mark(FORWARD, 0, 30), mark(DATA, 35, 40), mark(BACKWARD, 50, 100, 0)
    assert phases(*marks)[:2] == [("forward", 0, 30), ("other", 30, 35)]


def test_an_update_inside_backward_counts_as_optimizer() -> None:
    marks = mark(BACKWARD, 0, 100, 0), mark(OPTIMIZER, 20, 30), mark(OPTIMIZER, 60, 70)
    assert [(name, end - begin) for name, begin, end in phases(*marks)] == [
        ("backward", 20), ("optimizer", 10), ("backward", 30), ("optimizer", 10), ("backward", 30),
    ]  # fmt: skip


def test_a_closure_inside_the_optimizer_keeps_its_own_phases() -> None:
    marks = mark(OPTIMIZER, 0, 100), mark(FORWARD, 10, 20), mark(BACKWARD, 25, 60, 0)
    assert phases(*marks) == [("optimizer", 0, 10), ("forward", 10, 25), ("backward", 25, 60), ("optimizer", 60, 100)]


def test_a_mark_that_crosses_the_end_of_its_step_is_shared_by_both() -> None:
    one = rank(steps=[step(0, 0, 50), step(1, 50, 100)], phases=[mark(BACKWARD, 20, 70, 0)])
    assert [(row.backward_ns, row.other_ns) for row in analyze_run(run(one)).steps] == [(30, 20), (20, 30)]


def test_marks_of_other_threads_are_not_phases_of_the_step() -> None:
    # GIVEN more marks on a thread that loads data than on the one that runs backward
    helper = [mark(DATA, t, t + 5, None, OTHER_THREAD) for t in range(0, 100, 10)]
    assert phases(*helper, mark(BACKWARD, 40, 80, 0, MAIN)) == [
        ("other", 0, 40),
        ("backward", 40, 80),
        ("other", 80, 100),
    ]


def test_a_pause_of_ddptrace_is_other_even_inside_a_phase() -> None:
    one = rank(steps=[step(0, 0, 100)], phases=[mark(OPTIMIZER, 0, 100)], pauses=[pause(40, 70)])
    row = analyze_run(run(one)).steps[0]
    assert (row.optimizer_ns, row.other_ns, row.paused_ns, row.compute_ns) == (70, 30, 30, 70)


def profiled(one_window: tuple[int, int], *marks: PhaseMark) -> list[bool]:
    steps = [step(0, 0, 50), step(1, 50, 100)]
    result = analyze_run(run(rank(steps=steps, phases=marks, windows=[window(*one_window, (60, 70))])))
    return [row.profiled for row in result.steps]


def test_a_step_is_profiled_when_one_window_holds_it_from_its_first_phase_on() -> None:
    marks = mark(FORWARD, 10, 40), mark(FORWARD, 60, 90)
    assert profiled((50, 100), *marks) == [False, True]
    assert profiled((60, 110), *marks) == [False, True]
    assert profiled((61, 110), *marks) == [False, False]
    assert profiled((50, 99), *marks) == [False, False]
    assert profiled((5, 100), *marks) == [True, True]


def test_a_phase_that_runs_into_a_step_is_its_first_from_the_steps_begin() -> None:
    assert profiled((55, 100), mark(BACKWARD, 40, 70, 0), mark(FORWARD, 80, 90)) == [False, False]


def test_a_profiled_step_takes_its_compute_from_the_window_alone() -> None:
    one = rank(steps=[step(0, 0, 100)], phases=[mark(FORWARD, 10, 90)], windows=[window(5, 100, (20, 30), (40, 45))])
    assert analyze_run(run(one)).steps[0].compute_ns == 15


def test_data_loading_is_not_compute() -> None:
    one = rank(steps=[step(0, 0, 100)], phases=[mark(DATA, 0, 40), mark(FORWARD, 40, 70)])
    assert analyze_run(run(one)).steps[0].compute_ns == 30
