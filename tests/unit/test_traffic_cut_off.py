"""The last step of a program without an optimizer ends with its backward: what it sends after that is in no step."""

from __future__ import annotations

from analysis_records import call, rank, run, step

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.traffic.digest import TrafficReport, traffic_report
from ddptrace.schema import StepEnd


def report_of(ended_by: StepEnd, last_end: int, steps: int = 4) -> TrafficReport:
    """Steps of 100, the last until `last_end`: each sends 8 bytes 30 after its begin and 8 bytes 80 after it."""
    marks = [step(k, 100 * k, last_end if k == steps - 1 else 100 * k + 100, ended_by) for k in range(steps)]
    at = [100 * k + offset for k in range(steps) for offset in (30, 80)]
    calls = [call(seq, launch, nbytes_in=8, nbytes_out=0, origin="program") for seq, launch in enumerate(at, start=1)]
    return traffic_report(analyze_run(run(rank(0, steps=marks, calls=calls), world_size=1)))


def test_a_last_step_that_ends_with_its_backward_is_not_counted() -> None:
    report = report_of(StepEnd.BACKWARD, 350)
    (kind,) = report.kinds
    assert (report.steps, kind.calls, kind.nbytes_in, kind.nbytes_min, kind.nbytes_max) == ((1, 2), 2, 16, 16, 16)


def test_a_last_step_that_ends_with_an_update_is_counted() -> None:
    report = report_of(StepEnd.OPTIMIZER, 400)
    assert report.steps == (1, 2, 3) and report.kinds[0].nbytes_in == 16


def test_where_no_other_step_is_left_all_count() -> None:
    assert report_of(StepEnd.BACKWARD, 150, steps=2).steps == (0, 1)
