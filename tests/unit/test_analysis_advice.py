"""What a reader is told to try: only what can help where the time goes, and nothing that is done already."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from analysis_records import call, ddp_call, layout, mark, rank, ready, reducer, run, step

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.findings.advice import bucket_findings
from ddptrace.analysis.findings.waiting import MeanWait
from ddptrace.analysis.rank_tables import facts_of
from ddptrace.analysis.rank_view import view_of
from ddptrace.analysis.ranks.blame import Blame
from ddptrace.analysis.result import Result
from ddptrace.analysis.savings import savings
from ddptrace.analysis.summary import summarize
from ddptrace.analysis.tables.collectives import BucketRow
from ddptrace.analysis.tables.ranks import SuspectRow
from ddptrace.analysis.tables.steps import SavingRow
from ddptrace.analysis.tables.table import Table
from ddptrace.analysis.tables.traffic import GradientTrafficRow
from ddptrace.findings import Finding
from ddptrace.load.tables import Group, RankRun, Run
from ddptrace.reducer.bucket import plan_buckets
from ddptrace.schema import Phase

MS = 1_000_000
MIB = 1 << 20
Spans = Sequence[tuple[int, int]]


def trained(
    number: int = 0,
    *,
    numels: Sequence[int] = (1, 2, 3),
    buckets: Sequence[tuple[int, ...]] = ((1, 2), (0,)),
    rans: Sequence[Spans] = (((45, 55), (60, 90)),),
    ready_ms: int | None = None,
    **fields: Any,
) -> RankRun:
    """Four steps of 200 ms: forward 0..30, backward 30..190. The buckets run at `rans` of each step, of which there is
    one for all or one for each, in ms since its begin; they are ready then, or all at `ready_ms`."""
    calls, phases, gradients = [], [], []
    for k in range(4):
        at = 200 * MS * k
        phases += [mark(Phase.FORWARD, at, at + 30 * MS), mark(Phase.BACKWARD, at + 30 * MS, at + 190 * MS, k)]
        spans = rans[k % len(rans)]
        begins = [begin if ready_ms is None else ready_ms for begin, _ in spans]
        gradients.append(ready(k, *((i, at + begins[j] * MS) for j, one in enumerate(buckets) for i in one)))
        for j, (one, (begin, end)) in enumerate(zip(buckets, spans, strict=True)):
            seq, nbytes = len(buckets) * k + j + 1, 4 * sum(numels[i] for i in one)
            calls.append(ddp_call(seq, at + begins[j] * MS, nbytes, ran=(at + begin * MS, at + end * MS)))
    known: dict[str, Any] = {
        "steps": [step(k, 200 * MS * k, 200 * MS * (k + 1)) for k in range(4)], "phases": phases, "calls": calls,
        "ready": gradients, "reducers": [reducer(numels, layout(0, 0, *buckets))],
    }  # fmt: skip
    return rank(number, **(known | fields))


def found(one: Run, **changes: Any) -> list[Finding]:
    """The findings on the buckets of a result of which a part is replaced."""
    result: Result = replace(analyze_run(one), **changes)
    facts = [facts_of(view_of(rank)) for rank in one.ranks]
    return list(bucket_findings(summarize(result), result, facts, comparable=True))


def advice(one: Run, **changes: Any) -> Finding:
    return found(one, **changes)[-1]


def test_a_last_bucket_of_many_parameters_is_to_be_made_smaller() -> None:
    finding = advice(run(trained(numels=(5, 5, 5, 9), buckets=((3,), (0, 1, 2)))))
    assert "A smaller bucket_cap_mb makes the last bucket smaller" in finding.message


def test_one_bucket_of_all_gradients_is_to_be_divided() -> None:
    finding = advice(run(trained(numels=(MIB, MIB, MIB), buckets=((0, 1, 2),), rans=(((45, 90),),))))
    assert "All gradients go in this one bucket" in finding.message
    assert "A bucket_cap_mb of at most 8 makes several buckets" in finding.message


@pytest.mark.parametrize(("order", "most"), [((2, 1, 0), 20), ((0, 1, 2), 12)])
def test_the_cap_that_is_told_to_divide_one_bucket_divides_it_and_a_larger_one_does_not(
    order: tuple[int, ...], most: int
) -> None:
    """The gradient that reaches a cap closes the bucket: of the bucket's 24 MiB, its last parameter does not count."""
    numels = (MIB, 2 * MIB, 3 * MIB)
    finding = advice(run(trained(numels=numels, buckets=(order,), rans=(((45, 90),),))))
    told = re.search(r"bucket_cap_mb of at most ([\d.]+) makes", finding.message)
    assert told and float(told[1]) == most
    counts = [
        len(plan_buckets(order, [4 * numel for numel in numels], "xxx", [cap])) for cap in (most * MIB, most * MIB + 1)
    ]
    assert counts[0] > 1 == counts[1]


