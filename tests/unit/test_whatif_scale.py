"""Many ranks on paper."""

from __future__ import annotations

import time

import numpy as np
import pytest

from ddptrace.analysis.whatif.again import Own, Scenario, play_all
from ddptrace.analysis.whatif.answer import scaling
from ddptrace.analysis.whatif.model import model_of
from ddptrace.analysis.whatif.observed import observe
from ddptrace.analysis.whatif.predict import Predictor
from ddptrace.analysis.whatif.tables import Setting
from ddptrace.analysis.whatif.wire import Wire
from ddptrace.errors import DdptraceError
from ddptrace.render.whatif.answers import scale_lines, scaling_figure
from ddptrace.render.whatif.words import SIMULATED
from tests.unit.made_whatif import MS, Made, in_buckets, made_ranks, step_ns


@pytest.fixture(scope="module")
def even() -> Predictor:
    made = Made()
    return Predictor(model_of([observe(one) for one in made_ranks(made, in_buckets(made, 2))]))


def test_as_many_ranks_as_were_recorded_take_as_long(even: Predictor) -> None:
    ring = scaling(even, counts=(2,))[0]
    assert ring.step_ns == pytest.approx(step_ns(Made(), in_buckets(Made(), 2)), rel=0.01)


def test_a_ring_waits_for_its_hops_and_a_tree_for_few(even: Predictor) -> None:
    rows = {(row.algorithm, row.ranks): row for row in scaling(even)}
    assert rows["ring", 4096].step_ns > 2 * rows["ring", 8].step_ns
    assert rows["tree", 4096].step_ns < 1.2 * rows["tree", 8].step_ns
    assert rows["ring", 4096].efficiency_ratio < rows["hierarchical", 4096].efficiency_ratio
    assert all(row.is_simulated for row in rows.values())


def test_ranks_that_vary_cost_more_the_more_of_them_there_are() -> None:
    made = Made(late=(0, 0, 0, 0, 0, 0, 0, 8 * MS))
    found = Predictor(model_of([observe(one) for one in made_ranks(made, in_buckets(made, 2))]))
    jitter = [row.jitter_ns for row in scaling(found, counts=(2, 64)) if row.algorithm == "tree"]
    assert jitter[0] < MS
    assert jitter[1] == pytest.approx(8 * MS, rel=0.1)


def test_a_thousand_ranks_of_a_hundred_buckets_are_simulated_within_a_second(even: Predictor) -> None:
    made = Made(numels=(250_000,) * 100, gaps=(MS,) * 100)
    found = Predictor(model_of([observe(one) for one in made_ranks(made, in_buckets(made, 1))]))
    ready = np.sort(np.random.default_rng(0).uniform(0, 1e8, (1024, 100)), axis=1)
    steps = [Own(np.full(1024, 4e7), ready, ready[:, -1], np.full(1024, 2e6), 0.0)] * 10
    began = time.perf_counter()
    play_all(found.model, Scenario(in_buckets(made, 1), Wire(1e5, 0.01)), steps)
    assert time.perf_counter() - began < 1


def test_the_number_of_ranks_that_is_asked_beside_many_counts_for_nothing(even: Predictor) -> None:
    assert scaling(even, Setting(ranks=64), counts=(8, 16)) == scaling(even, counts=(8, 16))


def test_what_a_run_cannot_tell_is_not_simulated(even: Predictor) -> None:
    with pytest.raises(DdptraceError, match="there is no rank 99"):
        scaling(even, Setting(even=99))


def test_a_run_of_one_rank_cannot_be_scaled() -> None:
    made = Made(late=(0,))
    found = Predictor(model_of([observe(one) for one in made_ranks(made, in_buckets(made, 2))]))
    with pytest.raises(DdptraceError, match="one rank communicates with nobody"):
        scaling(found)


def test_what_is_simulated_says_so_wherever_it_is_shown(even: Predictor) -> None:
    rows = scaling(even, counts=(8, 64))
    assert SIMULATED in "\n".join(scale_lines(rows, "as recorded", 8))
    figure = scaling_figure(rows)
    assert figure is not None
    assert "simulated" in figure.caption
    assert all("simulated" in line["name"] for line in figure.data)
    assert [line["x"] for line in figure.data] == [[8, 64]] * 3
