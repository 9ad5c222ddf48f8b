"""Where the host was blocked: waits that were seen, and stock DDP's own at the end of backward, which nobody sees."""

from __future__ import annotations

from typing import Any

from analysis_records import (
    ENGINE,
    MAIN,
    OTHER_THREAD,
    call,
    ddp_call,
    hook,
    layout,
    mark,
    rank,
    ready,
    reducer,
    run,
    step,
    window,
)

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.steps import StepRow
from ddptrace.schema import Phase

FORWARD, BACKWARD = Phase.FORWARD, Phase.BACKWARD

TWO_BUCKETS = reducer([2, 3], layout(0, 0, (1,), (0,)))


def analyzed(**fields: Any) -> Result:
    """One step from 0 to 100 that is all backward, of two buckets: p1 ready at 30, p0 at 60."""
    known: dict[str, Any] = {
        "steps": [step(0, 0, 100)], "phases": [mark(BACKWARD, 0, 100, 0)], "reducers": [TWO_BUCKETS],
        "ready": [ready(0, (1, 30), (0, 60))],
    }  # fmt: skip
    return analyze_run(run(rank(**(known | fields))))


def waits(result: Result) -> list[int | None]:
    return [row.wait_ns for row in result.buckets]


def the_step(result: Result) -> StepRow:
    (row,) = result.steps
    return row


def test_ddps_own_wait_lasts_from_the_last_gradient_to_the_last_execution() -> None:
    # GIVEN two buckets of which the second still runs when the last gradient is ready
    calls = ddp_call(1, 31, 12, ran=(32, 50)), ddp_call(2, 61, 8, ran=(62, 90), issued_at_ns=63)

    result = analyzed(calls=calls)

    # THEN the host was blocked from 63, when it had issued the last bucket, to 90, and computed all the rest
    assert the_step(result).wait_ns == 27
    assert the_step(result).compute_ns == 73
    assert the_step(result).hidden_ns == 18 + 1
    assert the_step(result).exposed_comm_ns == 27
    assert waits(result) == [0, 27]


def test_buckets_share_the_wait_in_launch_order() -> None:
    calls = ddp_call(1, 31, 12, ran=(32, 75)), ddp_call(2, 61, 8, ran=(62, 90))
    assert waits(analyzed(calls=calls)) == [14, 15]


def test_a_bucket_that_ended_before_another_was_waited_for_costs_nothing() -> None:
    calls = ddp_call(1, 31, 12, ran=(32, 90)), ddp_call(2, 61, 8, ran=(62, 80))
    assert waits(analyzed(calls=calls)) == [29, 0]


def test_the_wait_ends_with_backward_at_the_latest() -> None:
    calls = ddp_call(1, 31, 12, ran=(32, 50)), ddp_call(2, 61, 8, ran=(62, 95))
    result = analyzed(calls=calls, phases=[mark(BACKWARD, 0, 92, 0)])
    assert the_step(result).wait_ns == 31


def test_an_unknown_execution_may_block_until_backward_ends() -> None:
    calls = ddp_call(1, 31, 12, ran=(32, 50)), ddp_call(2, 61, 8)
    result = analyzed(calls=calls)
    assert the_step(result).wait_ns == 39
    assert the_step(result).compute_ns == 61
    assert waits(result) == [0, None]


def test_the_bitmap_of_unused_parameters_is_waited_for_too() -> None:
    # GIVEN after the buckets a small all-reduce of DDP's own
    calls = ddp_call(1, 31, 12, ran=(32, 50)), ddp_call(2, 61, 8, ran=(62, 80)), ddp_call(3, 62, 4, ran=(80, 88))
    result = analyzed(calls=calls)
    assert len(result.buckets) == 2
    assert the_step(result).wait_ns == 26


def test_without_a_sync_backward_waits_for_nothing() -> None:
    result = analyzed(calls=())
    assert the_step(result).wait_ns == 0
    assert the_step(result).compute_ns == 100


def test_in_a_profiled_step_the_wait_is_less_what_the_host_still_computed() -> None:
    calls = ddp_call(1, 31, 12, ran=(32, 75)), ddp_call(2, 61, 8, ran=(62, 90))
    result = analyzed(calls=calls, windows=[window(0, 100, (0, 64), (85, 95))])
    assert the_step(result).wait_ns == 85 - 64
    assert waits(result) == [75 - 64, 85 - 75]
    assert the_step(result).compute_ns == 74