def test_a_last_bucket_that_is_one_parameter_is_not_to_be_made_smaller_by_the_cap() -> None:
    finding = advice(run(trained()))
    assert "p0 is its only parameter, so a smaller bucket_cap_mb does not help" in finding.message


def test_a_last_bucket_that_is_mostly_one_parameter_is_not_to_be_made_smaller_by_the_cap() -> None:
    """Of 16.8 MB and 8 kB: as a weight and its bias."""
    finding = advice(run(trained(numels=(4_194_304, 2048, 9), buckets=((2,), (0, 1)))))
    assert "p0 alone has 16.8 MB of its 16.8 MB" in finding.message
    assert "makes the last bucket smaller" not in finding.message


LONG: Spans = ((45, 46), (60, 190))
"""More communication than compute: the second bucket runs for 130 ms."""


def test_where_bytes_take_the_time_fewer_are_advised() -> None:
    message = advice(run(trained(numels=(10**6, 2, 3), rans=[LONG]))).message
    assert "send fewer bytes (a compressing hook, gradient accumulation) or use a faster link" in message


@pytest.mark.parametrize("share", [0.4, 0.6])
def test_a_late_rank_silences_the_bucket_only_where_waiting_for_it_is_most_of_the_exposed_time(share: float) -> None:
    one = run(trained(numels=(10**6, 2, 3), rans=[LONG]))
    plain = analyze_run(one)
    exposed = summarize(plain).part("exposed_comm")
    assert exposed is not None
    cost_ns = round(share * exposed.ns)
    late = SuspectRow(1, "a", "forward", "forward", cost_ns, 0.1, cost_ns, cost_ns, True, 4, "it computed longer")
    suspects = Table(SuspectRow, [late])
    rows = savings(replace(plain, suspects=suspects), summarize(plain), Blame(suspects=(late,)))
    codes = [row.code for row in found(one, suspects=suspects, savings=Table(SavingRow, rows))]
    assert codes == (["exposed-bucket"] if share < 0.5 else [])


def test_a_faster_link_is_advised_under_reserve_where_ranks_are_not_here() -> None:
    world = [Group("0", (0, 1, 2), "gloo", 1)]
    ranks = [trained(k, numels=(10**6, 2, 3), rans=[LONG], groups=world) for k in range(3)]
    reserve = "only 2 of 3 ranks are compared here, and waiting for the others counts as communication"
    assert reserve not in advice(run(*ranks)).message
    message = advice(run(*ranks[:2])).message
    assert reserve in message and message.index(reserve) < message.index("faster link")


def test_of_few_bytes_fewer_are_not_advised() -> None:
    message = advice(run(trained(numels=(4800, 2, 3), rans=[LONG]))).message
    assert "19.2 kB is small, so the time is latency or waiting" in message
    assert "faster link" not in message


def test_bytes_that_a_larger_collective_moves_at_once_are_few_too() -> None:
    """400 kB take 130 ms where 4 MB took 1 ms."""
    message = advice(run(trained(numels=(100_000, 500_000, 500_000), rans=[LONG]))).message
    assert "400 kB is small" in message


def test_who_accumulates_is_not_told_to_accumulate() -> None:
    accumulated = GradientTrafficRow(
        0, 1, 1, "DistributedDataParallel of Net", gradient_nbytes=4, backwards=4, synchronised=1,
        last_synchronised=True, one_update=True, nbytes=4, dtypes=(), hook=None, parameter_dtypes=(),
    )  # fmt: skip
    one = run(trained(numels=(10**6, 2, 3), rans=[LONG]))
    told = advice(one, gradient_traffic=Table(GradientTrafficRow, [accumulated])).message
    assert "(a compressing hook)" in told and "accumulation" not in told


WAITED: Spans = ((45, 46), (61, 190))
LATE: Spans = ((45, 46), (180, 190))


def test_what_waits_for_late_ranks_is_not_told_to_take_a_faster_link() -> None:
    """Each rank is late in every other step, so that none of them is the late one. Of a step's 70.5 ms on a rank 11 are
    transfer: 1 of the first bucket, 10 of the second."""
    both = [trained(k, numels=(10**6, 2, 3), rans=rans) for k, rans in enumerate([(WAITED, LATE), (LATE, WAITED)])]
    result = analyze_run(run(*both))
    codes = {finding.code: finding.message for finding in result.findings}
    assert "run for 70.5 ms a step on a rank" in codes["waiting-for-ranks"]
    assert "Only 11.0 ms a step of that are transfer" in codes["waiting-for-ranks"]
    assert "6 collectives of 3 typical steps" in codes["waiting-for-ranks"]
    assert codes["exposed-bucket"].endswith("waiting for ranks that come late, which no bucket size shortens.")


