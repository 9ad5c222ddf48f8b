"""Causes of lost time, each said where it costs something and with what that is, and not said where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from analysis_records import call, layout, mark, rank, ready, reducer

from ddptrace.analysis.buckets.layouts import Heaviest, ReducerFacts, module_of, reducer_facts
from ddptrace.analysis.findings.buckets import (
    MIB,
    bucket_cap_findings,
    heavy_layer_findings,
    layout_words,
    unused_findings,
)
from ddptrace.analysis.findings.collectives import queue_findings, slow_message_findings
from ddptrace.analysis.findings.steps import contention_findings, data_findings, jitter_findings
from ddptrace.analysis.rank_tables import facts_of
from ddptrace.analysis.rank_view import view_of
from ddptrace.analysis.result import Result
from ddptrace.analysis.summary import Share, summarize
from ddptrace.analysis.tables.collectives import CollectiveRow
from ddptrace.analysis.tables.ranks import ArrivalRow, MatchRow, SuspectRow
from ddptrace.analysis.tables.steps import ContentionRow, JitterRow, StepRow
from ddptrace.analysis.tables.table import Table
from ddptrace.findings import Finding
from ddptrace.load.tables import RankRun
from ddptrace.schema import Evidence, Origin, Phase
from tests.made import MS, make_result
from tests.unit.made_meetings import met_result

Bucket = tuple[int, int, int] | None


def planned(cap: int | None, numels: Sequence[int], *buckets: tuple[int, ...]) -> ReducerFacts:
    return reducer_facts(reducer(numels, layout(0, 0, *buckets), cap=cap), rank())


def test_a_bucket_is_as_large_as_was_asked_for_up_to_a_quarter_more() -> None:
    assert list(bucket_cap_findings([planned(80, (20, 5), (0, 1))])) == []  # 100 bytes
    (finding,) = bucket_cap_findings([planned(80, (20, 6), (1, 0))])
    assert "Bucket 0 has 104 B, 1.3 times its cap" in finding.message
    assert "here p0 adds 80 B to 24 B." in finding.message


def test_a_cap_that_most_parameters_exceed_is_to_be_raised() -> None:
    (most,) = bucket_cap_findings([planned(80, (30, 30, 5), (0,), (1,), (2,))])
    assert "Most of the 3 buckets hold such a parameter: raise bucket_cap_mb" in most.message
    (some,) = bucket_cap_findings([planned(80, (30, 5, 5), (0,), (1,), (2,))])
    assert some.message.endswith("only splitting the parameter does.")


def test_a_cap_that_is_not_known_is_not_exceeded() -> None:
    assert list(bucket_cap_findings([planned(None, (20, 60), (0, 1))])) == []


def test_the_cap_that_keeps_all_buckets_within_what_was_asked_for_is_less_by_the_largest_parameter() -> None:
    """4 MiB less 3 MiB."""
    quarter = MIB // 4  # float32 numbers in a MiB
    (finding,) = bucket_cap_findings([planned(4 * MIB, (3 * quarter, 3 * quarter, quarter), (0, 1), (2,))])
    assert "With bucket_cap_mb=1 no bucket exceeds 4.19 MB" in finding.message


@pytest.mark.parametrize(("cap", "is_told"), [(25 * MIB, True), (24 * MIB, False)])
def test_that_the_first_bucket_is_smaller_is_told_where_no_cap_was_given(cap: int, is_told: bool) -> None:
    facts = planned(cap, (MIB // 4, 5 * MIB), (0,), (1,))
    assert layout_words(facts).startswith("2 buckets of 1.05 MB to 21.0 MB")
    assert ("DDP closes the first bucket at 1.05 MB" in layout_words(facts)) is is_told


def test_of_many_layouts_the_first_ones_and_the_last_are_told() -> None:
    layouts = [layout(k, k, tuple(range(k, 9))) for k in range(8)]
    facts = reducer_facts(reducer([1] * 9, *layouts), rank())
    assert layout_words(facts) == "1 bucket of 36 B, then 1 of 32 B, then …, then 1 of 8 B"


def looking(number: int, *without: int) -> RankRun:
    """Three backwards that look for unused parameters; the last two give these of four no gradient."""
    bitmap = {"origin": Origin.UNUSED_PARAMETERS.word, "reducer": 1, "op": "all_reduce"}
    every = [(parameter, 10) for parameter in range(4)]
    some = [one for one in every if one[0] not in without]
    return rank(
        number, calls=[call(1, 5, ran=(5, 6), **bitmap)], reducers=[reducer([1, 2, 3, 4], layout(0, 0, (3, 2, 1, 0)))],
        phases=[mark(Phase.BACKWARD, 10 * k, 10 * k + 9, k) for k in range(3)],
        ready=[ready(0, *(every if number == 0 else some)), ready(1, *some), ready(2, *some)],
    )  # fmt: skip


def unused(*ranks: RankRun) -> list[str]:
    facts = [facts_of(view_of(one)) for one in ranks]
    return [finding.message for finding in unused_findings(facts, make_result(1, 2, 1))]


def test_a_static_graph_that_looks_once_and_rebuilds_its_buckets_has_no_option_to_remove() -> None:
    static = reducer([1, 2, 3, 4], layout(0, 0, (3, 2, 1, 0)), layout(1, 1, (3, 2), (1, 0)))
    assert unused(replace(looking(0), reducers=(static,))) == []


def test_parameters_that_are_used_now_and_then_make_looking_for_them_necessary() -> None:
    (said,) = unused(looking(0, 1, 2))
    assert said.startswith("2 of 4 parameters of DistributedDataParallel of Net got no gradient in some of 3")
    assert "the program needs find_unused_parameters=True" in said


def test_a_parameter_that_one_rank_uses_is_not_called_unused() -> None:
    (said,) = unused(looking(0), looking(1, 3))
    assert "1 of 4 parameters" in said and "needs find_unused_parameters=True" in said


def test_a_backward_that_was_cut_off_tells_nothing_of_its_parameters() -> None:
    cut_off = replace(looking(0), phases=(mark(Phase.BACKWARD, 0, 9, 0),))
    (said,) = unused(replace(cut_off, ready=(*cut_off.ready[:1], ready(1, (0, 15)))))
    assert "in 1 backwards all 4 parameters" in said


def varying(
    share: float,
    part: str = "data",
    steps: int = 40,
    p95: int = 70,
    in_turn: tuple[str, ...] = (),
    *,
    crowded: bool = False,
) -> list[Finding]:
    """Of rank 1, whose median step has 50 ms."""
    rows = [
        JitterRow(1, part, steps, 1 * MS, 21 * MS, MS, share),
        JitterRow(1, "step", steps, 50 * MS, p95 * MS, 2 * MS, None),
    ]
    facts = replace(facts_of(view_of(rank(1))), in_turn=in_turn)
    result = replace(make_result(2, 2, 1), jitter=Table(JitterRow, rows))
    return list(jitter_findings([facts], result, crowded=crowded))


def test_the_phase_that_most_of_the_variance_goes_with_is_named() -> None:
    (finding,) = varying(0.5)
    assert finding.where == "rank 1"
    assert "takes 70.0 ms or more, 1.4 times the median of 50.0 ms (40 steps). 50 % of the variance" in finding.message


def test_where_processors_are_crowded_data_is_still_told_of() -> None:
    assert len(varying(0.5, crowded=True)) == len(varying(0.5, part="backward")) == 1


@pytest.mark.parametrize(
    "spoiled",
    [
        {"share": 0.49}, {"part": "waiting"}, {"steps": 39}, {"p95": 64}, {"in_turn": ("Adam", "SGD")},
        {"crowded": True, "part": "backward"},
    ],
)  # fmt: skip
def test_what_may_be_chance_or_only_waits_is_not_named(spoiled: dict[str, object]) -> None:
    assert varying(**({"share": 0.5} | spoiled)) == []  # type: ignore[arg-type]


def reading(first: int, second: int, cause: str = "data") -> list[Finding]:
    """Of two ranks that read data for so many ms of a step of 100 ms; the second is named for `cause`."""
    late = SuspectRow(1, "vm", "data", cause, 9 * MS, 0.09, 8 * MS, 10 * MS, True, 40, "it sleeps")
    result = replace(make_result(2, 2, 1), suspects=Table(SuspectRow, [late]))
    summary = summarize(result)
    ranks = [
        replace(row, phases=(Share("data", ms * MS, ms / 100),))
        for row, ms in zip(summary.ranks, (first, second), strict=True)
    ]
    data = Share("data", (first + second) * MS // 2, (first + second) / 200)
    return list(data_findings(replace(summary, phases=(data,), ranks=tuple(ranks)), result))


def test_ranks_that_all_read_long_are_told_of_beside_the_one_that_reads_longest() -> None:
    (finding,) = reading(20, 60)
    assert "takes 40 % of the typical step (40.0 ms, mean of the ranks), most on rank 1 (60.0 ms)" in finding.message


def test_one_rank_alone_that_reads_long_is_told_of_once() -> None:
    assert reading(2, 60) == []
    assert len(reading(2, 60, cause="garbage collection")) == 1


def queued(
    queue_ms: int,
    exposed_ms: int,
    threads: int | None = 2,
    bucket: Bucket = None,
    origins: Sequence[str] = ("program",),
    on_device: bool = False,
) -> list[Finding]:
    """Every collective of group 0 runs for 5 ms."""
    result = make_result(1, 4, 2)
    changed = {
        "group": "0",
        "queue_ns": queue_ms * MS,
        "comm_ns": 5 * MS,
        "exposed_charged_ns": exposed_ms * MS,
    }
    rows = [
        replace(row, bucket=bucket, origin=origins[number % len(origins)], on_device=on_device, **changed)
        for number, row in enumerate(result.collectives)
    ]
    facts = facts_of(view_of(rank(threads=threads)))
    return list(queue_findings([facts], replace(result, collectives=Table(CollectiveRow, rows)), summarize(result)))


def test_a_queue_is_told_of_where_collectives_stand_longer_than_they_run_and_the_step_waits() -> None:
    (finding,) = queued(6, 50)
    assert "6.00 ms against 5.00 ms (means of 3 in a step)" in finding.message
    assert "(one flat tensor)" in finding.message


def test_a_queue_that_deepspeed_fills_is_answered_with_its_own_settings() -> None:
    (finding,) = queued(6, 50, origins=("zero", "zero", "agreement"))
    assert "(raise DeepSpeed's reduce_bucket_size and stage3_prefetch_bucket_size)" in finding.message
    (finding,) = queued(6, 50, origins=("zero", "agreement", "program"))
    assert "(one flat tensor)" in finding.message
    assert queued(5, 50) == [] and queued(6, 0) == []


def test_buckets_that_stand_in_a_queue_are_to_be_made_larger_by_the_cap() -> None:
    (finding,) = queued(6, 50, bucket=(0, 0, 1))
    assert "(raise bucket_cap_mb, if `ddptrace advise` predicts that it helps)" in finding.message


def test_where_no_thread_of_a_backend_is_known_there_is_no_queue() -> None:
    assert queued(6, 50, threads=None) == []


def test_what_a_device_runs_stands_in_no_queue_of_threads() -> None:
    assert queued(6, 50, on_device=True) == []


def heavy(nbytes: int, modules: int = 3, late_ns: int = 0) -> list[Finding]:
    """A module in the bucket that exposes most, of a reducer whose gradients have 1000 bytes."""
    summary = summarize(make_result(2, 4, 2))
    worst = summary.buckets[0]
    name = worst.parameters[0]
    of = ReducerFacts(
        worst.reducer, "DistributedDataParallel", "Net", None, (), (), nbytes=1000, modules=modules,
        heaviest=Heaviest(module_of(name), 1, name, nbytes),
    )  # fmt: skip
    return list(heavy_layer_findings(summary, [of, of], late_ns))


def test_a_layer_that_has_half_of_all_gradients_is_named_once_for_all_ranks() -> None:
    (finding,) = heavy(500)
    assert "has 500 B of the 1.00 kB of gradients, 50 %" in finding.message
    assert heavy(499) == [] and heavy(500, modules=2) == []


def test_a_large_layer_is_not_named_for_time_that_a_late_rank_costs() -> None:
    assert heavy(500, late_ns=100 * MS) == []


def taxed(alone_ns: int, tax_ns: int) -> list[Finding]:
    """Of two profiled steps of 100 ms."""
    result = make_result(1, 2, 1)
    steps = [replace(row, profiled=True, window_ns=100 * MS) for row in result.steps]
    rows = [ContentionRow(0, "void gemm<8>(float*)", 9, 10, alone_ns // 10, (alone_ns + tax_ns) // 10, tax_ns)]
    told = replace(result, steps=Table(StepRow, steps), contention=Table(ContentionRow, rows))
    return list(contention_findings(told))


def test_slower_computing_is_told_from_a_tenth_on_where_it_is_something_of_the_steps() -> None:
    (finding,) = taxed(10 * MS, 1 * MS)
    assert "10 operators that would take 10.0 ms alone took 10 % longer beside it." in finding.message
    assert "This costs 1.00 ms in 2 profiled rank-steps" in finding.message
    assert "(< 1 % of them), most of it in gemm (1.00 ms)" in finding.message
    assert taxed(10 * MS, MS - 1) == [] and taxed(11 * MS, MS) == [] and taxed(10 * MS, -MS) == []


def small(nbytes: int, wait_ms: int, transfer_ms: int = 2) -> list[Finding]:
    """All collectives of a result have so many bytes."""
    made: Result = met_result(2, 6, 1)
    calls = [replace(row, bucket=None, nbytes=nbytes, evidence=Evidence.BACKEND, match=0) for row in made.collectives]
    result = replace(
        made, collectives=Table(CollectiveRow, calls),
        matches=Table(MatchRow, [
            replace(row, bucket=None, nbytes=nbytes, aligned_transfer_ns=transfer_ms * MS) for row in made.matches
        ]),
        arrivals=Table(ArrivalRow, [replace(row, wait_ns=wait_ms * MS) for row in made.arrivals]),
    )  # fmt: skip
    return list(slow_message_findings(summarize(result), result))


def test_few_bytes_that_mostly_wait_are_told_with_both_parts() -> None:
    (finding,) = small(228, 20)
    assert "of only 228 B takes 22.0 ms each time: 20.0 ms of waiting" in finding.message
    assert "2.00 ms of transfer (means of all ranks" in finding.message


def test_many_bytes_and_those_that_mostly_move_are_not_called_slow() -> None:
    assert small(1 << 17, 20) == [] and small(228, 20, transfer_ms=21) == [] and small(228, 2, transfer_ms=1) == []
