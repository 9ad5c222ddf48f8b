"""Which communications carried which bucket."""

from __future__ import annotations

from typing import Any

from analysis_records import call, ddp_call, hook, layout, mark, rank, ready, reducer, run, step

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.collectives import BucketRow
from ddptrace.load.tables import RankRun
from ddptrace.schema import Evidence, Phase

BACKWARD = Phase.BACKWARD


def analyzed(*backwards: tuple[int, int], **fields: Any) -> Result:
    """One step from 0 to 100 with these backwards; parameters of 4, 8, 12, 16 bytes."""
    known: dict[str, Any] = {
        "steps": [step(0, 0, 100)], "phases": [mark(BACKWARD, *span, k) for k, span in enumerate(backwards)],
        "reducers": [reducer([1, 2, 3, 4], layout(0, 0, (2, 3), (0, 1)))],
    }  # fmt: skip
    return analyze_run(run(rank(**(known | fields))))


def keys(result: Result) -> list[tuple[int, int, int, int]]:
    return [(row.reducer, row.layout, row.index, row.backward) for row in result.buckets]


def codes(result: Result) -> set[str]:
    return {finding.code for finding in result.findings}


def test_ddps_calls_are_its_buckets_in_order_with_all_that_is_known_of_them() -> None:
    calls = ddp_call(1, 30, 28, ran=(33, 40), done_at_ns=42), ddp_call(2, 60, 12, ran=(61, 80))
    result = analyzed((10, 90), calls=calls, ready=[ready(0, (3, 12), (2, 29), (1, 50), (0, 59))])
    assert result.buckets[0] == BucketRow(
        rank=0, step=0, backward=0, reducer=1, layout=0, index=0, nbytes=28, first_ready_at_ns=12, ready_at_ns=29,
        launch_at_ns=30, exec_start_at_ns=33, exec_end_at_ns=40, wait_ns=0, comm_ns=7, hidden_ns=7, exposed_ns=0,
        exposed_charged_ns=0, evidence=Evidence.BACKEND, parameters=("p2", "p3"), queue_ns=3, done_at_ns=42, hook=None,
        hook_ns=None, seqs=(1,),
    )  # fmt: skip
    assert (result.buckets[1].wait_ns, result.buckets[1].exposed_charged_ns) == (20, 19)
    assert [row.bucket for row in result.collectives] == [(1, 0, 0), (1, 0, 1)]


def test_a_gradient_that_was_not_accumulated_leaves_its_bucket_without_ready_times() -> None:
    calls = ddp_call(1, 30, 28), ddp_call(2, 60, 12)
    result = analyzed((10, 90), calls=calls, ready=[ready(0, (3, 12), (2, 29))])
    assert [(row.first_ready_at_ns, row.ready_at_ns) for row in result.buckets] == [(12, 29), (None, None)]


def test_calls_that_do_not_fit_a_bucket_are_collectives_only() -> None:
    # GIVEN between and after the buckets other calls of C++, such as the bitmap of unused parameters
    calls = ddp_call(1, 30, 28), ddp_call(2, 40, 7), ddp_call(3, 60, 12), ddp_call(4, 61, 5)
    result = analyzed((10, 90), calls=calls)
    assert [row.seqs for row in result.buckets] == [(1,), (3,)]
    assert len(result.collectives) == 4
    assert "bucket-layout-unknown" not in codes(result)


def test_the_builtin_half_precision_hook_sends_half_the_bytes_of_the_same_bucket() -> None:
    calls = ddp_call(1, 30, 14, dtype="float16"), ddp_call(2, 60, 6, dtype="bfloat16")
    result = analyzed((10, 90), calls=calls)
    assert [(row.index, row.nbytes) for row in result.buckets] == [(0, 28), (1, 12)]
    assert [row.nbytes for row in result.collectives] == [14, 6]


def test_a_backward_without_communication_is_counted_but_has_no_buckets() -> None:
    # GIVEN gradient accumulation: only the last of three backwards synchronises
    calls = ddp_call(1, 70, 28), ddp_call(2, 80, 12)
    assert keys(analyzed((0, 20), (30, 50), (60, 90), calls=calls)) == [(1, 0, 0, 2), (1, 0, 1, 2)]