def test_one_bucket_that_waits_for_late_ranks_is_not_told_to_be_divided() -> None:
    waited, late = ((46, 190),), ((175, 190),)
    of_one = {"numels": (MIB, MIB, MIB), "buckets": ((0, 1, 2),)}
    both = [trained(k, rans=rans, **of_one) for k, rans in enumerate([(waited, late), (late, waited)])]
    codes = {finding.code: finding.message for finding in analyze_run(run(*both)).findings}
    assert codes["exposed-bucket"].endswith("waiting for ranks that come late, which no bucket size shortens.")
    assert "bucket_cap_mb" not in codes["exposed-bucket"]


def test_where_ready_times_are_not_known_nobody_is_sent_to_look_at_them() -> None:
    two = run(*(trained(k, rans=[((100, 180), (180, 190))], ready_ms=100) for k in (0, 1)))
    assert "look at when its gradients became ready and for a rank" in advice(two).message
    blind = [replace(row, ready_at_ns=None, first_ready_at_ns=None) for row in analyze_run(two).buckets]
    assert "look for a rank that arrived late." in advice(two, buckets=Table(BucketRow, blind)).message


@pytest.mark.parametrize(
    ("origin", "advised"),
    [
        ("program", "async_op=True"),
        ("fsdp", "set_modules_to_forward_prefetch"),
        ("optimizer", "what it waits for"),
        (None, "what it waits for"),
    ],
)
def test_what_to_do_about_an_exposed_collective_goes_by_who_wanted_it(origin: str | None, advised: str) -> None:
    where = {"origin": origin, "module": "blocks.0", "site": "train.py:42 in step", "op": "all_gather_into_tensor_"}
    one = rank(
        steps=[step(0, 0, 100 * MS)],
        phases=[mark(Phase.FORWARD, 0, 40 * MS)],
        calls=[call(1, 40 * MS, ran=(40 * MS, 90 * MS), waits=((40 * MS, 90 * MS),), **where)],
    )
    finding = advice(run(one))
    assert finding.code == "exposed-communication"
    assert "50.0 ms of communication are exposed, 50 % of the step" in finding.message
    known = ", ".join(filter(None, (origin, "in blocks.0", "at train.py:42 in step")))
    assert f"all_gather_into_tensor ({known}) with 50.0 ms: " in finding.message
    assert advised in finding.message
    assert ("async_op" in finding.message) == (origin == "program")


@pytest.mark.parametrize(
    ("op", "advised"),
    [
        ("send", "isend or irecv"),
        ("recv", "isend or irecv"),
        ("recv_any_source", "isend or irecv"),
        ("monitored_barrier", "remove it from steps"),
        ("all_to_all_single", "async_op=True"),
    ],
)
def test_only_what_has_an_async_op_is_to_be_issued_with_it(op: str, advised: str) -> None:
    one = rank(steps=[step(0, 0, 100 * MS)], calls=[call(1, 40 * MS, ran=(40 * MS, 90 * MS), op=op, origin="program")])
    message = advice(run(one)).message
    assert advised in message
    assert ("async_op" in message) == (op == "all_to_all_single")


def unmatched(*, loss_ms: int) -> Finding:
    """Buckets of 50 ms that fit no layout, beside one all-reduce of the program."""
    one = rank(
        steps=[step(0, 0, 300 * MS)], phases=[mark(Phase.BACKWARD, 0, 100 * MS, 0)],
        calls=[
            ddp_call(1, 99 * MS, 99, ran=(100 * MS, 150 * MS), origin="gradients"),
            call(2, 150 * MS, ran=(150 * MS, (150 + loss_ms) * MS), origin="program"),
        ],
        reducers=[reducer((1, 2, 3), layout(0, 0, (1, 2), (0,)))],
    )  # fmt: skip
    return advice(run(one))


def test_gradients_in_buckets_that_are_not_known_are_not_taken_for_something_else() -> None:
    message = unmatched(loss_ms=10).message
    assert "60.0 ms of communication are exposed" in message
    assert "Most of it carries gradients, 50.0 ms of them in buckets that fit no known layout" in message
    assert "largest part" not in message and "async_op" not in message


def test_where_most_of_it_carries_no_gradients_the_largest_part_of_the_rest_is_told() -> None:
    message = unmatched(loss_ms=60).message
    assert "Most of it carries no gradients; the largest part is all_reduce (program) with 60.0 ms" in message


def test_gradients_that_fsdp_scatters_cannot_be_prefetched() -> None:
    one = rank(
        steps=[step(0, 0, 100 * MS)],
        calls=[call(1, 40 * MS, ran=(40 * MS, 90 * MS), op="reduce_scatter_tensor", origin="fsdp")],
    )
    message = advice(run(one)).message
    assert "wrap units of another size" in message and "prefetch" not in message


