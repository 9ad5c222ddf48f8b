"""Bytes per step from hand-made records: which step a call counts in, what a rank sends for it, what went only once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from analysis_records import call, hook, rank, run, step

from ddptrace.analysis.analyze import analyze_run
from ddptrace.analysis.result import Result
from ddptrace.analysis.rpc.digest import rpc_traffic
from ddptrace.analysis.tables.traffic import RpcRow
from ddptrace.analysis.traffic.digest import traffic_report
from ddptrace.analysis.traffic.rows import sent_nbytes
from ddptrace.load.tables import Call, Group, Identity, RankRun

STEPS = [step(0, 0, 100), step(1, 100, 200), step(2, 200, 300)]


def program(seq: int, launch: int, nbytes: int, **fields: object) -> Call:
    return call(seq, launch, **({"nbytes_in": nbytes, "nbytes_out": 0, "origin": "program"} | fields))


def result_of(*ranks: RankRun) -> Result:
    return analyze_run(run(*ranks, world_size=len(ranks)))


@pytest.mark.parametrize(
    ("op", "nbytes_in", "nbytes_out", "sent"),
    [
        ("all_reduce", 8000, 0, 12000),  # of a ring of four, twice three quarters
        ("all_gather_into_tensor", 2000, 8000, 6000),  # three other parts of a quarter each
        ("reduce_scatter_tensor", 8000, 2000, 6000),
        ("all_to_all_single", 8000, 8000, 6000),
        ("broadcast", 8000, 0, 6000),  # three links carry it, shared by four ranks
        ("reduce", 8000, 0, 6000),
        ("gather", 2000, 8000, 1500),  # three ranks send 2000 each, shared by four
        ("scatter", 8000, 2000, 1500),
        ("send", 8000, 0, 8000),
        ("recv", 0, 8000, 0),
        ("barrier", 0, 0, None),
        ("dispatch", 8000, 8000, None),
    ],
)
def test_a_rank_sends_what_the_op_needs_at_least(op: str, nbytes_in: int, nbytes_out: int, sent: int | None) -> None:
    one = call(1, 0, op=op, nbytes_in=nbytes_in, nbytes_out=nbytes_out)
    assert sent_nbytes(one, 4) == sent
    assert sent_nbytes(one, None) is None


def test_bytes_that_nobody_recorded_are_not_nothing() -> None:
    foreign = call(1, 0, nbytes_in=0, nbytes_out=0, identity=Identity.NAME)
    sparse = call(2, 10, op="allreduce_sparse", nbytes_in=0, nbytes_out=0)
    without = hook(9, 20, 30, 40)
    rows = result_of(rank(steps=[step(0, 0, 100)], calls=[foreign, sparse], hooks=[without])).traffic
    assert [(row.op, row.calls, row.nbytes_in, row.sent_nbytes) for row in rows] == [
        ("all_reduce", 1, None, None),
        ("allreduce_sparse", 1, None, None),
        ("comm_hook", 1, None, None),
    ]


def test_a_call_counts_once_and_in_the_step_that_launched_it() -> None:
    # GIVEN a collective that runs into the next step, and one after all steps
    crossing = program(1, 90, 40, ran=(95, 150))
    after = program(2, 400, 4)
    rows = result_of(rank(steps=STEPS, calls=[crossing, after])).traffic
    assert [(row.step, row.calls, row.nbytes_in) for row in rows] == [(0, 1, 40), (None, 1, 4)]


def test_kinds_are_told_apart_by_op_group_origin_and_dtype() -> None:
    first = program(1, 110, 8)
    others = [
        replace(first, seq=2, op="broadcast"),
        replace(first, seq=3, group="1"),
        replace(first, seq=4, origin="buffers"),
        replace(first, seq=5, dtype="int64"),
        replace(first, seq=6, nbytes_in=24),
    ]
    kinds = traffic_report(result_of(rank(steps=STEPS[:2], calls=[first, *others]))).kinds
    assert len(kinds) == 5
    assert sorted((kind.calls, kind.nbytes_in) for kind in kinds) == [(1, 8)] * 4 + [(2, 32)]


def test_means_are_over_all_steps_but_the_first_those_without_included() -> None:
    calls = [program(1, 10, 4000), program(2, 110, 1000)]
    report = traffic_report(result_of(rank(0, steps=STEPS, calls=calls), rank(1, steps=STEPS, calls=calls)))
    assert (report.per, report.steps, report.rank_steps) == ("step", (1, 2), 4)
    (kind,) = report.kinds
    assert (kind.ranks, kind.calls, kind.nbytes_in, kind.nbytes_min, kind.nbytes_max) == (2, 0.5, 500, 0, 1000)
    assert (kind.sent_nbytes, kind.all_sent_nbytes) == (500, 1000)  # of two ranks each sends the tensor once
    assert report.once == ()


def test_what_only_the_start_sends_stands_apart() -> None:
    calls = [
        program(1, 5, 100, op="broadcast", origin="construction"),
        program(2, 10, 7),  # the program's own, in the first step alone
        program(3, 20, 64, dtype="float16"),
        program(4, 110, 12, op="broadcast", origin="rebuild"),
        program(5, 120, 64, dtype="float16"),
        program(6, 220, 64, dtype="float16"),
        program(7, 500, 9, dtype="int64"),  # after all steps
    ]
    report = traffic_report(result_of(rank(steps=STEPS, calls=calls)))
    assert [(kind.nbytes_in, kind.calls) for kind in report.kinds] == [(64, 1)]
    assert sorted((kind.origin, kind.nbytes_in) for kind in report.once) == [
        ("construction", 100), ("program", 7), ("program", 9), ("rebuild", 12),
    ]  # fmt: skip


def test_a_run_without_steps_is_summed_up() -> None:
    report = traffic_report(result_of(rank(calls=[program(1, 5, 100), program(2, 10, 28)])))
    assert (report.per, report.steps) == ("rank", ())
    assert [(kind.calls, kind.nbytes_in) for kind in report.kinds] == [(2, 128)]


def test_a_group_of_two_is_a_link_with_two_directions_and_a_larger_group_is_none() -> None:
    groups = (Group("0", (0, 1, 2), "gloo", 2), Group("7", (0, 2), "gloo", 2))
    sends = [program(1, 110, 3000, op="send", group="7"), program(2, 120, 600)]
    receives = [program(1, 110, 0, op="recv", nbytes_out=3000, group="7"), program(2, 120, 600)]
    ranks = [
        rank(0, steps=STEPS[:2], calls=sends, groups=groups),
        rank(1, steps=STEPS[:2], calls=sends[1:], groups=groups[:1]),
        replace(rank(2, steps=STEPS[:2], calls=receives, groups=groups), host="node1"),
    ]
    report = traffic_report(result_of(*ranks))
    told = {
        one.group: (one.ranks, one.hosts, one.sent_nbytes, one.there_nbytes, one.back_nbytes) for one in report.links
    }
    assert told == {
        "7": ((0, 2), ("node0", "node1"), 3000, 3000, 0),
        "0": ((0, 1, 2), ("node0", "node1"), 2400, None, None),  # three ranks, 2 * 2/3 * 600 each
    }
    assert [one.sent_nbytes for one in report.ranks] == [3800, 800, 800]


def test_groups_of_one_name_on_different_ranks_are_different_links() -> None:
    pairs = [(0, 1), (0, 1), (2, 3), (2, 3)]
    ranks = [
        rank(number, steps=STEPS[:2], calls=[program(1, 110, 100 * (number + 1), op="send", group="pair")],
             groups=[Group("pair", members, "gloo", 2)])
        for number, members in enumerate(pairs)
    ]  # fmt: skip
    links = traffic_report(result_of(*ranks)).links
    assert [(one.ranks, one.there_nbytes, one.back_nbytes) for one in links] == [((2, 3), 300, 400), ((0, 1), 100, 200)]


def test_of_an_op_whose_root_was_not_recorded_no_direction_is_claimed() -> None:
    calls = [program(1, 110, 600), program(2, 120, 1000, op="broadcast")]
    (link,) = traffic_report(result_of(*(rank(number, steps=STEPS[:2], calls=calls) for number in (0, 1)))).links
    assert (link.there_nbytes, link.back_nbytes, link.rooted_nbytes, link.sent_nbytes) == (600, 600, 1000, 2200)


def test_what_a_rank_sent_that_left_no_records_is_not_known() -> None:
    (link,) = traffic_report(result_of(rank(0, steps=STEPS[:2], calls=[program(1, 110, 600)]))).links
    assert (link.ranks, link.there_nbytes, link.back_nbytes) == ((0, 1), 600, None)


def test_the_peer_of_a_send_in_a_larger_group_is_said_to_be_unknown() -> None:
    group = (Group("0", (0, 1, 2), "gloo", 2),)
    sends = [program(1, 110, 3000, op="send")]
    (link,) = traffic_report(result_of(rank(steps=STEPS[:2], calls=sends, groups=group))).links
    assert link.peers_unknown and link.there_nbytes is None


CALL = RpcRow(
    1, "rpc_sync", "forward", False, "worker0", "worker1", 0, 1, 1, 110, 120, 130, 20, 112, 118, 6,
    nbytes_out=500, nbytes_back=40, gradient_nbytes_out=40, gradient_nbytes_back=480, gradient_inferred=False,
    failed=False, error=None,
)  # fmt: skip


def test_remote_calls_are_means_over_the_steps_of_their_caller() -> None:
    # GIVEN two steps that are counted, calls in one of them, one call before, and torch's own
    calls = [CALL, CALL, replace(CALL, step=0), replace(CALL, internal=True)]
    (pair,) = rpc_traffic(calls, frozenset({(0, 1), (0, 2), (1, 1)}))
    assert (pair.caller, pair.callee, pair.op, pair.steps, pair.calls) == ("worker0", "worker1", "rpc_sync", 2, 1)
    assert (pair.nbytes_out, pair.nbytes_back, pair.gradient_nbytes_out, pair.gradient_nbytes_back) == (
        500,
        40,
        40,
        480,
    )
    assert (pair.nbytes_min, pair.nbytes_max) == (0, 2 * (500 + 40 + 40 + 480))


def test_remote_calls_of_a_caller_without_steps_are_summed_up() -> None:
    stranger = replace(CALL, rank=None, step=None, nbytes_back=None)
    (pair,) = rpc_traffic([stranger, replace(stranger, gradient_inferred=True)], frozenset({(1, 1)}))
    assert (pair.steps, pair.calls, pair.nbytes_out, pair.nbytes_back) == (0, 2, 1000, None)
    assert pair.gradient_inferred


def test_a_rank_that_only_waited_in_a_barrier_is_not_told_to_be_missing() -> None:
    trains = rank(0, steps=STEPS, calls=[program(1, 150, 800)])
    waits = call(1, 150, op="barrier", nbytes_in=0, nbytes_out=0)
    assert traffic_report(result_of(trains, rank(1, calls=[waits]))).uncounted == ()
    assert traffic_report(result_of(trains, rank(1, calls=[waits, program(2, 160, 800)]))).uncounted == (1,)
