"""Clocks that lie apart, of made runs: what is proved is right whatever the noise, and what does not fit is said."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from analysis_records import Piece, call, gpu_window, mark, pause, rank, ready, run, step
from hypothesis import given, settings
from hypothesis import strategies as st

from ddptrace.analysis.analyze import analyze_rank, analyze_run
from ddptrace.analysis.clocks.aligned import Clock, aligned_tables
from ddptrace.analysis.clocks.lines import STEEPEST, band, corners
from ddptrace.analysis.findings.evidence import clock_findings
from ddptrace.analysis.result import Result
from ddptrace.analysis.tables.ranks import ClockRow
from ddptrace.load.tables import (
    GcPause,
    Group,
    HostLoad,
    HostMark,
    LinkSample,
    Pulse,
    RankRpc,
    RankRun,
    RpcCall,
    RpcRun,
    RpcWait,
    Throttle,
)
from ddptrace.schema import Phase, RpcOp

US, MS, S = 1_000, 1_000_000, 1_000_000_000
Reads = Callable[[float], int]
"""What a clock reads at an instant of the right time."""


def line(offset_ns: float, ppm: float = 0.0) -> Reads:
    return lambda at: round(at + offset_ns + at * ppm * 1e-6)


RIGHT = line(0)


def together(
    clocks: Sequence[Reads], count: int, *, gap: int = 20 * MS, late: int = 300 * US, seed: int = 0, **fields: Any
) -> list[RankRun]:
    """Ranks of a host each that meet `count` times; each begins and hears of the end up to `late` after it might."""
    chance = random.Random(seed)
    calls: list[list[Any]] = [[] for _ in clocks]
    for k in range(count):
        begins = [k * gap + chance.uniform(0, late) for _ in clocks]
        over = max(begins) + 50 * US
        for own, reads, begin in zip(calls, clocks, begins, strict=True):
            ran = reads(begin), reads(over + chance.uniform(0, late))
            own.append(call(k + 1, ran[0], ran=ran, ordinal=k))
    group = Group("0", tuple(range(len(clocks))), "gloo", 2)
    made = (rank(number, calls=own, groups=(group,), **fields) for number, own in enumerate(calls))
    return [dataclasses.replace(one, host=f"node{one.rank}") for one in made]


def analyzed(ranks: Sequence[RankRun]) -> Result:
    return analyze_run(run(*ranks, world_size=len(ranks)))


def of_rank(result: Result, number: int) -> list[ClockRow]:
    return [row for row in result.clocks if row.rank == number]


def error_ns(row: ClockRow, reads: Reads, at: float) -> float:
    return abs(row.offset_ns + row.drift_ratio * (at - row.begin_at_ns) - (reads(at) - at))


def test_lines_between_two_points_above_and_two_below_are_those_of_a_parallelogram() -> None:
    above, below = np.array([(0.0, 10.0), (1e6, 10.0)]), np.array([(0.0, -10.0), (1e6, -10.0)])
    found = corners(above, below)
    assert sorted((round(offset, 3), round(drift * 1e6, 3)) for offset, drift in found.tolist()) == [
        (-10, 0), (-10, 20), (10, -20), (10, 0),
    ]  # fmt: skip
    low, high = band(found, np.array([0.0, 5e5, 1e6]))
    assert low.tolist() == [-10, -10, -10] and high.tolist() == [10, 10, 10]


def test_no_line_passes_between_points_that_cross() -> None:
    assert not len(corners(np.array([(0.0, -1.0), (9.0, 5.0)]), np.array([(0.0, 1.0)])))


def test_no_clock_is_taken_to_drift_more_than_any_does() -> None:
    found = corners(np.array([(0.0, 1e9)]), np.array([(1e3, -1e9)]))
    assert np.abs(found[:, 1]).max() == STEEPEST


@settings(max_examples=25, deadline=None)
@given(
    offsets=st.lists(st.integers(-5 * S, 5 * S), min_size=1, max_size=4),
    ppm=st.floats(-300, 300),
    late=st.sampled_from([1 * US, 300 * US, 20 * MS]),
    count=st.integers(3, 80),
    seed=st.integers(0, 999),
)
def test_what_is_stated_covers_the_truth_and_the_line_is_within(
    offsets: list[int], ppm: float, late: int, count: int, seed: int
) -> None:
    clocks = [RIGHT, *(line(offset, ppm * (k + 1) / 2) for k, offset in enumerate(offsets))]
    result = analyzed(together(clocks, count, late=late, seed=seed))
    for number, reads in enumerate(clocks[1:], 1):
        (row,) = of_rank(result, number)
        assert row.shifted and row.why == "fitted"
        for at, stated in ((row.begin_at_ns, row.uncertainty_ns), (row.end_at_ns, row.uncertainty_end_ns)):
            assert stated is not None and error_ns(row, reads, at) <= stated + 2


def test_offset_and_drift_are_found() -> None:
    wrong = line(-70 * MS, 80)
    (row,) = of_rank(analyzed(together([RIGHT, wrong], 500)), 1)
    assert row.drift_ratio * 1e6 == pytest.approx(80, abs=3)
    assert max(error_ns(row, wrong, at) for at in (0, 5 * S, 10 * S)) < 40 * US
    assert row.uncertainty_ns is not None and row.uncertainty_ns < 500 * US


def test_ranks_of_one_host_share_a_clock_until_collectives_break_it() -> None:
    host = {"host": "one"}
    for clocks, whys in (
        ([RIGHT] * 4, ["same clock"] * 4),
        ([RIGHT, line(9 * US), RIGHT, line(-9 * US)], ["same clock"] * 4),  # nothing speaks against it
        ([RIGHT, RIGHT, line(30 * MS), RIGHT], ["same clock", "same clock", "disagrees", "same clock"]),
        ([RIGHT, line(-5 * S), line(8 * MS), RIGHT], ["same clock", "disagrees", "disagrees", "same clock"]),
    ):
        result = analyzed([dataclasses.replace(one, **host) for one in together(clocks, 50)])
        assert [row.why for row in result.clocks] == whys
        assert [row.offset_ns == 0 for row in result.clocks] == [why == "same clock" for why in whys]


def test_a_clock_of_the_lowest_rank_that_is_wrong_alone_is_what_the_others_are_brought_to() -> None:
    ranks = [dataclasses.replace(one, host="one") for one in together([line(30 * MS), RIGHT, RIGHT], 50)]
    rows = analyzed(ranks).clocks
    assert [row.why for row in rows] == ["same clock", "disagrees", "disagrees"]
    assert rows[1].offset_ns == rows[2].offset_ns and abs(rows[1].offset_ns + 30 * MS) < 100 * US


def test_two_collectives_that_break_a_clock_are_not_enough() -> None:
    ranks = together([RIGHT, RIGHT], 50)
    moved = [
        dataclasses.replace(one, exec=dataclasses.replace(one.exec, begin_at_ns=one.exec.end_at_ns + 10 * MS,
                                                          end_at_ns=one.exec.end_at_ns + 11 * MS))
        if one.exec and one.seq in (7, 30) else one
        for one in ranks[1].calls
    ]  # fmt: skip
    ranks[1] = dataclasses.replace(ranks[1], calls=tuple(moved))
    result = analyzed([dataclasses.replace(one, host="one") for one in ranks])
    assert [row.why for row in result.clocks] == ["same clock", "same clock"]


def test_a_machine_whose_wall_clock_was_set_between_two_starts_has_one_clock_still() -> None:
    """Their instants rest on different ties: that difference is known, and taken off."""
    ranks = [dataclasses.replace(one, host="one", tie_ns=S) for one in together([RIGHT, line(4 * MS)], 50)]
    ranks[1] = dataclasses.replace(ranks[1], tie_ns=S + 4 * MS)
    result = analyzed(ranks)
    rows = of_rank(result, 1)
    assert [(row.why, row.offset_ns, row.uncertainty_ns, row.shifted) for row in rows] == [
        ("same clock", 4 * MS, 0, True)
    ]
    begins = [row.launch_at_ns for row in result.collectives if row.rank == 1]
    assert begins == [one.launch_at_ns - 4 * MS for one in ranks[1].calls]


def test_ranks_of_one_machine_tied_to_other_days_do_not_share_a_clock() -> None:
    ranks = [dataclasses.replace(one, host="one", tie_ns=S) for one in together([RIGHT, RIGHT], 50)]
    ranks[1] = dataclasses.replace(ranks[1], tie_ns=9 * S)
    assert [row.why for row in analyzed(ranks).clocks] == ["same clock", "disagrees"]


def test_a_clock_that_changes_its_pace_is_followed_in_pieces() -> None:
    bent: Reads = lambda at: round(at + 3 * MS + abs(at - 10 * S) * 200e-6)  # noqa: E731
    result = analyzed(together([RIGHT, bent], 1000))
    rows = of_rank(result, 1)
    assert len(rows) == 2 and [round(row.drift_ratio * 1e6, -1) for row in rows] == [-200, 200]
    assert rows[0].end_at_ns == rows[1].begin_at_ns and abs(rows[0].end_at_ns - 10 * S) < S / 2
    for at in (0, 5 * S, 9 * S, 11 * S, 20 * S):
        row = rows[int(at >= rows[1].begin_at_ns)]
        assert error_ns(row, bent, at) < 100 * US
    assert [finding.code for finding in clock_findings(result.clocks)] == ["clock-bent"]


def test_one_turn_that_was_matched_wrongly_fits_no_clock_and_is_said() -> None:
    """From the middle on, rank 1 shows the collective before."""
    ranks = together([RIGHT, RIGHT], 120, gap=200 * MS)
    calls = ranks[1].calls
    late = [dataclasses.replace(one, launch_at_ns=other.launch_at_ns, exec=other.exec, issued_at_ns=other.issued_at_ns)
            for one, other in zip(calls[60:], calls[59:], strict=False)]  # fmt: skip
    ranks[1] = dataclasses.replace(ranks[1], calls=(*calls[:60], *late))
    result = analyzed(ranks)
    (row,) = of_rank(result, 1)
    assert (row.why, row.shifted, row.uncertainty_ns) == ("not fitted", False, None)
    assert [finding.code for finding in clock_findings(result.clocks)] == ["clock-not-fitted"]


def test_a_clock_that_jumps_is_not_followed() -> None:
    jumped: Reads = lambda at: round(at + (40 * MS if at >= 10 * S else 0))  # noqa: E731
    (row,) = of_rank(analyzed(together([RIGHT, jumped], 1000)), 1)
    assert row.why == "not fitted"


def test_hosts_that_did_nothing_together_are_compared_by_their_wall_clocks() -> None:
    group = (Group("0", (0,), "gloo", 2),)
    ranks = [dataclasses.replace(one, groups=group, calls=()) for one in together([RIGHT, RIGHT], 5)]
    result = analyzed(ranks)
    assert [(row.why, row.uncertainty_ns, row.shifted) for row in result.clocks] == [
        ("same clock", 0, False), ("clock pairs", None, False),
    ]  # fmt: skip
    assert [finding.code for finding in clock_findings(result.clocks)] == ["clock-by-pairs"]


def test_an_exchange_that_may_be_empty_between_two_proves_nothing() -> None:
    """Rank 1 ends before rank 0 begins: with sizes that differ by rank that can be."""
    sizes: dict[str, Any] = {"op": "all_to_all_single", "group": "0"}
    first = [call(k + 1, k * 20 * MS + 5 * MS, ran=(k * 20 * MS + 5 * MS, k * 20 * MS + 9 * MS), ordinal=k,
                  nbytes_in=8, nbytes_out=8, **sizes) for k in range(30)]  # fmt: skip
    second = [call(k + 1, k * 20 * MS, ran=(k * 20 * MS, k * 20 * MS + MS), ordinal=k,
                   nbytes_in=16, nbytes_out=16, **sizes) for k in range(30)]  # fmt: skip
    result = analyzed([rank(0, calls=first), rank(1, calls=second)])
    assert len(result.matches) == 30 and [row.why for row in result.clocks] == ["same clock", "same clock"]


def waiting(reads: Reads, seed: int, count: int, other_from: int) -> list[Any]:
    """A rank whose collectives are all known by its own waiting alone; it calls something else from a turn on."""
    chance, mine = random.Random(9), random.Random(seed)
    calls = []
    for k in range(count):
        last = k * 20 * MS + chance.uniform(0, 200 * US)
        begin, end = last - mine.uniform(0, 100 * US), last + mine.uniform(50 * US, 250 * US)
        op = "all_reduce" if k < other_from else f"all_gather_{seed}"
        calls.append(call(k + 1, reads(begin), waits=((reads(begin), reads(end)),), ordinal=k, turn=k, op=op))
    return calls


def test_collectives_that_ranks_only_waited_for_tell_it_too_as_long_as_ranks_agree() -> None:
    wrong = line(-20 * MS, -40)
    ranks = [rank(number, calls=waiting(reads, number, 200, 150)) for number, reads in enumerate((RIGHT, wrong))]
    result = analyzed([dataclasses.replace(one, host=f"node{one.rank}") for one in ranks])
    (row,) = of_rank(result, 1)
    assert not result.matches and row.why == "fitted" and row.collectives == 150
    for at, stated in ((row.begin_at_ns, row.uncertainty_ns), (row.end_at_ns, row.uncertainty_end_ns)):
        assert stated is not None and error_ns(row, wrong, at) <= stated < 400 * US


def sends(own: Reads, peers: Reads, number: int, count: int, seed: int) -> Iterator[Any]:
    """Rank `number` of two: it sends and then receives, in turn."""
    chance = random.Random(seed)
    for k in range(count):
        at, way = k * 20 * MS, [chance.uniform(50, 400) * US for _ in range(3)]
        for turn, sender in enumerate((0, 1)):
            begin = at + turn * 5 * MS + way[turn]
            over = begin + (way[2] if sender == number else way[2] + 30 * US)
            op = "send" if sender == number else "recv"
            yield call(2 * k + turn + 1, own(begin - (op == "recv") * US), ran=(own(begin), own(over)), op=op,
                       ordinal=2 * k + turn, peer=1 - number)  # fmt: skip


def test_sends_and_receives_alone_tell_how_far_two_hosts_are_apart() -> None:
    wrong = line(40 * MS, 50)
    ranks = [rank(0, calls=sends(RIGHT, wrong, 0, 200, 1)), rank(1, calls=sends(wrong, RIGHT, 1, 200, 1))]
    result = analyzed([dataclasses.replace(one, host=f"node{one.rank}") for one in ranks])
    (row,) = of_rank(result, 1)
    assert row.why == "fitted"
    for at, stated in ((row.begin_at_ns, row.uncertainty_ns), (row.end_at_ns, row.uncertainty_end_ns)):
        assert stated is not None and error_ns(row, wrong, at) <= stated < 500 * US


def test_remote_calls_alone_tell_how_far_two_workers_are_apart() -> None:
    wrong, chance = line(-3 * S, 20), random.Random(3)
    calls, runs = [], []
    for k in range(200):
        there, back = (chance.uniform(80, 500) * US for _ in range(2))
        at = k * 20 * MS
        number = (1 << 48) + k
        calls.append(RpcCall(number, RpcOp.RPC_SYNC, "f", "b", False, False, at, at + US,
                             round(at + there + MS + back), None, 8, 8, 0, None))  # fmt: skip
        runs.append(RpcRun(number, "f", "a", wrong(at + there), wrong(at + there + MS), False, False, 8, 8, None))
    ranks = [rank(0), rank(1)]
    told = RankRpc(((1, "a"),), tuple(calls)), RankRpc(((2, "b"),), (), tuple(runs))
    made = [dataclasses.replace(one, host=f"node{one.rank}", rpc=rpc) for one, rpc in zip(ranks, told, strict=True)]
    (row,) = of_rank(analyzed(made), 1)
    assert row.why == "fitted" and row.collectives == 200
    for at, stated in ((row.begin_at_ns, row.uncertainty_ns), (row.end_at_ns, row.uncertainty_end_ns)):
        assert stated is not None and error_ns(row, wrong, at) <= stated < 600 * US


def test_of_many_hosts_each_is_fitted_and_ranks_of_one_have_one_clock() -> None:
    clocks = [line(host * 7 * MS, host * 3) for host in range(20) for _ in range(2)]
    ranks = [dataclasses.replace(one, host=f"host {one.rank // 2}") for one in together(clocks, 60, late=100 * US)]
    result = analyzed(ranks)
    assert [row.why for row in result.clocks] == ["same clock"] * 2 + ["fitted"] * 38
    for one, other in zip(result.clocks[::2], result.clocks[1::2], strict=True):
        assert dataclasses.replace(one, rank=0) == dataclasses.replace(other, rank=0)
    for number, row in enumerate(result.clocks):
        assert error_ns(row, clocks[number], 600 * MS) < 100 * US


def test_a_host_reached_only_through_others_has_their_uncertainty_on_top() -> None:
    clocks = [RIGHT, line(5 * MS), line(-5 * MS)]
    group = {name: Group(name, those, "gloo", 2) for name, those in (("a", (0, 1)), ("b", (1, 2)))}
    ranks = together(clocks, 100, seed=5)
    named: list[RankRun] = []
    for number, one in enumerate(ranks):
        own = [group[name] for name in "ab" if number in group[name].ranks]
        calls = [dataclasses.replace(each, group=own[k % len(own)].name, ordinal=k // 2)
                 for k, each in enumerate(one.calls) if number == 1 or k % 2 == (number == 2)]  # fmt: skip
        named.append(dataclasses.replace(one, groups=tuple(own), calls=tuple(calls)))
    result = analyzed(named)
    near, far = (of_rank(result, number)[0] for number in (1, 2))
    assert {match.ranks for match in result.matches} == {(0, 1), (1, 2)}
    assert far.uncertainty_ns and near.uncertainty_ns and far.uncertainty_ns > near.uncertainty_ns
    assert error_ns(far, clocks[2], far.begin_at_ns) <= far.uncertainty_ns


def instants(value: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """All instants in there, by the names that lead to them."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from instants(getattr(value, field.name), f"{name}.{field.name}")
    elif isinstance(value, dict):
        for table, rows in value.items():
            yield from instants(rows, f".{table}")
    elif isinstance(value, tuple) and name.endswith("backend"):
        yield from ((name, at) for entry in value for at in entry[2:4])
    elif isinstance(value, tuple):
        for one in value:
            yield from instants(one, name)
    elif isinstance(value, np.ndarray) and name.endswith(("at_ns", "compute")):
        yield from ((name, at) for at in value.ravel().tolist())
    elif name.endswith("at_ns") and value is not None:
        yield name, value


