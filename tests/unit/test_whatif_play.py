"""One backward played, against times worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from ddptrace.analysis.whatif.play import play
from ddptrace.analysis.whatif.wire import Wire

ONE = Wire(latency_ns=10.0, ns_per_byte=2.0, workers=1)
TWO = Wire(latency_ns=10.0, ns_per_byte=2.0, workers=2)


def done(ready: list[float], nbytes: list[float], wire: Wire, slowdown: float = 0.0) -> list[float]:
    return play(np.array(ready), nbytes, wire, slowdown).done_ns.tolist()


def test_a_bucket_alone_takes_its_latency_and_its_bytes() -> None:
    assert done([100.0], [50.0], TWO) == [100 + 10 + 2 * 50]


def test_with_one_worker_a_bucket_waits_for_the_one_before() -> None:
    assert done([0.0, 20.0], [50.0, 5.0], ONE) == pytest.approx([110, 110 + 20])


def test_two_at_once_share_the_bytes_per_second_but_not_the_latency() -> None:
    # from 20 on both are past their latency, and each needs 90 of the wire to itself; they get it as 50 to 45, so that
    # the first is done after 90 * 95 / 50 = 171, when the second has 90 - 171 * 45 / 95 = 9 to go
    assert done([0.0, 10.0], [50.0, 45.0], TWO) == pytest.approx([191, 200])
    # equal ones, launched together
    assert done([0.0, 0.0], [50.0, 50.0], TWO) == pytest.approx([10 + 2 * 2 * 50] * 2)


def test_of_two_workers_the_third_bucket_waits_for_the_first_that_is_free() -> None:
    first, second, third = done([0.0, 0.0, 0.0], [50.0, 50.0, 10.0], TWO)
    assert (first, second) == pytest.approx((210, 210))
    assert third == pytest.approx(210 + 10 + 20)


def test_buckets_are_launched_in_order_whichever_is_ready_first() -> None:
    assert done([100.0, 0.0], [50.0, 50.0], ONE) == pytest.approx([210, 320])


def test_groups_that_take_turns_have_workers_of_their_own() -> None:
    turns = Wire(10.0, 2.0, workers=1, lanes=2)
    assert done([0.0, 0.0], [50.0, 50.0], turns) == pytest.approx([210, 210])


def test_compute_is_slowed_while_anything_is_sent_and_only_then() -> None:
    # sent from 100 to 210; beside it compute takes half as long again
    played = play(np.array([100.0]), [50.0], ONE, slowdown=0.5)
    assert played.at(np.array([40.0, 100.0, 140.0])).tolist() == pytest.approx([40, 100, 160])
    after = 110 / 1.5  # work done beside it
    assert played.at(np.array([100 + after + 30])).tolist() == pytest.approx([210 + 30])
    assert played.worked(np.array([160.0])).tolist() == pytest.approx([140])
    assert played.communicated(np.array([90.0, 150.0, 500.0])).tolist() == pytest.approx([0, 50, 110])


def test_a_slowed_backward_launches_its_later_buckets_later() -> None:
    # bucket 0 is sent from 0 to 110, in which 110 / 2 of the work to bucket 1 is done
    assert done([0.0, 80.0], [50.0, 5.0], ONE, slowdown=1.0) == pytest.approx([110, 110 + 25 + 20])


def test_a_network_that_takes_no_time_ends_each_bucket_as_it_is_launched() -> None:
    assert done([5.0, 7.0], [1e9, 1e9], Wire(0.0, 0.0)) == pytest.approx([5, 7])


def test_a_ring_of_more_ranks_has_more_hops_and_hardly_more_bytes() -> None:
    eight = ONE.scaled(2, 8)
    assert eight.latency_ns == pytest.approx(10.0 / 2 * 14)
    assert eight.ns_per_byte == pytest.approx(2.0 * (2 * 7 / 8))
    tree = ONE.scaled(2, 8, "tree")
    assert tree.latency_ns == pytest.approx(10.0 / 2 * 6)
    assert tree.ns_per_byte == pytest.approx(2.0 * 2)
    hosts = ONE.scaled(2, 16, "hierarchical", per_host=8)
    assert hosts.latency_ns == pytest.approx(10.0 / 2 * (6 + 2))
    assert hosts.ns_per_byte == pytest.approx(2.0)
