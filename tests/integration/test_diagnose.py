"""Jobs that hang, while they hang: `ddptrace diagnose` names rank, collective and place. And after they were killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.launch import PROGRAMS, environment
from tests.programs.hanging import HANGING_STEP, LARGE, SMALL, WIDTH

MOST_S = 60.0  # a machine that does much else starts a job slowly; what hangs is told of after 5 s
BUCKET_NBYTES = 4 * (WIDTH * WIDTH + WIDTH)  # weight and bias of the one layer
JOBS = (
    *("skip:2:1", "order:2:1", "size:2:1", "data:4:1,2", "forward:2:1", "kill:2:1", "stop:2:1", "fail:2:1", "p2p:2:1"),
    *("slow:2:1", "well:2:1"),
)


@dataclass(frozen=True)
class Jobs:
    """All of them at once, since what hangs takes no processor."""

    folder: Path
    process: subprocess.Popen[bytes]

    def end(self) -> None:
        """What somebody does who has waited long enough."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    folder = tmp_path_factory.mktemp("jobs")
    command = [sys.executable, str(PROGRAMS / "hanging.py"), str(folder), *JOBS]
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(command, env=environment(), stdout=said, stderr=said, start_new_session=True)
    running = Jobs(folder, process)
    yield running
    running.end()


def diagnose(run: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ddptrace", "diagnose", str(run), *options]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=60, check=False)


def verdict_of(run: Path, code: int, kind: str) -> dict[str, Any]:
    """The first verdict, once the exit code is this one and the verdict of this kind."""
    until, said = time.monotonic() + MOST_S, ""
    while time.monotonic() < until:
        done = diagnose(run, "--json")
        said = done.stdout + done.stderr
        if done.returncode == code:
            first: dict[str, Any] = json.loads(done.stdout)["verdicts"][0]
            if first["kind"] == kind:
                return first
        time.sleep(0.5)
    raise AssertionError(f"no {kind}, exit code {code} within {MOST_S} s: {said}")


def shown(verdict: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(
        tuple(one) if isinstance(one := verdict[name], list) else one for name in ("op", "nbytes", "waiting", "absent")
    )


def test_a_collective_that_a_rank_skips_is_named_with_the_rank_and_both_places(jobs: Jobs) -> None:
    verdict = verdict_of(jobs.folder / "skip" / "run", 3, "mismatch")
    assert shown(verdict) == ("all_reduce", 16, (0,), (1,))
    assert verdict["likely"] == "rank 1 left the call of rank 0 out"
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
    assert f"all_reduce of {4 * LARGE / 1e6:.1f} MB on rank 1 at hanging.py:" in verdict["sentence"]
    assert f"all_reduce of {4 * SMALL / 1e6:.1f} MB on rank 0 at hanging.py:" in verdict["sentence"]


def test_two_of_four_ranks_asleep_in_their_data_loaders_are_those_that_have_not_arrived(jobs: Jobs) -> None:
    verdict = verdict_of(jobs.folder / "data" / "run", 3, "stuck")
    assert shown(verdict) == ("all_reduce", BUCKET_NBYTES, (0, 3), (1, 2))
    assert "(16.6 kB, bucket of DistributedDataParallel) of group 0" in verdict["sentence"]
    assert all(place.startswith(f"step {HANGING_STEP}, ") for place in verdict["where"])


def test_a_rank_asleep_in_its_forward_is_the_one_that_has_not_arrived(jobs: Jobs) -> None:
    verdict = verdict_of(jobs.folder / "forward" / "run", 3, "stuck")
    assert shown(verdict) == ("all_reduce", BUCKET_NBYTES, (0,), (1,))
    assert verdict["where"][0].startswith(f"step {HANGING_STEP}, ")


def test_a_killed_rank_is_told_with_what_the_other_waited_in(jobs: Jobs) -> None:
    verdict = verdict_of(jobs.folder / "kill" / "run", 4, "died")
    assert shown(verdict) == ("all_reduce", 16, (0,), (1,))
    assert verdict["where"][0].startswith(f"step {HANGING_STEP}, ")


def test_a_stopped_rank_is_told_from_one_that_died(jobs: Jobs) -> None:
    verdict = verdict_of(jobs.folder / "stop" / "run", 3, "held")
    assert shown(verdict) == ("all_reduce", 16, (0,), (1,))
    assert "kill -CONT" in verdict["likely"]


def test_an_exception_comes_before_what_it_did_to_the_other_rank(jobs: Jobs) -> None:
    verdict = verdict_of(jobs.folder / "fail" / "run", 4, "failed")
    assert verdict["absent"] == [1]
    assert f"rank 1 failed in step {HANGING_STEP}: ValueError: the loss is not finite" in verdict["sentence"]


def test_a_message_that_never_comes_is_told_with_its_sender(jobs: Jobs) -> None:
    verdict = verdict_of(jobs.folder / "p2p" / "run", 3, "message")
    assert shown(verdict) == ("recv", 16, (0,), (1,))


@pytest.mark.parametrize("way", ["slow", "well"])
def test_a_job_that_goes_on_is_well_however_slow_it_is(jobs: Jobs, way: str) -> None:
    verdict_of(jobs.folder / "data" / "run", 3, "stuck")  # by now all jobs have run for a while
    for _ in range(3):
        done = diagnose(jobs.folder / way / "run", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        assert {one["kind"] for one in json.loads(done.stdout)["verdicts"]} <= {"well", "slow"}


def test_the_terminal_says_who_waits_who_is_absent_and_where_they_are(jobs: Jobs) -> None:
    verdict_of(jobs.folder / "data" / "run", 3, "stuck")
    said = diagnose(jobs.folder / "data" / "run").stdout.splitlines()
    assert said[0].startswith("ranks 1 and 2 have not arrived: all_reduce #")
    assert said[1].startswith(f"  waits    ranks 0 and 3: step {HANGING_STEP}, backward, in all_reduce #")
    assert said[2].startswith(f"  absent   ranks 1 and 2: step {HANGING_STEP}, ")


def test_what_hung_is_still_told_after_the_whole_job_was_killed(jobs: Jobs) -> None:
    verdict_of(jobs.folder / "data" / "run", 3, "stuck")
    verdict_of(jobs.folder / "skip" / "run", 3, "mismatch")
    jobs.end()
    assert shown(verdict_of(jobs.folder / "data" / "run", 4, "stuck"))[2:] == ((0, 3), (1, 2))
    assert shown(verdict_of(jobs.folder / "skip" / "run", 4, "mismatch"))[2:] == ((0,), (1,))
    kinds = [one["kind"] for one in json.loads(diagnose(jobs.folder / "well" / "run", "--json").stdout)["verdicts"]]
    assert kinds[0] == "killed"
