"""What is said of hooks, on made measurements: each stands beside no hook in the same buckets."""

from __future__ import annotations

from typing import Any

import pytest

from ddptrace.bench.experiments.hooks import EXPERIMENT, Options

MS = 1_000_000
TRUE = {"comm_ns": MS, "hidden_ns": 0, "exposed_ns": MS, "overlap_ratio": 0.0, "evidence": "backend"}


def job(step_ms: dict[str, int], nbytes: dict[str, int], notes: dict[str, str]) -> dict[str, Any]:
    return {
        "setup": {"ranks": "2 on 1 host"},
        "nbytes": 1000,
        "ranks": 2,
        "coarse_ratio": 0.0,
        "times_ns": {name: [[ms * MS]] * 6 for name, ms in step_ms.items()},
        "traced": dict.fromkeys(step_ms, TRUE),
        "notes": dict.fromkeys(step_ms, "") | notes,
        "errors": dict.fromkeys(step_ms, 0.5),
        "sent": {name: {"calls": 1.0, "nbytes": nbytes[name]} for name in step_ms},
    }


IN_ONE = {"PowerSGD": "in one bucket: with several, it stands still"}
SENT = {"none": 1000, "none, one bucket": 1000, "fp16": 500, "PowerSGD": 10}


def said(*jobs: dict[str, Any]) -> tuple[list[str], dict[str, str]]:
    """The words, and the ratio of each hook."""
    made = EXPERIMENT.sheet(Options(), list(jobs))
    grid = made.grids[0]
    return list(made.words), {row[0]: row[grid.heads.index("ratio to none")] for row in grid.rows}


def test_power_sgd_in_one_bucket_stands_beside_no_hook_in_one_bucket() -> None:
    # GIVEN that one bucket alone makes a step twice as long, and the hook in it half of that
    one = job({"none": 100, "none, one bucket": 200, "fp16": 50, "PowerSGD": 100}, SENT, IN_ONE)
    words, ratios = said(one)
    assert ratios == {"none": "1.00", "none, one bucket": "2.00", "fp16": "0.50", "PowerSGD": "0.50"}
    (told,) = [sentence for sentence in words if sentence.startswith("PowerSGD")]
    assert "a step 0.50 times as long as without a hook, also in one bucket (0.50 .. 0.50: shorter)" in told
    (told,) = [sentence for sentence in words if sentence.startswith("fp16")]
    assert "a step 0.50 times as long (0.50 .. 0.50: shorter)" in told


def test_power_sgd_in_several_buckets_stands_beside_no_hook_in_several() -> None:
    words, ratios = said(job({"none": 100, "PowerSGD": 50}, SENT, {}))
    assert ratios["PowerSGD"] == "0.50" and not any("in one bucket" in sentence for sentence in words)


@pytest.mark.parametrize(("rounds", "head"), [(3, "range of the rounds"), (6, "95 % interval")])
def test_the_head_of_the_intervals_says_what_they_are(rounds: int, head: str) -> None:
    one = job({"none": 100, "fp16": 50}, SENT, {})
    one["times_ns"] = {name: times[:rounds] for name, times in one["times_ns"].items()}
    assert EXPERIMENT.sheet(Options(), [one]).grids[0].heads[4] == head
