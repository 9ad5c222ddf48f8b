"""What `bench buckets` says of few rounds, and of enough of them, on times that are made up."""

from __future__ import annotations

from typing import Any

from ddptrace.bench.experiments.buckets import EXPERIMENT, Options

MS = 1_000_000
TRUTH = {"comm_ns": MS, "hidden_ns": MS, "exposed_ns": 0, "overlap_ratio": 1.0}
STEP_MS = {"0": 15.1, "4": 10.0, "all": 12.0}


def told(rounds: int) -> str:
    """The sentence on three caps, of which 4 MiB is 5.1 and 2 ms shorter than the ends in every round."""
    times = {cap: [[round(ms * MS)]] * rounds for cap, ms in STEP_MS.items()}
    traced: dict[str, Any] = {f"cap-{cap}": TRUTH for cap in STEP_MS}
    one = {"setup": {}, "nbytes": 8, "times_ns": times, "traced": traced}
    (sentence,) = EXPERIMENT.sheet(Options(caps_mb=tuple(STEP_MS)), [one]).words
    return sentence


def test_of_fewer_than_six_rounds_the_lowest_median_is_named_and_neither_a_best_cap_nor_a_curve() -> None:
    assert told(5).startswith("Of 3 caps, 4 has the lowest median, 10.0 ms; ") and "best cap" not in told(5)
    assert "does not prove" in told(5) and "U-curve" not in told(5)


def test_of_six_rounds_the_best_cap_and_the_curve_are_named() -> None:
    assert told(6).startswith("The best of 3 caps is 4: a step takes 10.0 ms, 1.51 times as long at 0, 1.20 times")
    assert told(6).endswith("a U-curve with its minimum inside.")
