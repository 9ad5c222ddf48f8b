"""What a collective costs is found again in collectives that cost it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddptrace.analysis.whatif.again import Own, Scenario, own_times, play_all
from ddptrace.analysis.whatif.fit import fit_wire
from ddptrace.analysis.whatif.model import model_of
from ddptrace.analysis.whatif.observed import Sends, observe, sends_of
from ddptrace.analysis.whatif.play import play
from ddptrace.analysis.whatif.wire import Wire
from tests.unit.made_whatif import Made, in_buckets, made_ranks

MS = 1e6


def sends(wire: Wire, *nbytes: int, noise: float = 0.0) -> list[Sends]:
    """Eight backwards, a bucket every 5 ms."""
    chance = np.random.default_rng(0)
    arrived = np.arange(len(nbytes)) * 5 * MS
    played = play(arrived, nbytes, wire).done_ns
    return [Sends(arrived, played + chance.exponential(noise, len(nbytes)), np.array(nbytes)) for _ in range(8)]


@pytest.mark.parametrize("wire", [Wire(8e5, 8.0), Wire(1e5, 40.0), Wire(4e5, 1.0)])
def test_latency_and_rate_are_found_in_buckets_of_many_sizes(wire: Wire) -> None:
    found = fit_wire(sends(wire, 10_000, 100_000, 1_000_000, 4_000_000), 2)
    assert found.others[0].latency_ns <= wire.latency_ns <= found.others[-1].latency_ns
    assert found.wire.latency_ns == pytest.approx(wire.latency_ns, abs=0.002 * found.wire.alone_ns(4_000_000))
    assert found.wire.ns_per_byte == pytest.approx(wire.ns_per_byte, rel=0.03)
    assert found.error_ratio < 0.02
    assert (found.least_nbytes, found.most_nbytes) == (10_000, 4_000_000)


def test_the_rate_stands_up_to_noise() -> None:
    found = fit_wire(sends(Wire(2e5, 8.0), 100_000, 4_000_000, 4_000_000, noise=2 * MS), 2)
    assert found.wire.ns_per_byte == pytest.approx(8.0, rel=0.1)


def test_the_rate_is_that_by_which_all_is_over_whichever_bucket_ends_last() -> None:
    # two at once; the small one, launched second, gets less than half of the link
    arrived, nbytes = np.array([0.0, 10 * MS]), np.array([12_000_000, 5_000_000])
    over = 17_000_000 * 40.0
    found = fit_wire([Sends(arrived, np.array([over, 0.8 * over]), nbytes)] * 8, 2)
    assert found.wire.alone_ns(17_000_000) == pytest.approx(over, rel=0.02)


def test_buckets_of_one_size_leave_the_latency_open_within_what_is_likely() -> None:
    found = fit_wire(sends(Wire(4e5, 8.0), 4_000_000), 2)
    least, most = found.others
    assert least.latency_ns == 0
    assert 1 * MS <= most.latency_ns <= 2 * MS
    assert least.alone_ns(4_000_000) == pytest.approx(most.alone_ns(4_000_000), rel=0.01)


def test_clocks_that_lie_apart_do_not_matter() -> None:
    # launch, issued, done, bytes; the second rank's clock is 1 s ahead, and it came 3 ms later
    first = np.array([[0, 1, 20, 8]]) * 10**6
    second = np.array([[1003, 1004, 1020, 8]]) * 10**6
    found = sends_of([first, second])
    assert found.arrived_ns.tolist() == [3 * MS]
    assert found.done_ns.tolist() == [20 * MS]


def test_a_rank_that_is_done_early_waits_in_the_next_step() -> None:
    made = Made(late=(0, 0))
    model = model_of([observe(one) for one in made_ranks(made, in_buckets(made, 8))])
    own = Own(np.zeros(2), np.ones((2, 1)), np.array([10.0, 20.0]), np.zeros(2), 0.0)
    free = Scenario(in_buckets(made, 8), Wire(0.0, 0.0))
    assert play_all(model, free, [own] * 4).step_ns[-1] == pytest.approx(20)
    # the early one computes longer now, and both meet in another collective before that, of length 5
    met = Own(np.array([0.0, 7.0]), np.ones((2, 1)), np.array([20.0, 10.0]), np.zeros(2), 5.0)
    assert play_all(model, free, [met] * 4).step_ns[-1] == pytest.approx(25)


def test_what_launching_takes_is_added_before_each_later_bucket_and_to_backward() -> None:
    made = Made(late=(0,))
    model = model_of([observe(one) for one in made_ranks(made, in_buckets(made, 2))])
    plan = Scenario(in_buckets(made, 2), Wire(0.0, 0.0))
    before, after = (own_times(replace(model, launch_ns=ns), plan, model.samples[0]) for ns in (0.0, MS))
    assert (after.ready_ns - before.ready_ns).tolist() == [[0, MS, 2 * MS, 3 * MS]]
    assert (after.compute_ns - before.compute_ns).tolist() == [4 * MS]
