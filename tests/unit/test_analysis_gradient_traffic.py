"""What a reducer sent beside what it should, from hand-made records, and the three conditions that are wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from analysis_records import call, ddp_call, hook, layout, mark, rank, ready, reducer, run, step

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.traffic import GradientTrafficRow
from ddptrace.analysis.traffic.digest import traffic_report
from ddptrace.findings import Finding
from ddptrace.load.tables import Call
from ddptrace.schema import Phase

# One step from 100 to 200 with backwards at 110, 130 and 150 and its update at 180; two buckets of 40 and 24 bytes.
STEP = step(1, 100, 200)
BEGINS = (110, 130, 150)
BACKWARDS = [mark(Phase.BACKWARD, begin, begin + 15, ordinal) for ordinal, begin in enumerate(BEGINS)]
UPDATE = mark(Phase.OPTIMIZER, 180, 190)
REDUCER = reducer([6, 10], layout(0, 0, (1,), (0,)))


def sent(backward: int, **fields: Any) -> list[Call]:
    """Both buckets of a backward."""
    known = {"origin": "gradients"} | fields
    begin, seq = BEGINS[backward], 10 * backward
    return [ddp_call(seq + 1, begin + 2, 40, **known), ddp_call(seq + 2, begin + 4, 24, **known)]


def result_of(*calls: Call, **fields: Any) -> Result:
    known: dict[str, Any] = {
        "steps": [STEP], "phases": [*BACKWARDS, UPDATE], "reducers": [REDUCER],
        "ready": [ready(ordinal, (0, begin + 3), (1, begin + 1)) for ordinal, begin in enumerate(BEGINS)],
    }  # fmt: skip
    return analyze_run(run(rank(calls=calls, **(known | fields))))


NEVER = rank(
    steps=[STEP], phases=[*BACKWARDS, UPDATE], reducers=[REDUCER],
    ready=[ready(ordinal, (0, begin + 3), (1, begin + 1)) for ordinal, begin in enumerate(BEGINS)],
)  # fmt: skip


def only(result: Result) -> GradientTrafficRow:
    (row,) = result.gradient_traffic
    return row


def codes(result: Result) -> list[str]:
    return [finding.code for finding in result.findings if finding.code.startswith("synchronised-")]


def test_accumulation_that_sends_in_the_last_backward_is_as_it_should_be() -> None:
    result = result_of(*sent(2))
    row = only(result)
    assert (row.backwards, row.synchronised, row.last_synchronised, row.one_update) == (3, 1, True, True)
    assert (row.gradient_nbytes, row.nbytes, row.dtypes, row.hook) == (64, 64, ("float32",), None)
    assert codes(result) == []
    (one,) = traffic_report(result).gradients
    assert (one.backwards, one.synchronised, one.expected_nbytes, one.nbytes, one.sent_ratio) == (3, 1, 64, 64, 1.0)


def test_gradients_that_are_sent_in_every_backward_are_told_with_their_bytes() -> None:
    result = result_of(*sent(0), *sent(1), *sent(2))
    assert (only(result).synchronised, only(result).nbytes) == (3, 192)
    assert codes(result) == ["synchronised-often"]
    (finding,) = (one for one in result.findings if one.code == "synchronised-often")
    assert "3 times per update in step 1 (1 of 1 rank-steps)" in finding.message
    (one,) = traffic_report(result).gradients
    assert (one.expected_nbytes, one.sent_ratio) == (192, 1.0)


def test_gradients_that_are_never_sent_before_the_update_are_told() -> None:
    result = result_of()
    assert (only(result).synchronised, only(result).nbytes) == (0, 0)
    assert codes(result) == ["synchronised-never"]
    (one,) = traffic_report(result).gradients
    assert (one.expected_nbytes, one.sent_ratio) == (0, None)


def test_what_nobody_could_see_being_sent_is_not_missed() -> None:
    seen = analyze_run(run(NEVER))
    blind = analyze_run(run(NEVER, findings=[Finding("tap-failed", "warning", "rank 0", "it does not work")]))
    assert codes(seen) == ["synchronised-never"] and codes(blind) == []


def test_a_last_backward_that_stays_on_its_rank_is_told() -> None:
    result = result_of(*sent(0))
    assert not only(result).last_synchronised
    assert codes(result) == ["synchronised-early"]


def test_backwards_inside_the_update_are_its_closure_and_not_judged() -> None:
    result = result_of(*sent(0), *sent(1), *sent(2), phases=[*BACKWARDS, mark(Phase.OPTIMIZER, 105, 190)])
    assert (only(result).synchronised, only(result).one_update) == (3, False)
    assert codes(result) == []


def test_a_step_with_an_update_between_its_backwards_is_not_judged() -> None:
    result = result_of(*sent(0), *sent(2), phases=[*BACKWARDS, mark(Phase.OPTIMIZER, 126, 129), UPDATE])
    assert codes(result) == []


def test_a_step_without_an_update_is_not_judged() -> None:
    assert codes(result_of(phases=BACKWARDS)) == []


def test_a_reducer_that_took_no_part_in_a_backward_is_not_expected_to_send() -> None:
    # GIVEN a second reducer, whose parameters have no gradient in this step
    other = reducer([3], layout(0, 0, (0,)), number=2)
    result = result_of(*sent(2), reducers=[REDUCER, other])
    assert [row.reducer for row in result.gradient_traffic] == [1]


def test_with_several_reducers_gradients_that_stay_are_no_more_than_a_hint() -> None:
    other = reducer([3], layout(0, 0, (0,)), number=2)
    parts = [ready(2, (0, 151), number=2), *(ready(k, (0, begin + 1)) for k, begin in enumerate(BEGINS))]
    result = result_of(*sent(2), reducers=[REDUCER, other], ready=parts)
    (finding,) = (one for one in result.findings if one.code == "synchronised-never")
    assert finding.severity == "info"


def test_what_a_hook_sends_counts_as_it_was_sent() -> None:
    hooks = [hook(31, 152, 156, 170, backward=2, nbytes=40), hook(32, 157, 160, 170, index=1, backward=2, nbytes=24)]
    halves = [
        call(33, 153, nbytes_in=20, nbytes_out=0, dtype="float16", hook=31, origin="hook"),
        call(34, 158, nbytes_in=12, nbytes_out=0, dtype="float16", hook=32, origin="hook"),
    ]
    result = result_of(*halves, hooks=hooks)
    row = only(result)
    assert (row.synchronised, row.nbytes, row.dtypes, row.hook) == (1, 32, ("float16",), "my_hook")
    assert traffic_report(result).gradients[0].sent_ratio == 0.5


def test_a_hook_without_collectives_sent_an_unknown_number_of_bytes() -> None:
    result = result_of(hooks=[hook(31, 152, 156, 170, backward=2, nbytes=40)])
    assert (only(result).synchronised, only(result).nbytes) == (1, None)
    assert traffic_report(result).gradients[0].sent_ratio is None


def test_the_map_of_unused_parameters_and_the_buffers_are_no_gradients() -> None:
    others = [
        ddp_call(40, 160, 8, dtype="int32", origin="unused-parameters"),
        ddp_call(41, 161, 400, op="broadcast", origin="buffers"),
    ]
    assert only(result_of(*sent(2), *others)).nbytes == 64


def test_a_reducer_one_of_whose_backwards_was_not_seen_is_not_judged() -> None:
    # GIVEN gradients that were sent outside of what is known as a backward
    seen = {"phases": [BACKWARDS[2], UPDATE], "ready": [ready(2, (0, 153), (1, 151))]}
    assert len(result_of(**seen).gradient_traffic) == 1
    assert len(result_of(*sent(0), **seen).gradient_traffic) == 0


def test_a_backward_that_the_rank_died_in_takes_nothing_from_its_whole_steps() -> None:
    # GIVEN a bucket that was launched after the last whole step, in a backward whose end nobody recorded
    result = result_of(*sent(2), ddp_call(71, 210, 40, origin="gradients"), clean=False)
    assert (only(result).synchronised, only(result).nbytes) == (1, 64)
    # AND what was wrong in the whole step is told all the same
    assert codes(result_of(*sent(0), ddp_call(71, 210, 40, origin="gradients"), clean=False)) == ["synchronised-early"]


def test_frozen_parameters_are_in_no_bucket_and_not_expected() -> None:
    # GIVEN a third parameter of 400 bytes, larger than a bucket may be, that no bucket holds
    with_frozen = reducer([6, 10, 100], layout(0, 0, (1,), (0,)), cap=48)
    result = result_of(*sent(2), reducers=[with_frozen])
    assert (only(result).gradient_nbytes, only(result).nbytes) == (64, 64)
    assert traffic_report(result).gradients[0].sent_ratio == 1.0
    assert "bucket-over-cap" not in {finding.code for finding in result.findings}
    # AND one that a bucket does hold is told
    held = reducer([6, 10, 100], layout(0, 0, (1,), (0,), (2,)), cap=48)
    (told,) = (one for one in result_of(reducers=[held]).findings if one.code == "bucket-over-cap")
    assert "Parameter p2 alone" in told.message


def test_what_is_expected_follows_the_layout_that_is_in_force() -> None:
    # GIVEN a parameter that is frozen from the third backward of the rank on
    thawed = reducer([6, 10, 100], layout(0, 0, (2,), (1,), (0,)), layout(1, 2, (1,), (0,)))
    assert only(result_of(*sent(2), reducers=[thawed])).gradient_nbytes == 64
    frozen_later = reducer([6, 10, 100], layout(0, 0, (2,), (1,), (0,)), layout(1, 3, (1,), (0,)))
    assert only(result_of(*sent(2), reducers=[frozen_later])).gradient_nbytes == 464


def test_parameters_of_other_types_than_were_sent_are_told_apart() -> None:
    row = only(result_of(*sent(2, dtype="float16")))
    assert (row.dtypes, row.parameter_dtypes, row.hook) == (("float16",), ("float32",), None)


def of_hook_before_the_trace(backward: int) -> Call:
    """What a communication hook sent that the program registered before the trace: no record of its bucket."""
    return call(10 * backward + 1, BEGINS[backward] + 2, origin="hook")


def test_what_a_hook_sends_that_was_registered_before_the_trace_counts_as_sent() -> None:
    result = result_of(of_hook_before_the_trace(2))
    assert (only(result).synchronised, only(result).last_synchronised) == (1, True)
    assert codes(result) == []


def test_of_two_reducers_nothing_is_told_where_such_a_hook_sends_for_one_of_them() -> None:
    second = replace(REDUCER, reducer=REDUCER.reducer + 1)
    result = result_of(of_hook_before_the_trace(2), reducers=[REDUCER, second])
    assert not result.gradient_traffic and codes(result) == []