def test_two_reducers_wait_in_one_tail() -> None:
    other = reducer([5], layout(0, 0, (0,)), number=2)
    calls = (
        ddp_call(1, 31, 12, ran=(32, 50)),
        ddp_call(2, 61, 8, ran=(62, 80)),
        ddp_call(3, 70, 20, ran=(70, 90), reducer=2),
    )
    result = analyzed(
        calls=calls, reducers=[TWO_BUCKETS, other], ready=[ready(0, (1, 30), (0, 60)), ready(0, (0, 69), number=2)]
    )
    assert [(row.reducer, row.wait_ns) for row in result.buckets] == [(1, 0), (1, 10), (2, 10)]
    assert the_step(result).wait_ns == 20


def test_a_hook_whose_future_completes_on_another_thread_is_waited_for() -> None:
    # GIVEN a hook that communicates by other means, done at 60 and 90
    hooks = hook(1, 30, 32, 60, index=0, nbytes=12), hook(2, 60, 65, 90, index=1)
    result = analyzed(hooks=hooks)
    assert the_step(result).wait_ns == 25
    assert the_step(result).comm_ns == 60
    assert the_step(result).hidden_ns == 35
    assert waits(result) == [0, 25]


def test_a_hook_that_works_on_after_its_collective_is_waited_for_until_its_future_completes() -> None:
    one, two = hook(1, 30, 32, 60, index=0, nbytes=12), hook(3, 60, 65, 95, index=1)
    calls = call(2, 31, hook=1, ran=(31, 50), reducer=1), call(4, 62, hook=3, ran=(63, 80), reducer=1)
    result = analyzed(hooks=[one, two], calls=calls)
    assert waits(result) == [0, 30]
    assert the_step(result).exposed_comm_ns == 15


def test_a_seen_wait_is_not_compute() -> None:
    calls = [call(1, 10, ran=(12, 40), waits=((20, 41),))]
    result = analyzed(calls=calls, phases=[mark(FORWARD, 0, 100)])
    assert the_step(result).wait_ns == 21
    assert the_step(result).exposed_comm_ns == 20
    assert result.collectives[0].wait_ns == 21


def test_a_wait_that_is_seen_twice_counts_once() -> None:
    calls = [ddp_call(1, 31, 12, ran=(32, 90), waits=((65, 90),)), ddp_call(2, 61, 8, ran=(62, 80))]
    assert waits(analyzed(calls=calls)) == [29, 0]


def test_a_synchronous_call_blocks_until_it_is_over() -> None:
    calls = [call(1, 10, issued_at_ns=12, done_at_ns=40, is_sync=True)]
    result = analyzed(calls=calls, phases=[mark(FORWARD, 0, 100)])
    assert the_step(result).wait_ns == 28
    assert the_step(result).hidden_ns == 2


def test_what_a_helper_thread_waits_for_blocks_no_computation() -> None:
    calls = [call(1, 10, ran=(12, 40), waits=((20, 41),), thread=OTHER_THREAD)]
    result = analyzed(calls=calls, phases=[mark(BACKWARD, 0, 100, 0, MAIN)])
    assert the_step(result).compute_ns == 100
    assert the_step(result).wait_ns is None
    assert result.collectives[0].wait_ns is None


def test_the_engines_own_thread_is_a_training_thread() -> None:
    hooks = [hook(1, 10, 30, 30, nbytes=12)]
    calls = [call(2, 11, ran=(12, 28), waits=((13, 29),), thread=ENGINE, hook=1)]
    result = analyzed(hooks=hooks, calls=calls, ready=[])
    assert the_step(result).compute_ns == 84


def test_a_step_whose_waits_nobody_saw_does_not_claim_that_there_were_none() -> None:
    result = analyzed(calls=[call(1, 10, ran=(12, 40))], phases=[mark(FORWARD, 0, 100)])
    assert the_step(result).wait_ns is None
    assert result.collectives[0].wait_ns is None


def test_a_step_without_communication_waited_for_nothing() -> None:
    assert the_step(analyzed(phases=[mark(FORWARD, 0, 100)])).wait_ns == 0