DEEPSPEED = {"site": "train.py:42 in step", "through": "deepspeed/runtime/zero/stage3.py:9 in f"}


@pytest.mark.parametrize(
    ("where", "advised"),
    [
        ({"op": "all_reduce", "origin": "zero"}, "overlap_comm"),
        ({"op": "reduce_scatter_tensor", "origin": "zero"}, "reduce_bucket_size"),
        ({"op": "all_gather_into_tensor", "origin": "zero", "module": "blocks.0"}, "stage3_prefetch_bucket_size"),
        ({"op": "all_gather_into_tensor", "origin": "zero"}, "gradient_accumulation_steps"),
        ({"op": "all_to_all_single", "origin": "moe"}, "capacity_factor"),
        ({"op": "all_gather", "origin": "checkpoint"}, "save less often"),
        ({"op": "barrier", "origin": "program"}, "a library issues it for that line"),
    ],
)
def test_what_deepspeed_and_other_libraries_expose_is_answered_with_settings_of_their_own(
    where: dict[str, Any], advised: str
) -> None:
    sent = call(1, 40 * MS, ran=(40 * MS, 90 * MS), waits=((40 * MS, 90 * MS),), **(DEEPSPEED | where))
    message = advice(run(rank(steps=[step(0, 0, 100 * MS)], calls=[sent]))).message
    assert "at train.py:42 in step, through deepspeed/runtime/zero/stage3.py:9 in f) with 50.0 ms: " in message
    assert advised in message
    assert not any(of_others in message for of_others in ("bucket_cap_mb", "async_op", "FSDP"))


@pytest.mark.parametrize("origin", ["fsdp", "zero"])
def test_gradients_of_sharded_training_are_not_said_to_be_none(origin: str) -> None:
    sent = call(1, 40 * MS, ran=(40 * MS, 90 * MS), op="reduce_scatter_tensor", origin=origin)
    message = advice(run(rank(steps=[step(0, 0, 100 * MS)], calls=[sent]))).message
    assert "carries no gradients" not in message and "Most of it is in no bucket of DDP; the largest" in message


def slow_loader(number: int, data_ms: int) -> RankRun:
    """Three steps of 100 ms: data until `data_ms`, forward for 10 ms, backward until 90, whose bucket runs from the
    end of forward on."""
    marks, phases, calls = [], [], []
    for k in range(3):
        at, forward = 100 * MS * k, 100 * MS * k + data_ms * MS
        marks.append(step(k, at, at + 100 * MS))
        phases += [mark(Phase.DATA, at, forward), mark(Phase.FORWARD, forward, forward + 10 * MS)]
        phases.append(mark(Phase.BACKWARD, forward + 10 * MS, at + 90 * MS, k))
        span = (forward + 10 * MS, at + 90 * MS)
        calls.append(ddp_call(k + 1, span[0], 24, ran=span, waits=(span,)))
    return rank(
        number, steps=marks, phases=phases, calls=calls, reducers=[reducer((1, 2, 3), layout(0, 0, (0, 1, 2)))],
        ready=[ready(k, (0, 100 * MS * k + (data_ms + 10) * MS)) for k in range(3)],
    )  # fmt: skip


def test_a_late_rank_is_told_with_the_phase_that_makes_it_late() -> None:
    finding = advice(run(slow_loader(0, 5), slow_loader(1, 65)))
    assert (finding.code, finding.where) == ("late-rank", "rank 1")
    assert "its data phase is 60.0 ms longer than the other's. Look there" in finding.message
    assert "at least" not in finding.message
    assert "Rank 0 waits for it" in finding.message


def test_of_a_late_rank_among_many_the_others_wait_at_least_what_the_next_one_does() -> None:
    finding = advice(run(slow_loader(0, 5), slow_loader(1, 65), slow_loader(2, 15), world_size=3))
    assert "every other rank exposes at least" in finding.message
    assert "its data phase is 50.0 ms longer than any other's" in finding.message


def test_a_bucket_waits_for_others_for_its_gradients_or_for_what_is_not_known() -> None:
    """Means over calls: the queue, what ran in it, its last part without others, and the bucket itself."""
    for_gradients, for_others, last, unknown = (
        MeanWait(queue, others, compute, free, 10)
        for queue, others, compute, free in ((100, 20, 78, 30), (100, 60, 35, 30), (100, 40, 58, 0), (100, 20, 40, 30))
    )
    assert for_gradients.is_host_ahead and not for_gradients.is_behind_others
    assert for_others.is_behind_others and last.is_behind_others and not last.is_host_ahead
    assert not unknown.is_behind_others and not unknown.is_host_ahead
