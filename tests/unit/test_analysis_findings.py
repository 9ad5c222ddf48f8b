"""What is said of a run in words, and the typical step."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from analysis_records import call, ddp_call, layout, mark, pause, rank, ready, reducer, run, step, window

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import summarize
from ddptrace.findings import Finding
from ddptrace.load.tables import RankRun, Run
from ddptrace.schema import Evidence, Phase, StepEnd

MS = 1_000_000


def found(one: Run) -> dict[str, Finding]:
    return {finding.code: finding for finding in analyze_run(one).findings}


def trained(number: int = 0, count: int = 4, last_ran_ms: int = 30, **fields: Any) -> RankRun:
    """Steps of 100 ms: forward 0..30, backward 30..90 with two buckets, of which the second runs from 60 on, for
    `last_ran_ms`, with nothing left to compute."""
    calls, phases, gradients, marks = [], [], [], []
    for k in range(count):
        at = 100 * MS * k
        marks.append(step(k, at, at + 100 * MS))
        phases += [mark(Phase.FORWARD, at, at + 30 * MS), mark(Phase.BACKWARD, at + 30 * MS, at + 90 * MS, k)]
        phases.append(mark(Phase.OPTIMIZER, at + 90 * MS, at + 100 * MS))
        gradients.append(ready(k, (2, at + 40 * MS), (1, at + 45 * MS), (0, at + 60 * MS)))
        calls.append(ddp_call(2 * k + 1, at + 45 * MS, 20, ran=(at + 45 * MS, at + 55 * MS)))
        calls.append(ddp_call(2 * k + 2, at + 60 * MS, 4, ran=(at + 60 * MS, at + (60 + last_ran_ms) * MS)))
    known: dict[str, Any] = {
        "steps": marks, "phases": phases, "calls": calls, "ready": gradients,
        "reducers": [reducer([1, 2, 3], layout(0, 0, (1, 2), (0,)))],
    }  # fmt: skip
    return rank(number, **(known | fields))


def test_findings_of_the_run_come_first() -> None:
    said = Finding("torn-tail", "warning", "rank 0", "The tail was torn.")
    assert analyze_run(run(trained(), findings=[said])).findings[0] == said


def test_a_run_without_any_communication_says_so() -> None:
    codes = found(run(rank(steps=[step(0, 0, 10)]), world_size=1))
    assert "single-rank" in codes and "no-communication" not in codes
    several = found(run(rank(steps=[step(0, 0, 10)]), rank(1, steps=[step(0, 0, 10)]), world_size=2))
    assert several["no-communication"].severity == "warning"
    assert not codes.keys() & {"unknown-exec", "approximate-overlap", "coarse-compute", "well-hidden"}


def test_an_empty_run_is_findings_and_no_error() -> None:
    assert {"no-communication", "no-steps"} <= found(run(rank(phases=(), calls=()))).keys()
    assert "no-communication" in found(run())


def test_a_rank_without_steps_is_named() -> None:
    assert found(run(trained(0), rank(3)))["no-steps"].where == "rank 3"


def test_a_rank_that_may_still_be_in_its_first_step_is_told_apart_from_one_that_ended_without_any() -> None:
    early = found(run(rank(clean=False), world_size=1))["no-steps"].message
    assert "has ended yet" in early and "analyze it again later; if not, call t.step()" in early
    ended = found(run(rank(), world_size=1))["no-steps"].message
    assert "later" not in ended and "call t.step()" in ended


def test_steps_by_backward_are_said() -> None:
    assert "steps-by-backward" in found(run(rank(steps=[step(0, 0, 10, StepEnd.BACKWARD)])))
    assert "steps-by-backward" not in found(run(trained()))


def test_compute_without_a_profiler_is_called_coarse() -> None:
    assert "coarse-compute" in found(run(trained()))
    profiled = trained(windows=[window(0, 400 * MS, (0, 60 * MS))])
    assert "coarse-compute" not in found(run(profiled))


def asked(*ranks: RankRun) -> Run:
    """Traced with profile=."""
    return replace(run(*ranks), manifest={"profile": True})


def test_who_asked_for_a_window_that_never_came_is_told_so_and_not_to_ask() -> None:
    codes = found(asked(trained(calls=[call(1, 0, done_at_ns=5), call(2, 1)])))
    assert "completed no window in 4 steps" in codes["coarse-compute"].message
    for code in ("coarse-compute", "approximate-overlap", "unknown-exec"):
        assert "trace with profile=" not in codes[code].message and "window" in codes[code].message


def test_windows_that_hold_no_whole_step_are_told_so() -> None:
    short = trained(windows=[window(10 * MS, 90 * MS, (10 * MS, 60 * MS))])
    assert "No profiler window covers a whole step" in found(asked(short))["coarse-compute"].message


def test_what_ran_before_the_window_is_not_for_want_of_one() -> None:
    """As the broadcasts of a constructor do."""
    before = [call(1, 0, op="broadcast"), call(2, 1, done_at_ns=5)]
    windows = [window(200 * MS, 400 * MS, (200 * MS, 260 * MS))]
    codes = found(asked(trained(windows=windows, calls=before)))
    for code in ("approximate-overlap", "unknown-exec"):
        assert "outside of the profiler's windows" in codes[code].message
    assert codes["unknown-exec"].severity == "info"


def test_what_a_window_should_have_shown_and_did_not_is_still_a_warning() -> None:
    inside = [call(1, 201 * MS, op="broadcast")]
    windows = [window(200 * MS, 400 * MS, (200 * MS, 260 * MS))]
    finding = found(asked(trained(windows=windows, calls=inside)))["unknown-exec"]
    assert finding.severity == "warning" and "outside" not in finding.message


def test_the_first_collective_that_failed_is_named_with_its_error_and_the_others_are_counted() -> None:
    calls = [
        call(1, 0, done_at_ns=40), call(3, 20, done_at_ns=31, error="Connection closed by peer."),
        call(2, 10, done_at_ns=30, error="Timed out", op="all_gather_"),
    ]  # fmt: skip
    finding = found(run(rank(1, calls=calls, steps=[step(7, 5, 100)])))["collective-failed"]
    assert (finding.severity, finding.where) == ("error", "rank 1")
    assert finding.message == (
        "all_gather number 2 of group 0 failed on rank 1 in step 7: Timed out (1 more failed after it)."
    )


def test_inferred_and_unknown_executions_are_counted() -> None:
    calls = [call(1, 0, done_at_ns=5), call(2, 1), call(3, 2, ran=(3, 4)), call(4, 2, waits=((3, 4),))]
    codes = found(run(rank(calls=calls)))
    assert "2 of 4" in codes["approximate-overlap"].message
    assert "of 1 only the end was measured" in codes["approximate-overlap"].message
    assert "of 1 only the launch and the end of the host's wait are known" in codes["approximate-overlap"].message
    assert "1 of 4" in codes["unknown-exec"].message
    assert codes["unknown-exec"].severity == "warning"


def test_a_few_unknown_executions_among_many_are_no_warning() -> None:
    calls = [call(1, 0, op="broadcast"), *(call(seq, seq, ran=(seq, seq + 1)) for seq in range(2, 40))]
    finding = found(run(rank(calls=calls)))["unknown-exec"]
    assert finding.severity == "info"
    assert "broadcast" in finding.message


@pytest.mark.parametrize(("origin", "is_told"), [("construction", False), ("rebuild", False), ("buffers", True)])
def test_what_ddp_sends_to_prepare_itself_is_not_missed(origin: str, is_told: bool) -> None:
    calls = [call(1, 0, op="broadcast", origin=origin), call(2, 2, ran=(3, 4))]
    assert ("unknown-exec" in found(run(rank(calls=calls)))) is is_told


def test_steps_that_ddptrace_held_up_are_named_with_the_time() -> None:
    finding = found(run(trained(pauses=[pause(201 * MS, 213 * MS)])))["paused-steps"]
    assert finding.where == "step 2"
    assert "12.0 ms" in finding.message


def test_a_dead_rank_is_named_with_its_last_whole_step() -> None:
    finding = found(run(trained(0), trained(1, clean=False)))["process-died"]
    assert (finding.severity, finding.where) == ("error", "rank 1")
    assert "its last whole step is 3" in finding.message


def test_a_parameter_larger_than_the_cap_is_named_once() -> None:
    big = [trained(k, reducers=[reducer([1, 2, 3], layout(0, 0, (1, 2), (0,)), cap=10)]) for k in (0, 1)]
    findings = [f for f in analyze_run(run(*big)).findings if f.code == "bucket-over-cap"]
    assert len(findings) == 1
    assert "p2" in findings[0].message


def test_the_most_exposed_bucket_is_named_with_its_time_and_its_share_of_the_step() -> None:
    finding = found(run(trained(0), trained(1)))["exposed-bucket"]
    assert finding.where == "reducer 1, layout 0, bucket 1"
    assert "(p0)" in finding.message
    assert "30.0 ms" in finding.message
    assert "30 %" in finding.message


def test_hidden_communication_is_praised_and_no_bucket_blamed() -> None:
    codes = found(run(trained(last_ran_ms=1)))
    assert "well-hidden" in codes
    assert "well-hidden" not in found(run(trained(last_ran_ms=1), world_size=1))  # it sends nothing to anybody
    assert "exposed-bucket" not in codes


def summary_of(*ranks: RankRun) -> Any:
    return summarize(analyze_run(run(*ranks)))


def test_the_typical_step_leaves_out_first_and_paused_steps() -> None:
    summary = summary_of(trained(0, pauses=[pause(201 * MS, 203 * MS)]), trained(1))
    assert summary.steps == 2 + 2  # a step that one rank is judged without is left out on all
    assert summary.population == "steps 1 and 3, the middle of the steps except the first and paused ones"
    assert (summary.wall_ns, summary.comm_ns, summary.hidden_ns) == (100 * MS, 40 * MS, 10 * MS)
    assert summary.overlap_ratio == 0.25


def test_of_profiled_and_other_steps_only_the_profiled_count() -> None:
    summary = summary_of(trained(0, windows=[window(200 * MS, 300 * MS, (200 * MS, 260 * MS))]), trained(1))
    assert (summary.steps, summary.profiled) == (1, True)
    assert summary.evidence is Evidence.BACKEND


def test_a_run_of_one_step_is_judged_by_it() -> None:
    summary = summary_of(trained(count=1))
    assert (summary.steps, summary.population, summary.wall_ns) == (1, "all steps", 100 * MS)


def test_parts_and_phases_of_the_typical_step_are_partitions() -> None:
    summary = summary_of(trained())
    assert {part.name: part.ns for part in summary.parts} == {
        "compute": 70 * MS, "exposed_comm": 30 * MS, "exposed_memory": 0, "idle": 0,
    }  # fmt: skip
    assert sum(part.ratio for part in summary.parts) == pytest.approx(1)
    assert sum(phase.ratio for phase in summary.phases) == pytest.approx(1)
    assert {phase.name: phase.ratio for phase in summary.phases}["backward"] == pytest.approx(0.6)


def test_buckets_are_ordered_by_what_they_cost_and_averaged_over_ranks() -> None:
    summary = summary_of(trained(0, last_ran_ms=10), trained(1, last_ran_ms=30))
    first, second = summary.buckets
    assert summary.worst == first
    assert (first.index, first.parameters, first.is_last, first.steps) == (1, ("p0",), True, 6)
    assert (first.comm_ns, first.exposed_charged_ns, first.hidden_ns) == (20 * MS, 20 * MS, 0)
    assert (second.index, second.exposed_charged_ns, second.hidden_ns) == (0, 0, 10 * MS)
    assert [(one.rank, one.steps, one.exposed_comm_ns) for one in summary.ranks] == [(0, 3, 10 * MS), (1, 3, 30 * MS)]


def test_a_summary_of_nothing_knows_nothing() -> None:
    summary = summary_of(rank())
    assert (summary.steps, summary.wall_ns, summary.overlap_ratio, summary.worst, summary.parts) == (
        0,
        None,
        None,
        None,
        (),
    )
    assert len(summary.buckets) == 0


def test_rows_are_sorted_by_rank_then_time_and_json_has_the_documented_keys() -> None:
    result: Result = analyze_run(run(trained(1), trained(0)))
    assert [row.rank for row in result.ranks] == [0, 1]
    assert [(row.rank, row.begin_at_ns) for row in result.steps] == sorted(
        (row.rank, row.begin_at_ns) for row in result.steps
    )
    for table in (result.buckets, result.collectives):
        assert [(row.rank, row.launch_at_ns) for row in table] == sorted((row.rank, row.launch_at_ns) for row in table)
    keys = {"summary", "schema", "run_id", "zero_unix_ns", "ranks", "steps", "buckets", "collectives", "findings"}
    assert keys <= result.to_json_dict().keys()


def test_the_summary_in_the_json_is_the_typical_step() -> None:
    told = analyze_run(run(trained())).to_json_dict()["summary"]
    assert (told["steps"], told["wall_ns"], told["comm_ns"], told["overlap_ratio"]) == (3, 100 * MS, 40 * MS, 0.25)
    assert told["parts"][1] == {"name": "exposed_comm", "ns": 30 * MS, "ratio": 0.3}
    assert told["all_steps"] == {"steps": 3, "wall_median_ns": 100 * MS, "wall_p95_ns": 100 * MS}
    assert told["typical"] == {
        "steps": 3,
        "population": told["population"],
        "wall_ns": 100 * MS,
        "window_ns": 100 * MS,
    }
    assert not told.keys() & {"buckets", "ranks", "worst"}
    assert b'"evidence":"backend"' in msgspec.json.encode(told)


def test_the_lengths_of_all_steps_are_told_beside_the_typical_one() -> None:
    """Step 0, which takes 700 ns, does not count."""
    marks = [step(k, begin, end) for k, (begin, end) in enumerate(pairwise((0, 700, *range(800, 2700, 100))))]
    every = summary_of(rank(steps=marks)).all_steps
    assert (every.steps, every.wall_median_ns, every.wall_p95_ns) == (19, 100, 100)
    slow = [*marks[:19], step(19, marks[18].end_at_ns, marks[18].end_at_ns + 900)]
    every = summary_of(rank(steps=slow)).all_steps
    assert (every.steps, every.wall_median_ns, every.wall_p95_ns) == (19, 100, 900)


def test_that_steps_under_the_profiler_took_longer_is_said() -> None:
    """Steps 1 and 2 of 100 ms, step 3, which the window holds whole, of 180 ms."""
    ends = (0, 100, 200, 300, 480)
    marks = [step(k, begin * MS, end * MS) for k, (begin, end) in enumerate(pairwise(ends))]
    windows = [window(300 * MS, 480 * MS, (300 * MS, 360 * MS))]
    message = found(run(trained(steps=marks, windows=windows)))["profiled-steps-differ"].message
    assert "1.8 times as long" in message and "180 ms of 1 rank-steps, against 100 ms of 2" in message
    assert message.endswith("They do not show how the typical step divides.")
    shorter = trained(
        steps=[*marks[:3], step(3, 300 * MS, 380 * MS)], windows=[window(300 * MS, 380 * MS, (300 * MS, 360 * MS))]
    )
    assert "profiled-steps-differ" not in found(run(shorter))  # the profiler made nothing faster
    alike = trained(windows=[window(300 * MS, 400 * MS, (300 * MS, 360 * MS))])
    assert "profiled-steps-differ" not in found(run(alike))


def test_the_backends_own_ranges_are_kept_for_the_picture() -> None:
    activity = analyze_run(run(trained(count=1))).activity[0]
    assert [entry[4] for entry in activity.backend] == [1, 2]
    assert activity.compute.tolist() == [[0, 60 * MS], [90 * MS, 100 * MS]]
