"""FSDP units played: one wire, ranks that wait for each other, and what fits the recorded collectives."""

from __future__ import annotations

import pytest

from ddptrace.analysis.units.forecast import Sent, fitted
from ddptrace.analysis.units.plan import Do, Op
from ddptrace.analysis.units.play import RoleCost, Wire, play_step
from ddptrace.schema import UnitRole

GATHER, REDUCE = UnitRole.UNSHARD, UnitRole.REDUCE_SCATTER
COSTS = {GATHER: RoleCost(10.0, 1.0), REDUCE: RoleCost(0.0, 2.0)}


def gather(number: int, nbytes: int) -> Op:
    return Op(Do.LAUNCH, nbytes, number, GATHER)


def reduce(number: int, nbytes: int) -> Op:
    return Op(Do.LAUNCH, nbytes, number, REDUCE)


def wait(number: int) -> Op:
    return Op(Do.WAIT, 0, number)


def work(ns: int) -> Op:
    return Op(Do.WORK, ns)


def test_a_gather_begins_with_the_last_rank_and_work_hides_it() -> None:
    ops = [gather(0, 90), work(60), wait(0), work(5)]
    played = play_step([ops, [work(30), *ops]], Wire(COSTS), [0.0, 0.0])
    assert played.ended_ns == (135.0, 135.0)  # 30 late, 10 latency, 90 bytes, then 5
    assert played.waited_ns == (70.0, 40.0)
    assert played.comm_ns == 100.0


def test_collectives_of_one_group_follow_each_other_and_those_of_two_share_the_wire() -> None:
    ops = [gather(0, 90), reduce(1, 50), wait(1), wait(0)]
    assert play_step([ops], Wire(COSTS), [0.0]).ended_ns == (200.0,)
    alone = [reduce(1, 50), wait(1), work(1)]
    both = play_step([[gather(0, 190), *alone]], Wire(COSTS, is_separate=True), [0.0])
    assert both.ended_ns == (201.0,)  # the reduction had half of the wire, and did not wait for the gather


def test_an_idle_link_sends_at_once_what_it_has_saved_up() -> None:
    ops = [reduce(0, 100), wait(0), reduce(1, 100), wait(1), work(30), reduce(2, 100), wait(2)]
    assert play_step([ops], Wire(COSTS, 50.0), [0.0]).ended_ns == (150 + 200 + 30 + 170.0,)


def test_a_rank_that_begins_late_ends_late() -> None:
    played = play_step([[work(10)], [work(10)]], Wire(COSTS), [0.0, 7.0])
    assert played.ended_ns == (10.0, 17.0)


def test_the_cost_of_each_role_and_what_an_idle_link_saves_are_fitted() -> None:
    saved, idle = 2e6, (0.0, 1e6, 9e6)
    sent = [
        Sent(step, role, nbytes, latency + rate * nbytes - min(saved, before, rate * nbytes), before)
        for step in range(3)
        for role, latency, rate in ((GATHER, 1e5, 20.0), (REDUCE, 3e5, 40.0))
        for nbytes in (250_000, 1_000_000)
        for before in idle
    ]
    costs, found = fitted(sent)
    assert found == saved
    assert costs[GATHER].ns_per_byte == pytest.approx(20.0, rel=0.01)
    assert costs[GATHER].latency_ns == pytest.approx(1e5, rel=0.1)
    assert costs[REDUCE].ns_per_byte == pytest.approx(40.0, rel=0.01)
    assert fitted([one for one in sent if one.idle_ns == 0.0])[1] == 0.0


def test_one_size_tells_no_latency() -> None:
    costs, saved = fitted([Sent(1, GATHER, 1000, 5000.0, 0.0)])
    assert (costs[GATHER], saved) == (RoleCost(0.0, 5.0), 0.0)
    assert costs[REDUCE] == RoleCost(0.0, 0.0)
