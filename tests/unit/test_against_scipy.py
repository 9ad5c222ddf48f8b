"""Every statistical routine of the project, held against SciPy's."""

from __future__ import annotations

import random
from statistics import median

import numpy as np
import pytest
from scipy import optimize, stats

from ddptrace.analysis.clocks.lines import cauchy, least_absolute, least_squares
from ddptrace.analysis.collectives.transfers import line
from ddptrace.analysis.diff.changes import ROTATIONS, against_chance
from ddptrace.analysis.ranks.replay import _mapped
from ddptrace.analysis.ranks.suspects import NEARLY_ALWAYS, USUALLY, average
from ddptrace.analysis.statistics import percentile, student_quantile
from ddptrace.analysis.steps.variation import SPREAD_OF_DEVIATION
from ddptrace.analysis.whatif.answer import scaling
from ddptrace.analysis.whatif.model import model_of
from ddptrace.analysis.whatif.observed import observe
from ddptrace.analysis.whatif.predict import Predictor
from ddptrace.bench.experiments.collectives_sheet import fit
from ddptrace.bench.experiments.ddp_sheet import over_cells
from ddptrace.bench.timing import ROUNDS_SURE, median_interval, quantile
from tests.unit.made_whatif import MS, Made, in_buckets, made_ranks

FREEDOMS = [*range(1, 31), 60, 99, 1000, 9999]
AFTER = np.arange(12) >= 6
SIZES = [10**6, 4 * 10**6, 16 * 10**6, 64 * 10**6]


@pytest.mark.parametrize("share", [USUALLY, NEARLY_ALWAYS])
def test_students_quantiles_are_exact(share: float) -> None:
    found = [student_quantile(freedom, share) for freedom in FREEDOMS]
    assert found == pytest.approx(stats.t.ppf(share, FREEDOMS), rel=1e-9)


def test_students_quantiles_of_one_two_and_three_degrees_of_freedom_are_those_of_every_printed_table() -> None:
    assert [round(student_quantile(freedom, 0.975), 3) for freedom in (1, 2, 3)] == [12.706, 4.303, 3.182]


@pytest.mark.parametrize("blocks", [2, 3, 4, 10])
def test_the_interval_of_a_mean_is_students(blocks: int) -> None:
    steps = np.random.default_rng(blocks).integers(0, 10**9, blocks)  # fewer than 20: each step is a block
    low, high = stats.t.interval(0.95, blocks - 1, steps.mean(), stats.sem(steps))
    one = average(steps)
    assert (one.low, one.high) == pytest.approx((low, high))
    assert one.z == pytest.approx(stats.ttest_1samp(steps, 0).statistic)


@pytest.mark.parametrize("count", [1, 2, 7, 19, 20, 21, 100])
@pytest.mark.parametrize("percent", [50, 90, 95, 100])
def test_a_percentile_is_the_inverse_of_the_empirical_distribution(count: int, percent: int) -> None:
    values = sorted(random.Random(count).choices(range(10**6), k=count))
    assert percentile(values, percent) == stats.quantile(np.array(values), percent / 100, method="inverted_cdf")


@pytest.mark.parametrize("count", [1, 2, 7, 20, 500])
@pytest.mark.parametrize("at", [0.0, 0.025, 0.05, 0.3, 0.9, 0.95, 1.0])
def test_a_benchmarks_quantile_is_the_nearest_value(count: int, at: float) -> None:
    values = sorted(random.Random(count).random() for _ in range(count))
    assert quantile(values, at) == np.quantile(values, at, method="nearest")


@pytest.mark.parametrize("count", [ROUNDS_SURE, 7, 9, 20, 21, 50])
def test_the_interval_of_a_median_is_the_narrowest_that_the_binomial_distribution_allows(count: int) -> None:
    ordered = list(range(count))
    low, high = median_interval(ordered)
    assert high == count - 1 - low
    beyond = 2 * stats.binom.cdf([low, low + 1], count, 0.5)
    assert beyond[0] <= 0.05 < beyond[1]


def test_one_cell_has_the_interval_of_its_median_which_resampling_makes_too_narrow() -> None:
    chance = random.Random(4)
    rounds = [chance.gauss(1, 0.1) for _ in range(7)]
    narrow = stats.bootstrap((rounds,), np.median, method="percentile", n_resamples=2000, random_state=0)
    middle, low, high = over_cells([rounds])
    assert (low, middle, high) == (min(rounds), median(rounds), max(rounds))
    assert low < narrow.confidence_interval.low and narrow.confidence_interval.high < high


def test_the_interval_over_cells_is_that_of_a_bootstrap_within_the_cells() -> None:
    chance = random.Random(5)
    cells = [[chance.gauss(1, 0.1) for _ in range(9)] for _ in range(3)]
    found = stats.bootstrap(
        cells,
        lambda *rounds, axis: np.median([np.median(one, axis=axis) for one in rounds], axis=0),
        method="percentile",
        n_resamples=4000,
        random_state=0,
    ).confidence_interval
    assert over_cells(cells)[1:] == pytest.approx((found.low, found.high), abs=0.01)


