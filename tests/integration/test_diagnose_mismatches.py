"""Jobs whose ranks call different things, die or fail: `ddptrace diagnose` names the calls and their places."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ddptrace.units import size
from tests.hanging_jobs import Jobs, shown, started, verdict_of
from tests.programs.hanging import FEW, HANGING_STEP, LARGE, SMALL


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    ways = ("skip:2:1", "order:2:1", "size:2:1", "crash:2:1", "kill:2:1", "fail:2:1")
    with started(tmp_path_factory.mktemp("jobs"), *ways) as running:
        yield running


def test_a_collective_that_a_rank_skips_is_named_with_the_rank_and_both_places(jobs: Jobs) -> None:
    verdict = verdict_of(jobs.folder / "skip" / "run", 3, "mismatch")
    assert shown(verdict) == ("all_reduce", 16, (0,), (1,))
    assert verdict["likely"] == "rank 1 did not make the call of rank 0"
    assert "barrier on rank 1 at hanging.py:" in verdict["sentence"] and "in train" in verdict["sentence"]
    assert "all_reduce of 16 B on rank 0 at hanging.py:" in verdict["sentence"] and "share_loss" in verdict["sentence"]


def test_two_collectives_in_different_order_are_named_with_both_places(jobs: Jobs) -> None:
    verdict = verdict_of(jobs.folder / "order" / "run", 3, "mismatch")
    assert shown(verdict) == ("all_reduce", 16, (0,), (1,))
    assert "broadcast of 32 B on rank 1 at hanging.py:" in verdict["sentence"]
    assert "all_reduce of 16 B on rank 0 at hanging.py:" in verdict["sentence"]


def test_different_sizes_are_named_with_both(jobs: Jobs) -> None:
    verdict = verdict_of(jobs.folder / "size" / "run", 3, "mismatch")
    assert shown(verdict) == ("all_reduce", 4 * SMALL, (0,), (1,))
    assert f"all_reduce of {size(4 * LARGE)} on rank 1 at hanging.py:" in verdict["sentence"]
    assert f"all_reduce of {size(4 * SMALL)} on rank 0 at hanging.py:" in verdict["sentence"]


def test_a_call_in_which_the_backend_ends_the_process_is_named_all_the_same(jobs: Jobs) -> None:
    verdict = verdict_of(jobs.folder / "crash" / "run", 4, "mismatch")
    assert shown(verdict) == ("all_reduce", 16, (0,), (1,))
    assert f"all_reduce of {size(4 * FEW)} on rank 1 at hanging.py:" in verdict["sentence"]
    assert "all_reduce of 16 B on rank 0 at hanging.py:" in verdict["sentence"]


def test_a_killed_rank_is_told_with_what_the_other_waited_in(jobs: Jobs) -> None:
    verdict = verdict_of(jobs.folder / "kill" / "run", 4, "died")
    assert shown(verdict) == ("all_reduce", 16, (0,), (1,))
    assert verdict["where"][0].startswith(f"step {HANGING_STEP}, ")


def test_an_exception_comes_before_what_it_did_to_the_other_rank(jobs: Jobs) -> None:
    verdict = verdict_of(jobs.folder / "fail" / "run", 4, "failed")
    assert verdict["absent"] == [1]
    assert f"rank 1 failed in step {HANGING_STEP}: ValueError: the loss is not finite" in verdict["sentence"]


def test_what_differed_is_still_told_after_the_whole_job_was_killed(jobs: Jobs) -> None:
    verdict_of(jobs.folder / "skip" / "run", 3, "mismatch")
    jobs.end()
    assert shown(verdict_of(jobs.folder / "skip" / "run", 4, "mismatch"))[2:] == ((0,), (1,))
