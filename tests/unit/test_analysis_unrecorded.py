"""Collectives that were not recorded: what a device's kernels, or the end of the recording, tell of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.device.steps import DeviceMark
from ddptrace.analysis.rank_view import view_of
from ddptrace.analysis.ranks.trail import UNRECORDED, trail_of
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.ranks import WAIT
from ddptrace.analysis.timeline.build import timeline_of
from ddptrace.analysis.timeline.forecast import TimelinePredictor
from ddptrace.analysis.timeline.graph import Span
from ddptrace.analysis.whatif.tables import Setting
from ddptrace.load.tables import DeviceEvents, Window
from ddptrace.schema import Evidence, Phase
from tests.unit.analysis_records import (
    Piece,
    call,
    comm_piece,
    gpu_call,
    gpu_window,
    mark,
    rank,
    run,
    step,
)
from tests.unit.made_timeline import held

STEPS = [step(0, 10, 20), step(1, 20, 40)]
RECORDED, LOST, QUEUED = comm_piece(45, 60, (25, 26)), comm_piece(55, 80, (30, 31)), comm_piece(82, 86)
WORK = (Piece(5, 8, (1, 2)), Piece(12, 44, (11, 12)), RECORDED, LOST, QUEUED, Piece(78, 90, (35, 36)))
CALL = gpu_call(1, 24, (45, 60))


def seen(*pieces: Piece, unclaimed: tuple[Piece, ...], begin: int = 0, end: int = 1000) -> Window:
    """A window, with what no recorded call launched."""
    made = gpu_window(begin, end, *pieces)
    assert made.device is not None
    begins = [piece.begin for piece in unclaimed]
    return replace(made, unclaimed=np.isin(made.device.begin_at_ns, begins))


def analyzed(**fields: Any) -> Result:
    return analyze_run(run(rank(steps=STEPS, **fields)))


def test_kernels_of_no_recorded_call_communicate_and_the_parts_add_up() -> None:
    result = analyzed(windows=[seen(*WORK, unclaimed=(LOST, QUEUED))], calls=[CALL])
    row = result.steps[1]
    assert (row.window_ns, row.compute_ns, row.comm_ns, row.hidden_ns) == (90 - 44, 12, 35 + 4, 2 + 4)
    assert (row.exposed_comm_ns, row.exposed_memory_ns, row.idle_ns) == (33, 0, 1)
    assert row.evidence is Evidence.DEVICE
    (device,) = (one.all for one in result.ranks)
    assert device is not None and (device.comm_ns, device.hidden_ns) == (row.comm_ns, row.hidden_ns)


def test_each_collective_is_charged_as_before_and_the_rest_is_of_an_unknown_dimension() -> None:
    result = analyzed(windows=[seen(*WORK, unclaimed=(LOST, QUEUED))], calls=[CALL])
    alone = analyzed(windows=[gpu_window(0, 1000, *WORK)], calls=[CALL])
    assert result.collectives == alone.collectives and result.units == alone.units
    other, unknown = result.dimensions
    assert (other.dimension, other.calls, other.exposed_charged_ns) == ("other", 1, 15)
    assert (unknown.dimension, unknown.calls, unknown.nbytes, unknown.comm_ns) == ("unknown", None, None, 24)
    assert unknown.exposed_charged_ns == unknown.unmatched_ns == 18
    assert unknown.peer_wait_ns == unknown.bubble_ns == unknown.transfer_ns == 0
    assert result.steps[1].exposed_comm_ns == 15 + 18


def test_where_most_of_the_exposed_time_is_theirs_the_finding_says_so_and_how_to_read_them() -> None:
    result = analyzed(windows=[seen(*WORK, unclaimed=(LOST, QUEUED))], calls=[CALL])
    (found,) = [finding for finding in result.findings if finding.code == "exposed-communication"]
    assert "18 ns of it are kernels of no recorded call: to see which collectives these are, analyze" in found.message
    few = analyzed(windows=[seen(*WORK, unclaimed=(QUEUED,))], calls=[CALL])
    assert not any("no recorded call" in one.message for one in few.findings if one.code == found.code)


def test_a_kernel_that_a_call_is_known_to_have_run_in_by_other_means_counts_once() -> None:
    late = comm_piece(45, 60)
    result = analyzed(windows=[seen(WORK[0], WORK[1], late, WORK[5], unclaimed=(late,))], calls=[CALL])
    assert result.steps[1].comm_ns == 15 and {row.dimension for row in result.dimensions} == {"other"}


def test_what_a_rank_waits_for_there_is_not_its_own_work() -> None:
    windows = [seen(*WORK, unclaimed=(LOST, QUEUED))]
    trail = trail_of(view_of(rank(steps=STEPS, windows=windows, calls=[CALL])))
    (wait,) = np.flatnonzero(trail.seq == UNRECORDED).tolist()
    assert (trail.kind[wait], trail.at_ns[wait], trail.local_ns[wait].sum()) == (WAIT, 78, 0)


def test_a_kernel_that_begins_after_a_recorded_call_is_played_as_none_of_its() -> None:
    later = comm_piece(62, 80, (30, 31))
    window = replace(seen(*WORK[:2], RECORDED, later, WORK[5], unclaimed=(later,)), host_calls=held())
    result = analyzed(windows=[window], calls=[CALL])
    graph = timeline_of(result).graph
    assert sorted(graph.call[graph.span == Span.TRANSFER].tolist()) == [-1, 0]
    predictor = TimelinePredictor(result)
    assert any("no recorded call" in basis for basis in predictor.predict("free", Setting(free_network=True)).basis)
    lost = TimelinePredictor(analyzed(windows=[window]))
    refusal = lost.predict("free", Setting(free_network=True)).refusal
    assert refusal is not None and refusal.startswith("no collective of the profiled steps was recorded")


MARKS = [
    (DeviceMark.FORWARD_BEGIN, 11, 12), (DeviceMark.UPDATE_END, 19, 22), (DeviceMark.FORWARD_BEGIN, 21, 23),
    (DeviceMark.UPDATE_END, 39, 44), (DeviceMark.FORWARD_BEGIN, 41, 45),
]  # fmt: skip


@pytest.mark.parametrize(
    ("lost", "since", "known"),
    [(None, None, [True, True]), (QUEUED, None, [True, True]), (LOST, None, [False, False]), (None, 30, [True, False])],
    ids=["all recorded", "queued before the window", "launched in the window", "recording stopped"],
)
def test_events_tell_of_no_step_whose_collectives_may_be_missing(
    lost: Piece | None, since: int | None, known: list[bool]
) -> None:
    kinds, placed, at = np.array([(int(kind), *when) for kind, *when in MARKS], np.int64).T
    events = DeviceEvents("cuda:0", kinds.astype(np.uint8), placed, at, 0)
    windows = [] if lost is None else [seen(lost, unclaimed=(lost,), begin=50, end=100)]
    made = replace(rank(steps=STEPS, windows=windows), device="cuda:0", device_events=events)
    result = analyze_run(run(replace(made, unrecorded_from_at_ns=since)))
    assert [row.is_seen for row in result.steps] == known
    missing = [finding for finding in result.findings if finding.code == "collectives-missing"]
    assert bool(missing) == (False in known)


def test_on_a_host_nothing_is_known_of_steps_after_the_recording_stopped() -> None:
    phases = [mark(Phase.BACKWARD, 12, 18, 0), mark(Phase.BACKWARD, 22, 38, 1)]
    made = rank(steps=STEPS, phases=phases, calls=[call(1, 14, waits=((15, 17),))])
    result = analyze_run(run(replace(made, unrecorded_from_at_ns=24)))
    first, second = result.steps
    assert (first.compute_ns, first.comm_ns, first.wait_ns) == (4, 3, 2)
    assert (second.compute_ns, second.comm_ns, second.idle_ns, second.wait_ns) == (None,) * 4
    said = {finding.code: finding.message for finding in result.findings}
    assert said["collectives-missing"] == "Collectives of rank 0 were not recorded, so the parts of step 1 are unknown."