def test_every_instant_of_a_rank_is_moved_and_nothing_else() -> None:
    load = HostLoad(
        (HostMark(1000, 2000, 5, 6, 7),), (GcPause(1100, 1200, 2),), (Throttle(1300, 9, 0.5),),
        (LinkSample(1400, "a", "b", 1, 2, 3, 4),), (Pulse(1500, Phase.DATA, "s", "f", 1, 2),),
    )  # fmt: skip
    rpc = RankRpc(
        ((1, "a"),), (RpcCall(1, RpcOp.RPC_SYNC, "f", "b", False, False, 1100, 1200, 1300, None, 8, 8, 0, None),),
        (RpcRun(2, "f", "b", 1400, 1500, False, False, 8, 8, None),), (RpcWait(1600, 1700, 1),),
    )  # fmt: skip
    one = dataclasses.replace(
        rank(1, steps=[step(0, 1000, 2000), step(1, 2000, 3000)], calls=[call(1, 1200, ran=(1300, 1700))],
             phases=[mark(Phase.BACKWARD, 1050, 1900, 0)], ready=[ready(0, (0, 1100))], pauses=[pause(2100, 2200)],
             windows=[gpu_window(1000, 2000, Piece(1100, 1500, (1050, 1060)), Piece(1600, 1700))]),
        load=load, rpc=rpc, partial_steps=(step(2, 3000, 4000),),
    )  # fmt: skip
    before = analyze_rank(one)
    clock = ClockRow(1, 0, 0, 10**6, 500, 0.0, 1, 1, 5, True, "fitted")
    (after,) = aligned_tables([before], [clock])
    there, here = list(instants(before)), list(instants(after))
    assert [name for name, _ in there] == [name for name, _ in here]
    assert {name.split(".")[1] for name, _ in there} >= {"steps", "phases", "collectives", "activity", "rpc", "load"}
    moved = {(name, at - other) for (name, at), (_, other) in zip(there, here, strict=True)}
    unset = {(f".activity.device.launch_{end}_at_ns", 0) for end in ("begin", "end")}  # of work without a launch
    assert {(name, by) for name, by in moved if by != 500} == unset
    assert before.facts == after.facts and before.row == after.row and before.traffic == after.traffic
    lengths = [(row.wall_ns, row.compute_ns) for row in before.steps]
    assert lengths == [(row.wall_ns, row.compute_ns) for row in after.steps]


def test_what_comes_later_never_comes_earlier_on_the_reference_time() -> None:
    """Where one piece passes into the next with a jump either way."""
    for jump in (-400, 400):
        rows = [ClockRow(1, 0, 0, 1000, 50, 0.0, 1, 1, 9, True, ""), ClockRow(1, 0, 1000, 2000, 50 + jump, 0.0, 1, 1, 9, True, "")]  # fmt: skip  # noqa: E501
        found = Clock.of(rows).in_reference_time(np.arange(0, 3000))
        assert (np.diff(found) >= 0).all()
        assert found[100] == 50 and found[2900] == 2850 - jump


def test_a_drift_is_taken_off_to_the_nanosecond() -> None:
    row = ClockRow(1, 0, 10**9, 2 * 10**9, 7 * S, 250e-6, 1, 1, 9, True, "")
    at = np.array([0, 10**9, 5 * 10**9, 3600 * S])
    reads = at + row.offset_ns + np.rint((at - row.begin_at_ns) * row.drift_ratio).astype(np.int64)
    assert np.abs(Clock.of([row]).in_reference_time(reads) - at).max() <= 1
