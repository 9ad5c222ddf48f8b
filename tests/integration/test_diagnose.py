"""Jobs whose ranks wait for one that does not come: `ddptrace diagnose` names it and its place while they hang, and
after they were killed."""

from __future__ import annotations

import inspect
import json
import time
from collections.abc import Callable, Iterator

import pytest

from ddptrace.load.diagnosis.tables import BEAT_NS
from tests.hanging_jobs import Jobs, diagnose, shown, started, verdict_of
from tests.programs import hanging
from tests.programs.hanging import HANGING_STEP, WIDTH

BUCKET_NBYTES = 4 * (WIDTH * WIDTH + WIDTH)  # weight and bias of the one layer


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    ways = ("data:4:1,2", "forward:2:1", "stop:2:1", "p2p:2:1", "slow:2:1", "well:2:1")
    with started(tmp_path_factory.mktemp("jobs"), *ways) as running:
        yield running


def asleep_in(function: Callable[..., object]) -> str:
    """As a place is told: the function's line that sleeps for ever."""
    lines, first = inspect.getsourcelines(function)
    number = next(first + k for k, line in enumerate(lines) if "time.sleep(FOREVER_S" in line)
    return f"hanging.py:{number} in {function.__qualname__}"


def test_two_of_four_ranks_asleep_in_their_data_loaders_are_told_with_the_line(jobs: Jobs) -> None:
    verdict = verdict_of(jobs.folder / "data" / "run", 3, "stuck", where="hanging.py:")
    assert shown(verdict) == ("all_reduce", BUCKET_NBYTES, (0, 3), (1, 2))
    assert "(16.6 kB, bucket of DistributedDataParallel) of group 0" in verdict["sentence"]
    assert verdict["where"] == 2 * [f"step {HANGING_STEP}, data: {asleep_in(hanging.Samples.__getitem__)}"]
    assert verdict["likely"] == "its data loader does not return"


def test_a_rank_asleep_in_its_forward_is_told_with_the_line(jobs: Jobs) -> None:
    verdict = verdict_of(jobs.folder / "forward" / "run", 3, "stuck", where="hanging.py:")
    assert shown(verdict) == ("all_reduce", BUCKET_NBYTES, (0,), (1,))
    assert verdict["where"] == [f"step {HANGING_STEP}, forward: {asleep_in(hanging.Net.forward)}"]


def test_a_message_that_never_comes_is_told_with_its_sender_and_where_that_is_in_plain_python(jobs: Jobs) -> None:
    verdict = verdict_of(jobs.folder / "p2p" / "run", 3, "message", where="hanging.py:")
    assert shown(verdict) == ("recv", 16, (0,), (1,))
    assert verdict["where"] == [f"step {HANGING_STEP}: {asleep_in(hanging.p2p)}"]


def test_a_stopped_rank_is_told_from_one_that_died(jobs: Jobs) -> None:
    verdict = verdict_of(jobs.folder / "stop" / "run", 3, "held")
    assert shown(verdict) == ("all_reduce", 16, (0,), (1,))
    assert "kill -CONT" in verdict["likely"]


@pytest.mark.parametrize("way", ["slow", "well"])
def test_a_job_that_goes_on_is_well_however_slow_it_is(jobs: Jobs, way: str) -> None:
    verdict_of(jobs.folder / "data" / "run", 3, "stuck")  # by now all jobs have run for a while
    for _ in range(2):
        done = diagnose(jobs.folder / way / "run", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        first, *rest = json.loads(done.stdout)["verdicts"]
        assert first["kind"] == "well" and "go on" in first["sentence"]
        assert {one["kind"] for one in rest} <= {"slow"}


def test_the_terminal_says_who_waits_who_is_absent_and_where_they_are(jobs: Jobs) -> None:
    verdict_of(jobs.folder / "data" / "run", 3, "stuck", where="hanging.py:")
    said = diagnose(jobs.folder / "data" / "run").stdout.splitlines()
    asleep = asleep_in(hanging.Samples.__getitem__)
    assert said[0].startswith("ranks 1 and 2 have not arrived: all_reduce #")
    assert said[1].startswith(f"  waits    ranks 0 and 3: step {HANGING_STEP}, backward, in all_reduce #")
    assert said[2].startswith(f"  absent   ranks 1 and 2: step {HANGING_STEP}, data: {asleep} (for ")
    assert said[2].endswith(" s; alive)")
    assert said[3] == "  likely   its data loader does not return"


def test_what_hung_is_still_told_after_the_whole_job_was_killed(jobs: Jobs) -> None:
    verdict_of(jobs.folder / "data" / "run", 3, "stuck")
    time.sleep(2 * BEAT_NS / 1e9)  # of ranks that are gone, a hang is known up to their last beat
    jobs.end()
    done = diagnose(jobs.folder / "well" / "run")  # at once
    assert done.returncode == 4 and "alive" not in done.stdout
    assert shown(verdict_of(jobs.folder / "data" / "run", 4, "stuck"))[2:] == ((0, 3), (1, 2))
    verdict_of(jobs.folder / "well" / "run", 4, "killed")
