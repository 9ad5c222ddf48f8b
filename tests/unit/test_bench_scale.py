"""What is said of weak scaling, on made measurements."""

from __future__ import annotations

from typing import Any

import pytest

from ddptrace.bench.experiments.scale import EXPERIMENT, Options, points_of, words
from ddptrace.errors import DdptraceError

MS = 1_000_000
Json = dict[str, Any]


def job(
    workers: int, step_ms: float, exposed_ms: float, threads_per_core: float | None = 0.5, noise: float = 0
) -> Json:
    """Three rounds around `step_ms`; the traced step is as long as the untraced."""
    rounds = [[int(step_ms * factor * MS)] for factor in (1 - noise, 1, 1 + noise)]
    truth = {
        "window_ns": int(step_ms * MS),
        "comm_ns": int(2 * exposed_ms * MS),
        "hidden_ns": int(exposed_ms * MS),
        "exposed_ns": int(exposed_ms * MS),
        "overlap_ratio": 0.5,
        "evidence": "backend",
    }
    both = ("ddp", "bucketed")
    return {
        "setup": {"ranks": f"{workers} on 1 host"},
        "workers": workers,
        "batch_size": 4,
        "nbytes": 1000,
        "threads_per_core": threads_per_core,
        "times_ns": dict.fromkeys(both, rounds),
        "traced": dict.fromkeys(both, truth),
    }


def said(*jobs: Json) -> list[str]:
    return list(words({"ddp": points_of(jobs, "ddp")}))


def test_efficiency_is_one_workers_step_time_over_that_of_n() -> None:
    won, went = said(job(1, 100, 0), job(4, 125, 20))
    assert won == (
        "ddp trains 128 samples/s with 4 workers, 3.20 times as many as with 1: an efficiency of 80 % (80 % .. 80 %)."
    )
    assert went == (
        "ddp's traced step takes 125.0 ms with 4 workers and 100.0 ms with 1: 20.0 ms of the difference are exposed "
        "communication, the rest longer computation and idle time."
    )


def test_a_loss_within_the_noise_is_not_called_one() -> None:
    assert "not beyond the noise" in said(job(1, 100, 0, noise=0.1), job(2, 105, 1, noise=0.1))[0]
    assert "noise" not in said(job(1, 100, 0, noise=0.01), job(2, 150, 1, noise=0.01))[0]


def test_communication_that_is_all_of_the_difference_is_said_to_be() -> None:
    assert said(job(1, 100, 0), job(2, 110, 12))[1].endswith(
        "12.0 ms more exposed communication is all of the difference."
    )
    assert said(job(1, 100, 0), job(2, 90, 12))[1].endswith("although 12.0 ms of it are exposed communication.")


def test_too_few_cores_are_told_of_by_the_number_of_workers_that_has_them() -> None:
    found = said(job(1, 100, 0), job(2, 110, 12, threads_per_core=1), job(4, 200, 12, threads_per_core=2))
    assert found[2] == "With 2 workers every core computes: no core is left for the backend's threads."
    assert found[3].startswith("With 4 workers 2 computing threads share each core")
    assert "about 50 %" in found[3]
    assert len(said(job(1, 100, 0, None), job(4, 200, 12, None))) == 2, "a GPU computes"


def test_without_one_worker_there_is_no_efficiency() -> None:
    options = Options(ranks=(4,))
    made = EXPERIMENT.sheet(options, [job(4, 125, 20)])
    assert (
        made.words[0]
        == "ddp trains 128 samples/s with 4 workers; 1 worker was not measured, so there is no efficiency."
    )
    assert made.grids[0].rows[0][5:7] == ("-", "- .. -")


def test_rows_are_by_reducer_and_workers_whatever_the_order_of_the_jobs() -> None:
    made = EXPERIMENT.sheet(Options(), [job(4, 125, 20), job(1, 100, 0)])
    assert [row[:3] for row in made.grids[0].rows] == [
        ("ddp", "1", "100.0"),
        ("ddp", "4", "125.0"),
        ("bucketed", "1", "100.0"),
        ("bucketed", "4", "125.0"),
    ]
    assert made.setup == (("ranks", "4 on 1 host; 1 on 1 host"),)
    stack = made.charts[1]
    assert [line.y for line in stack.lines] == [(100.0, 105.0), (0.0, 20.0)]


def test_a_workload_that_is_none_is_refused_before_any_rank_starts() -> None:
    with pytest.raises(DdptraceError, match="no workload is called 'vgg'"):
        Options(workload="vgg")
