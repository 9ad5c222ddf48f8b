"""A rank's trail: what it did itself, waited for and nobody saw adds up to its time."""

from __future__ import annotations

import numpy as np

from ddptrace.analysis.rank_view import view_of
from ddptrace.analysis.ranks.crossings import begins_of
from ddptrace.analysis.ranks.trail import trail_of
from ddptrace.analysis.tables.ranks import LAUNCH, LOCAL_PHASES, STEP_END, WAIT, Trail
from ddptrace.load.tables import RankRun
from ddptrace.schema import Phase
from tests.unit.analysis_records import Piece, call, comm_piece, gpu_call, gpu_window, mark, pause, rank, step


def trail(run: RankRun) -> Trail:
    return trail_of(view_of(run))


def rows(found: Trail) -> list[tuple[int, int, int, int, dict[str, int]]]:
    """Kind, instant, seq, step, and the phases that took time."""
    local = [{name: ns for name, ns in zip(LOCAL_PHASES, row, strict=True) if ns} for row in found.local_ns.tolist()]
    columns = (found.kind, found.at_ns, found.seq, found.step)
    return list(zip(*(column.tolist() for column in columns), local, strict=True))


def test_what_a_rank_does_between_its_calls_and_waits_is_told_by_phase() -> None:
    run = rank(
        steps=[step(0, 100, 200), step(1, 200, 260)],
        phases=[
            mark(Phase.DATA, 100, 110), mark(Phase.FORWARD, 115, 130), mark(Phase.BACKWARD, 130, 180, 0),
            mark(Phase.OPTIMIZER, 180, 195),
        ],
        calls=[call(7, 150, waits=((160, 175),)), call(8, 155, waits=((175, 178),))],
    )  # fmt: skip
    assert rows(trail(run)) == [
        (WAIT, 100, -1, 0, {}),  # the begin
        (LAUNCH, 150, 7, 0, {"data": 10, "forward": 15, "backward": 20, "other": 5}),
        (LAUNCH, 155, 8, 0, {"backward": 5}),
        (WAIT, 175, 7, 0, {"backward": 5}),
        (WAIT, 178, 8, 0, {}),
        (STEP_END, 200, -1, 0, {"backward": 2, "optimizer": 15, "other": 5}),
        (STEP_END, 260, -1, 1, {"other": 60}),
    ]


def test_between_steps_of_which_something_was_not_recorded_nothing_is_the_ranks_own() -> None:
    run = rank(steps=[step(3, 10, 20), step(4, 20, 30), step(9, 70, 90)], phases=[mark(Phase.FORWARD, 72, 80)])
    assert rows(trail(run)) == [
        (WAIT, 10, -1, 3, {}), (STEP_END, 20, -1, 3, {"other": 10}), (STEP_END, 30, -1, 4, {"other": 10}),
        (WAIT, 70, -1, -1, {}), (STEP_END, 90, -1, 9, {"forward": 8, "other": 12}),
    ]  # fmt: skip


def test_what_is_launched_before_the_first_step_and_after_the_last_is_left_out() -> None:
    run = rank(steps=[step(0, 10, 50)], calls=[call(1, 5, waits=((6, 8),)), call(2, 20), call(3, 60)])
    assert [row[:3] for row in rows(trail(run))] == [(WAIT, 10, -1), (LAUNCH, 20, 2), (STEP_END, 50, -1)]


def test_the_time_that_a_forward_waits_for_the_roots_buffers_is_not_its_own() -> None:
    buffers = {"origin": "buffers", "is_native": True, "is_sync": False, "done_at_ns": 40}
    run = rank(steps=[step(0, 0, 100)], phases=[mark(Phase.FORWARD, 0, 90)],
               calls=[call(1, 10, issued_at_ns=12, op="broadcast", **buffers)])  # fmt: skip
    assert rows(trail(run))[1:] == [
        (LAUNCH, 10, 1, 0, {"forward": 10}), (WAIT, 40, 1, 0, {"forward": 2}),
        (STEP_END, 100, -1, 0, {"forward": 50, "other": 10}),
    ]  # fmt: skip


def test_a_step_that_begins_with_a_wait_ends_the_one_before_it_in_time() -> None:
    run = rank(steps=[step(0, 0, 50), step(1, 50, 90)], calls=[call(1, 20, waits=((50, 60),))])
    assert [row[:4] for row in rows(trail(run))] == [
        (WAIT, 0, -1, 0), (LAUNCH, 20, 1, 0), (STEP_END, 50, -1, 0), (WAIT, 60, 1, 1), (STEP_END, 90, -1, 1),
    ]  # fmt: skip


def test_a_pause_of_ddptrace_itself_is_no_phase_of_the_program() -> None:
    run = rank(steps=[step(0, 0, 100)], phases=[mark(Phase.FORWARD, 0, 80)], pauses=[pause(20, 50)])
    assert rows(trail(run))[1:] == [(STEP_END, 100, -1, 0, {"forward": 50, "other": 50})]


def test_on_a_device_a_rank_arrives_when_its_kernel_begins_and_waits_while_nothing_computes() -> None:
    # GIVEN kernels launched in forward and backward, one collective half hidden and one not hidden at all
    window = gpu_window(
        0, 300,
        Piece(110, 150, (10, 11)), Piece(150, 200, (50, 51)), comm_piece(180, 230, (60, 61)),
        Piece(230, 250, (70, 71)), comm_piece(250, 260, (80, 81)), Piece(265, 280, (90, 91)),
    )  # fmt: skip
    run = rank(
        steps=[step(0, 0, 100)], phases=[mark(Phase.FORWARD, 0, 40), mark(Phase.BACKWARD, 40, 85, 0),
                                         mark(Phase.OPTIMIZER, 85, 100)],
        calls=[gpu_call(1, 60, (180, 230)), gpu_call(2, 80, (250, 260))], windows=[window],
    )  # fmt: skip
    found = trail(run)
    assert found.on_device
    assert rows(found)[1:] == [
        (LAUNCH, 180, 1, 0, {"forward": 40, "backward": 30, "other": 110}),
        (WAIT, 230, 1, 0, {"backward": 20}),
        (LAUNCH, 250, 2, 0, {"backward": 20}),
        (WAIT, 260, 2, 0, {}),
        (STEP_END, 280, -1, 0, {"backward": 5, "optimizer": 15}),
    ]


def test_events_are_in_order_and_their_parts_add_up_to_the_ranks_time() -> None:
    calls = [call(k, 10 * k + k % 3, waits=((10 * k + 5, 10 * k + 5 + 7 * (k % 4)),)) for k in range(1, 40)]
    found = trail(rank(steps=[step(k, 50 * k, 50 * k + 50) for k in range(8)], calls=calls))
    assert (np.diff(found.at_ns) >= 0).all()
    waited = found.at_ns - begins_of(found)
    assert (waited[found.kind != WAIT] == 0).all()
    assert (found.local_ns >= 0).all()
    assert found.local_ns.sum() + waited.sum() == found.at_ns[-1] - found.at_ns[0] > 0


def test_a_rank_without_steps_has_no_trail() -> None:
    assert not len(trail(rank(calls=[call(1, 5)])).at_ns)