def test_the_start_and_the_rate_of_collectives_have_the_intervals_of_a_bootstrap() -> None:
    chance = random.Random(6)
    rounds = {size: [(5e5 + 0.5 * size) * chance.lognormvariate(0, 0.05) for _ in range(9)] for size in SIZES}
    found = stats.bootstrap(
        list(rounds.values()),
        lambda *times: line(SIZES, [float(np.median(one)) for one in times]),
        method="percentile",
        vectorized=False,
        n_resamples=2000,
        random_state=0,
    ).confidence_interval
    fitted = fit(rounds)
    assert fitted is not None and fitted.rate_low is not None and fitted.rate_high is not None
    assert (fitted.start_low_ns, fitted.start_high_ns) == pytest.approx((found.low[0], found.high[0]), abs=2e4)
    assert (1e9 / fitted.rate_high, 1e9 / fitted.rate_low) == pytest.approx((found.low[1], found.high[1]), rel=0.02)


@pytest.mark.parametrize("truth", [(5e5, 0.5), (-1e5, 1.0), (5e6, -0.01)])
def test_a_line_through_times_is_the_least_squares_without_negative_parts(truth: tuple[float, float]) -> None:
    sizes = np.array(SIZES, float)
    times = (truth[0] + truth[1] * sizes) * np.array([1.02, 0.97, 1.01, 1.0])
    expected, _ = optimize.nnls(np.column_stack((1 / times, sizes / times * 1e6)), np.ones(len(sizes)))
    assert line(SIZES, times.tolist()) == pytest.approx((expected[0], expected[1] * 1e6), rel=1e-6)


@pytest.mark.parametrize("is_paired", [False, True])
def test_one_quantity_of_two_sides_is_students_test(is_paired: bool) -> None:
    values = np.random.default_rng(7).normal(100, 5, 12) + 4 * AFTER
    test = (stats.ttest_rel if is_paired else stats.ttest_ind)(values[AFTER], values[~AFTER])
    found = against_chance(values[:, None], AFTER, np.arange(12) % 6 if is_paired else None)
    assert found is not None
    low, high = test.confidence_interval(0.95)
    assert found.reach[0] == pytest.approx((high - low) / 2)
    assert found.p[0] == pytest.approx(test.pvalue, abs=4 * (test.pvalue / ROTATIONS) ** 0.5)


def test_the_surest_of_many_unlike_quantities_is_as_sure_as_the_largest_of_so_many_directions() -> None:
    # with many runs the tests of unlike quantities hardly depend on each other: 1 - (1 - p)^count is the chance of one
    count, runs = 10, 400
    random_values = np.random.default_rng(8).normal(size=(runs, count))
    found = against_chance(random_values, np.arange(runs) % 2 == 0, None)
    assert found is not None
    best = int(found.p.argmin())
    assert found.joint_p[best] == pytest.approx(1 - (1 - found.p[best]) ** count, abs=0.03)
    adjusted = stats.false_discovery_control(found.p)  # controls less, so that it never asks for more
    assert (found.joint_p >= adjusted - 0.03).all()


@pytest.mark.parametrize("ranks", [4, 16, 64])
def test_the_slowest_of_many_simulated_ranks_is_their_largest_order_statistic(ranks: int) -> None:
    late = np.arange(16) * MS
    made = Made(late=tuple(late.tolist()))
    found = Predictor(model_of([observe(one) for one in made_ranks(made, in_buckets(made, 8))]))
    (row,) = (row for row in scaling(found, counts=(ranks,)) if row.algorithm == "tree")
    slowest = stats.beta(ranks, 1).ppf([0.02, 0.98])  # of the share of ranks below the slowest one, in a step
    low, high = stats.quantile(late, slowest, method="inverted_cdf") - np.median(late)
    assert low - MS <= row.jitter_ns <= high + MS


def test_a_ranks_times_are_mapped_to_the_same_quantiles_of_the_others() -> None:
    chance = np.random.default_rng(9)
    own, others = chance.permutation(50).astype(np.int64), chance.integers(0, 10**6, 150)
    shares = (stats.rankdata(own) - 0.5) / len(own)
    assert _mapped(own, others).tolist() == stats.quantile(others, shares, method="inverted_cdf").tolist()


def test_the_spread_of_a_part_is_the_median_deviation_scaled_to_a_normal_distribution() -> None:
    values = np.random.default_rng(10).normal(0, 1, 101)
    spread = SPREAD_OF_DEVIATION * np.median(np.abs(values - np.median(values)))
    assert spread == pytest.approx(stats.median_abs_deviation(values, scale="normal"), rel=1e-4)


def test_the_lines_of_clocks_are_the_least_squares_the_least_distances_and_cauchys() -> None:
    chance = np.random.default_rng(11)
    at = np.linspace(0, 100, 200)
    columns = np.column_stack((np.ones(200), at))
    values = 3e6 + 2e4 * at + 1e5 * chance.standard_cauchy(200)
    weights = chance.uniform(0.5, 2, 200)
    expected = optimize.lsq_linear(columns * weights[:, None] ** 0.5, values * weights**0.5).x
    assert least_squares(columns, values, weights) == pytest.approx(expected)

    def distances(line: np.ndarray) -> float:
        return float(np.abs(values - columns @ line).sum())

    least = optimize.minimize(
        distances, [3e6, 2e4], method="Nelder-Mead", options={"maxiter": 4000, "fatol": 1, "xatol": 1}
    )
    assert distances(least_absolute(columns, values)) <= 1.001 * least.fun
    robust = optimize.least_squares(
        lambda line: (columns @ line - values) / 1e5, [0.0, 0.0], loss="cauchy", x_scale=[1e6, 1e4]
    )
    assert cauchy(columns, values, np.ones(200), 1e5) == pytest.approx(robust.x, rel=1e-3)