def test_two_reducers_in_one_backward_keep_their_own_buckets() -> None:
    two = reducer([3], layout(0, 0, (0,)), number=2)
    calls = ddp_call(1, 20, 28), ddp_call(2, 30, 12, reducer=2), ddp_call(3, 40, 12)
    result = analyzed((10, 90), calls=calls, reducers=[reducer([1, 2, 3, 4], layout(0, 0, (2, 3), (0, 1))), two])
    assert keys(result) == [(1, 0, 0, 0), (2, 0, 0, 0), (1, 0, 1, 0)]


def test_after_a_rebuild_the_new_layout_names_the_buckets() -> None:
    rebuilt = reducer([1, 2, 3, 4], layout(0, 0, (0, 1, 2, 3)), layout(1, 1, (3,), (2,), (0, 1)))
    calls = ddp_call(1, 15, 40), ddp_call(2, 50, 16), ddp_call(3, 60, 12), ddp_call(4, 70, 12)
    result = analyzed((10, 40), (45, 90), calls=calls, reducers=[rebuilt])
    assert keys(result) == [(1, 0, 0, 0), (1, 1, 0, 1), (1, 1, 1, 1), (1, 1, 2, 1)]
    assert [row.parameters for row in result.buckets][1:] == [("p3",), ("p2",), ("p0", "p1")]
    assert "layout-rebuilt" in codes(result)


def test_a_layout_that_was_dated_one_backward_late_is_still_found() -> None:
    rebuilt = reducer([1, 2, 3, 4], layout(0, 0, (0, 1, 2, 3)), layout(1, 2, (3,), (0, 1, 2)))
    calls = ddp_call(1, 15, 40), ddp_call(2, 50, 16), ddp_call(3, 60, 24)
    result = analyzed((10, 40), (45, 90), calls=calls, reducers=[rebuilt])
    assert keys(result) == [(1, 0, 0, 0), (1, 1, 0, 1), (1, 1, 1, 1)]


def test_calls_that_fit_no_layout_are_said_and_not_guessed() -> None:
    result = analyzed((10, 90), calls=[ddp_call(1, 30, 99), ddp_call(2, 60, 12)])
    assert len(result.buckets) == 0
    assert "bucket-layout-unknown" in codes(result)


def test_a_hook_registered_before_the_trace_is_found_by_its_calls() -> None:
    calls = call(1, 30, nbytes_in=28, reducer=1), call(2, 60, nbytes_in=12, reducer=1)
    result = analyzed((10, 90), calls=calls, ready=[ready(0, (3, 12), (2, 29), (1, 50), (0, 59))])
    assert keys(result) == [(1, 0, 0, 0), (1, 0, 1, 0)]


def test_python_calls_are_no_buckets_of_a_reducer_that_took_no_part() -> None:
    calls = call(1, 30, nbytes_in=28), call(2, 60, nbytes_in=12)
    assert keys(analyzed((10, 90), calls=calls, ready=[ready(7, (0, 5))])) == []


def test_python_calls_outside_backward_are_no_buckets() -> None:
    assert keys(analyzed((10, 20), calls=[call(1, 30, nbytes_in=28), call(2, 60, nbytes_in=12)])) == []


def test_a_hook_tells_its_bucket_and_all_its_calls_belong_to_it() -> None:
    # GIVEN a hook that issues two collectives which overlap
    calls = call(2, 31, hook=1, ran=(32, 50)), call(3, 32, hook=1, ran=(40, 60), done_at_ns=61)
    result = analyzed((10, 90), hooks=[hook(1, 30, 35, 62, nbytes=28)], calls=calls)
    (row,) = result.buckets
    assert (row.index, row.nbytes, row.parameters, row.seqs) == (0, 28, ("p2", "p3"), (2, 3))
    assert (row.launch_at_ns, row.exec_start_at_ns, row.exec_end_at_ns, row.comm_ns) == (31, 32, 60, 28)
    assert (row.hook, row.hook_ns, row.done_at_ns) == ("my_hook", 5, 62)
    assert row.exposed_charged_ns == sum(c.exposed_charged_ns or 0 for c in result.collectives)


def test_a_hook_without_calls_is_a_bucket_from_its_begin_to_done() -> None:
    (row,) = analyzed((10, 90), hooks=[hook(1, 30, 35, 62, nbytes=12, index=1)]).buckets
    assert (row.index, row.seqs, row.launch_at_ns, row.exec_start_at_ns, row.exec_end_at_ns) == (1, (), 30, 30, 62)
    assert row.evidence is Evidence.CALLBACK


