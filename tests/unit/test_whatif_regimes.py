"""Messages of a size that are sent in another way are found where they show it, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.whatif.answer import answer
from ddptrace.analysis.whatif.fit import fit_wire
from ddptrace.analysis.whatif.model import model_of
from ddptrace.analysis.whatif.observed import Sends, observe
from ddptrace.analysis.whatif.play import Floats, play
from ddptrace.analysis.whatif.predict import Predictor
from ddptrace.analysis.whatif.tables import Setting, SmallCost
from ddptrace.analysis.whatif.wire import Small, Wire
from ddptrace.render.whatif.words import cost_words
from tests.unit.made_whatif import MS as MADE_MS
from tests.unit.made_whatif import Made, in_buckets, made_ranks, step_ns

pytestmark = pytest.mark.long

MS = 1e6
SIZES = np.array([40, 80, 150, 250, 1200, 2500, 5000, 9000, 120, 60]) * 1000
EAGER = Wire(2 * MS, 10.0, small=Small(400_000, 0.1 * MS, 2.0))
"""As where large messages ask before they are sent."""
NUMELS = (20_000, 700_000, 40_000, 900_000, 60_000, 30_000, 1_200_000, 80_000)


def sent(wire: Wire, apart_ns: float, noise: float = 0.05, seed: int = 0, sizes: Ints = SIZES) -> list[Sends]:
    """Twelve backwards; each message takes up to `noise` times longer than it should."""
    chance = np.random.default_rng(seed)
    return [_one(wire, chance.permutation(sizes), apart_ns, noise, chance) for _ in range(12)]


def _one(wire: Wire, sizes: Ints, apart_ns: float, noise: float, chance: np.random.Generator) -> Sends:
    arrived: Floats = np.arange(len(sizes)) * apart_ns + chance.uniform(0, 0.1 * apart_ns, len(sizes))
    done = play(arrived, sizes.tolist(), wire).done_ns
    return Sends(arrived, done + (done - arrived) * chance.uniform(0, noise, len(sizes)), sizes)


@pytest.mark.parametrize("apart_ms", [120, 40])
@pytest.mark.parametrize("seed", range(3))
def test_two_ways_of_sending_are_found_with_what_each_costs(apart_ms: float, seed: int) -> None:
    fitted = fit_wire(sent(EAGER, apart_ms * MS, seed=seed), 2)
    found = fitted.wire
    assert found.small is not None and EAGER.small is not None
    assert 250_000 <= found.small.most_nbytes < 1_200_000
    for nbytes in (50_000, 200_000, 2_000_000, 8_000_000):
        assert found.alone_ns(nbytes) == pytest.approx(EAGER.alone_ns(nbytes), rel=0.1)
    assert all(wire.small == found.small for wire in fitted.others)


@pytest.mark.parametrize("wire", [Wire(0.2 * MS, 10.0), Wire(2 * MS, 1.0), Wire(0.0, 40.0)])
@pytest.mark.parametrize("noise", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("apart_ms", [400, 20])
def test_one_way_of_sending_is_not_taken_for_two(wire: Wire, noise: float, apart_ms: float) -> None:
    assert all(fit_wire(sent(wire, apart_ms * MS, noise, seed), 2).wire.small is None for seed in range(2))


def test_a_link_that_rested_lets_small_messages_pass_and_that_is_no_way_of_sending() -> None:
    """As a shaper does: what follows upon others pays in full, so that size alone tells nothing."""
    wire = Wire(0.2 * MS, 40.0)
    backwards = []
    for one in sent(wire, 20 * MS, sizes=np.array([40, 90, 150, 250, 60, 120, 200, 9000, 8000, 150]) * 1000):
        rested = one.were_alone & (one.nbytes < 256_000)
        quick = np.where(rested, one.arrived_ns + 0.3 * (one.done_ns - one.arrived_ns), one.done_ns)
        backwards.append(Sends(one.arrived_ns, quick, one.nbytes))
    found = fit_wire(backwards, 2).wire
    assert (found.small, found.ns_per_byte) == (None, pytest.approx(40.0, rel=0.1))


def test_messages_without_bytes_and_without_time_are_no_small_ones() -> None:
    backwards = sent(EAGER, 120 * MS, sizes=np.array([0, 0, 40_000, 90_000, 5_000_000, 0]))
    instant = [Sends(one.arrived_ns, np.where(one.nbytes < 100_000, one.arrived_ns, one.done_ns), one.nbytes)
               for one in backwards]  # fmt: skip
    for found in (fit_wire(backwards, 2), fit_wire(instant, 2)):
        assert np.isfinite(found.wire.alone_ns(50_000))


def test_small_messages_of_one_size_tell_no_line() -> None:
    assert fit_wire(sent(EAGER, 120 * MS, sizes=np.array([200, 5000, 9000, 200]) * 1000), 2).wire.small is None


@pytest.mark.parametrize("size", [1, 3, 8])
def test_other_buckets_are_foretold_of_a_wire_with_two_ways(size: int) -> None:
    made = Made(numels=NUMELS, gaps=(60 * MADE_MS,) * 8, latency=4 * MADE_MS, byte_ns=10.0, small=500_000)
    ranks = made_ranks(made, in_buckets(made, 1))
    found = Predictor(model_of([observe(one) for one in ranks]))
    assert found.model.fit.wire.small is not None
    caps = tuple(4 * sum(NUMELS[one] for one in bucket) / 2**20 for bucket in in_buckets(made, size))
    told = found.predict("", Setting(caps=caps))
    assert told.buckets == -(-8 // size)
    assert told.step_ns == pytest.approx(step_ns(made, in_buckets(made, size)), rel=0.02)


def test_the_words_and_the_json_tell_both_ways() -> None:
    made = Made(numels=NUMELS, gaps=(60 * MADE_MS,) * 8, latency=4 * MADE_MS, byte_ns=10.0, small=500_000)
    found = answer(Predictor(model_of([observe(one) for one in made_ranks(made, in_buckets(made, 1))])), {})
    told = found.to_json_dict()["cost"]["small"]
    assert 320_000 < told["most_nbytes"] < 2_800_000  # the largest small one, and the smallest large one
    assert told["latency_ns"] < 0.01 * MS and told["bytes_per_s"] == pytest.approx(0.3e9, rel=0.01)
    small = SmallCost(548_000, 98_000, 500e6)
    words = cost_words(replace(found.cost, small=small))
    assert ", one of at most 548 kB 98.0 µs and its bytes at 500 MB/s: fitted to" in words
    assert "at most 548 kB 98.0 µs: fitted" in cost_words(replace(found.cost, small=replace(small, bytes_per_s=None)))


def test_other_links_and_ranks_are_told_of_both_ways() -> None:
    wire = EAGER.costing(0.5, 2.0)
    assert (wire.cost(100_000), wire.cost(1_000_000)) == ((0.05 * MS, 400_000.0), (1 * MS, 20_000_000.0))
    scaled = EAGER.scaled(2, 4)
    assert scaled.small is not None and scaled.small.latency_ns == pytest.approx(3 * 0.1 * MS)
    assert scaled.small.ns_per_byte == pytest.approx(1.5 * 2.0)
