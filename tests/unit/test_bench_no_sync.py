"""What is said of synchronising less often, on made curves and times: never more than both of them tell."""

from __future__ import annotations

import pytest

from ddptrace.bench.experiments.no_sync import EXPERIMENT, Options, Way, words
from ddptrace.bench.timing import Spread

MS = 1_000_000
FIRST = (5.0, 4.0, 3.0, 2.0, 1.0)
"""Of n = 1: 3.5 is reached between the first and the second of four points."""


def way(count: int, losses: tuple[float, ...], low: float, high: float, rounds: int = 7) -> Way:
    middle = (low + high) / 2
    ratio = Spread(middle, low, high, low, high, rounds)
    time = Spread(10 * MS * middle, 10 * MS * low, 10 * MS * high, 0, 0, rounds)
    return Way(count, time, ratio, losses, {})


def said(losses: tuple[float, ...], low: float, high: float, rounds: int = 7) -> list[str]:
    one = way(1, FIRST, 1, 1, rounds)
    return words([one, way(4, losses, low, high, rounds)], 100, 2)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.55, 0.60, "synchronising less often loses more than it wins"),  # n = 1 needs at most half of the samples
        (0.50, 0.60, "do not show which is less"),
        (0.26, 0.45, "do not show which is less"),  # it needs between a quarter and a half of them
        (0.20, 0.25, "do not show which is less"),
        (0.20, 0.24, "it wins more than it loses"),
    ],
)
def test_a_verdict_holds_wherever_between_two_points_the_curve_came_down(low: float, high: float, verdict: str) -> None:
    assert verdict in said((5.0, 4.6, 4.2, 3.8, 3.5), low, high)[-1]


def test_both_points_are_told_as_samples_and_as_time() -> None:
    # 50 samples of each rank from point to point, at 10 ms each with n = 1, at 5 ms with n = 4
    told = said((5.0, 4.6, 4.2, 3.8, 3.5), 0.4, 0.6)[-1]
    assert told.startswith(
        "n = 1 reached 3.500 nats between 100 and 200 samples, 500 ms to 1.00 s at its time of a sample; "
        "n = 4 takes 1.00 s: "
    )
    assert "One training of each shows nothing of other seeds" in told


def test_a_loss_that_n_1_never_had_is_no_cost() -> None:
    assert said((5.0, 4.0, 2.0, 1.0, 0.5), 0.4, 0.6)[-1].startswith("n = 1 never reached 0.500")


def test_what_never_learned_lost_more_whatever_it_won() -> None:
    assert "loses more than it wins" in said((5.0, 5.1, 5.2, 5.3, 5.4), 0.2, 0.3)[-1]


@pytest.mark.parametrize(
    ("low", "high", "rounds", "ending"),
    [
        (0.4, 0.6, 7, "(0.40 .. 0.60)."),
        (0.9, 1.1, 7, "(0.90 .. 1.10, not beyond the noise)."),
        (0.9, 1.0, 7, "(0.90 .. 1.00, not beyond the noise)."),
        (1.1, 1.2, 7, "(1.10 .. 1.20, so it costs more)."),
        (0.5, 0.5, 1, "(0.50 .. 0.50, one round does not show the noise)."),
    ],
)
def test_a_gain_whose_interval_holds_1_is_not_called_one(low: float, high: float, rounds: int, ending: str) -> None:
    assert said((5.0, 4.6, 4.2, 3.8, 3.5), low, high, rounds)[0].endswith(ending)


@pytest.mark.parametrize(
    ("asked", "told"), [(16, "16 micro-batches a rank"), (19, "16 micro-batches a rank of 19 asked for, where every n")]
)
def test_micro_batches_that_make_no_whole_update_are_left_out_and_told(asked: int, told: str) -> None:
    true = {"comm_ns": 1, "hidden_ns": 1, "exposed_ns": 0, "overlap_ratio": 1.0, "evidence": "backend"}
    one = {
        "setup": {},
        "nbytes": 1,
        "ranks": 2,
        "times_ns": {"1": [[MS]] * 6, "4": [[MS]] * 6},
        "samples_a_time": 16,
        "traced": {"n-1": true, "n-4": true},
        "losses": {"1": FIRST, "4": FIRST},
        "samples_a_point": 32,
        "micro_batches": 16,
    }
    ((what, trained),) = EXPERIMENT.sheet(Options(counts=(1, 4), micro_batches=asked), [one]).setup
    assert what == "trained on" and trained.startswith(told) and ("asked" in trained) is (asked != 16)