def test_beside_hooks_what_ddp_sends_itself_is_no_bucket() -> None:
    hooks = hook(1, 30, 35, 40, nbytes=28), hook(2, 50, 55, 60, nbytes=12, index=1)
    result = analyzed((10, 90), hooks=hooks, calls=[ddp_call(3, 56, 28), ddp_call(4, 57, 12)])
    assert [row.hook for row in result.buckets] == ["my_hook", "my_hook"]


def test_a_bucket_of_which_one_call_is_unknown_is_unknown() -> None:
    calls = call(2, 31, hook=1, ran=(32, 50)), call(3, 32, hook=1)
    (row,) = analyzed((10, 90), hooks=[hook(1, 30, 35, None, nbytes=28)], calls=calls).buckets
    assert (row.exec_start_at_ns, row.comm_ns, row.exposed_charged_ns, row.evidence, row.queue_ns) == (None,) * 5


def test_evidence_of_a_bucket_is_its_weakest() -> None:
    calls = call(2, 31, hook=1, ran=(32, 50)), call(3, 32, hook=1, done_at_ns=60)
    (row,) = analyzed((10, 90), hooks=[hook(1, 30, 35, 60, nbytes=28)], calls=calls).buckets
    assert row.evidence is Evidence.CALLBACK


def test_an_update_inside_backward_does_not_move_the_next_steps_backwards() -> None:
    # GIVEN an optimizer inside backward: the step ends before backward does, every time
    def one_step(k: int) -> tuple[Any, ...]:
        at = 100 * k
        return ddp_call(2 * k + 1, at + 30, 28, ran=(at + 30, at + 40)), ddp_call(
            2 * k + 2, at + 60, 12, ran=(at + 60, at + 97)
        )

    one: RankRun = rank(
        steps=[step(0, 0, 95), step(1, 95, 195)],
        phases=[mark(BACKWARD, 10, 99, 0), mark(BACKWARD, 110, 199, 1)],
        reducers=[reducer([1, 2, 3, 4], layout(0, 0, (2, 3), (0, 1)))],
        calls=[*one_step(0), *one_step(1)],
    )
    result = analyze_run(run(one))
    assert [(row.step, row.backward, row.index) for row in result.buckets] == [
        (0, 0, 0),
        (0, 0, 1),
        (1, 0, 0),
        (1, 0, 1),
    ]
    # THEN the bucket that crossed the step's end counts whole, and its collective in both steps
    crossing = [row for row in result.collectives if row.seq == 2]
    assert [row.step for row in crossing] == [0, 1]
    assert result.buckets[1].comm_ns == 37 == sum(row.comm_ns or 0 for row in crossing)
    assert result.buckets[1].exposed_charged_ns == sum(row.exposed_charged_ns or 0 for row in crossing)


def test_backwards_of_one_step_have_different_numbers_even_where_one_began_before_it() -> None:
    one = rank(
        steps=[step(0, 0, 50), step(1, 50, 200)],
        phases=[mark(BACKWARD, 10, 90, 0), mark(BACKWARD, 110, 190, 1)],
        reducers=[reducer([1, 2, 3, 4], layout(0, 0, (2, 3), (0, 1)))],
        calls=[ddp_call(1, 30, 28), ddp_call(2, 60, 12), ddp_call(3, 130, 28), ddp_call(4, 160, 12)],
    )
    result = analyze_run(run(one))
    assert [(row.step, row.backward, row.index) for row in result.buckets] == [
        (0, 0, 0),
        (1, 0, 1),
        (1, 1, 0),
        (1, 1, 1),
    ]


def test_of_two_layouts_with_the_same_sizes_the_valid_one_names_the_parameters() -> None:
    same = reducer([2, 2], layout(0, 0, (0,), (1,)), layout(1, 1, (1,), (0,)))
    calls = [ddp_call(seq, at, 8) for seq, at in enumerate((15, 20, 50, 60), start=1)]
    result = analyzed((10, 40), (45, 90), calls=calls, reducers=[same])
    assert [(row.layout, row.parameters) for row in result.buckets] == [
        (0, ("p0",)),
        (0, ("p1",)),
        (1, ("p1",)),
        (1, ("p0",)),
    ]
