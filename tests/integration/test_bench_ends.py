"""However a benchmark ends, its ranks end with it, and who shares its folder or its disk is told."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.benches import SMALL, refusal
from tests.launch import environment, in_background, in_foreground, server
from tests.ranks import Job
from tests.small_disk import fill, mounted

BUCKETS = ["ddptrace", "bench", "buckets", "--workload", "mlp", "--caps", "all", "--warmup", "0"]
COMMAND = [sys.executable, "-m", *BUCKETS]
ONCE = ("--rounds", "1", "--steps", "1")
ENDLESS = ("--rounds", "1000000", "--steps", "1")
SOON_S = 20
"""Far less than the 30 minutes that a rendezvous waits, or than ranks with nobody over them would go on."""


def start(
    out: Path, *words: str, started_as: Callable[[list[str]], list[str]] = in_foreground, **place: str
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        started_as([*COMMAND, *words, "--out", str(out)]),
        env=environment() | place,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def run(out: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *words, "--out", str(out)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def meeting_place() -> dict[str, str]:
    """Where ranks may meet that others than the benchmark start, as these tell them: a port that nobody has."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}


def forked(out: Path, *words: str, **place: str) -> AbstractContextManager[Job]:
    """A rank that is forked and finds `place` in its environment, on a host of its own, with no store of torchrun."""
    argv = [str(SMALL), *BUCKETS[2:], *words, "--out", str(out)]
    told = {"LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "TORCHELASTIC_USE_AGENT_STORE": None, **place}
    return server().started(argv, 1, environment(), to_the_end=True, torchrun=told)


def rank_of(job: Job) -> int:
    """The process of its only rank."""
    found: list[str] = []

    def is_there() -> bool:
        found[:] = Path(f"/proc/{job.launcher}/task/{job.launcher}/children").read_text().split()
        return bool(found)

    wait_for(is_there, "the rank was never forked")
    return int(found[0])


def wait_for(true: Callable[[], object], what: str, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def ranks_of(pid: int) -> list[int]:
    """Return the children that run the benchmark's own program; none while a thread of the parent just ended."""
    try:
        tasks = [task / "children" for task in Path(f"/proc/{pid}/task").iterdir()]
        children = [child for path in tasks for child in path.read_text().split()]
        return [int(child) for child in children if "bench.conduct" in Path(f"/proc/{child}/cmdline").read_text()]
    except OSError:
        return []


def is_gone(pid: int) -> bool:
    """Also where nobody has taken notice of its end yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def listens(pid: int) -> bool:
    """Whether the place where ranks meet is there: rank 0 waits for the others then."""
    told = dict(line.partition("=")[::2] for line in Path(f"/proc/{pid}/environ").read_text().split("\0"))
    return "MASTER_PORT" in told and listens_at(told["MASTER_PORT"], pid)  # else it is being started


def listens_at(number: str, pid: int) -> bool:
    port = f":{int(number):04X} "
    tables = (Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6"))
    return any(port in line and " 0A " in line for table in tables for line in table.splitlines())


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A benchmark in the midst of its rounds, of which there are very many, and its folder."""
    out = tmp_path_factory.mktemp("bench") / "out"
    with start(out, *ENDLESS) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("round 1 of"):
                break
        threading.Thread(target=process.stderr.read, daemon=True).start()  # that it never waits for a reader
        yield process, out
        process.kill()


def test_a_second_benchmark_in_the_same_folder_is_refused_and_the_first_goes_on(
    bench: tuple[subprocess.Popen[str], Path],
) -> None:
    first, out = bench
    said = refusal("buckets", *ONCE, "--out", out)
    assert f"another benchmark writes into {out}: wait for its end" in said
    assert first.poll() is None


def test_ranks_end_when_what_started_them_is_killed(bench: tuple[subprocess.Popen[str], Path]) -> None:
    process, _ = bench
    ranks = ranks_of(process.pid)
    assert len(ranks) == 2
    process.kill()
    wait_for(lambda: all(map(is_gone, ranks)), "the ranks go on", SOON_S)


@pytest.fixture
def meeting(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A benchmark whose rank 0 waits for rank 1, which was stopped at its birth; and both ranks."""
    with start(tmp_path / "out", *ENDLESS) as process:
        wait_for(lambda: len(ranks_of(process.pid)) == 2, "the ranks never started")
        ranks = sorted(ranks_of(process.pid))
        os.kill(ranks[1], signal.SIGSTOP)
        wait_for(lambda: listens(ranks[0]), "rank 0 never waited for the other")
        yield process, ranks
        process.kill()
        for rank in ranks:
            if not is_gone(rank):
                os.kill(rank, signal.SIGKILL)


@pytest.mark.parametrize(("ending", "status"), [(signal.SIGTERM, 128 + 15), (signal.SIGINT, 1)])
def test_a_benchmark_that_is_ended_while_ranks_meet_takes_them_along(
    meeting: tuple[subprocess.Popen[str], list[int]], ending: int, status: int
) -> None:
    process, ranks = meeting
    # WHEN a terminal, which means all of them, or somebody who means the command ends it
    if ending == signal.SIGINT:
        os.killpg(process.pid, ending)
    else:
        process.send_signal(ending)
    # THEN
    assert process.wait(SOON_S) == status
    wait_for(lambda: all(map(is_gone, ranks)), "the ranks go on", SOON_S)
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_a_rank_that_others_started_ends_while_it_waits_for_ranks(tmp_path: Path, ending: signal.Signals) -> None:
    place = {"RANK": "0", "WORLD_SIZE": "2", **meeting_place()}
    with forked(tmp_path, *ENDLESS, **place) as job:
        rank = rank_of(job)
        wait_for(lambda: listens_at(place["MASTER_PORT"], rank), "it never waited for the other")
        os.kill(rank, ending)
        assert job.statuses(SOON_S) == [ending], job.said  # no exit code: the signal ended it


def test_a_rank_in_the_background_of_a_shell_does_not_hear_ctrl_c(tmp_path: Path) -> None:
    place = {"RANK": "0", "WORLD_SIZE": "2", **meeting_place()}
    with start(tmp_path, *ENDLESS, started_as=in_background, **place) as process:
        wait_for(lambda: listens(process.pid), "it never waited for the other")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(SOON_S) == -signal.SIGTERM
        finally:
            process.kill()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MB, less than one segment of records takes."""
    with mounted(tmp_path, 3) as disk:
        yield disk


def test_a_full_disk_is_the_reason_that_is_told(small_disk: Path) -> None:
    out = small_disk / "out"
    out.mkdir()
    fill(small_disk)
    done = run(out, *ONCE)
    assert done.returncode == 1
    is_the_reason(done.stderr, out)


def test_a_disk_that_becomes_full_is_the_reason_that_ranks_tell(small_disk: Path) -> None:
    argv = [str(SMALL), *BUCKETS[2:], *ONCE, "--out", str(small_disk)]
    with server().started(argv, 2, environment(), to_the_end=True) as job:
        assert job.statuses(timeout_s=120) == [1 << 8] * 2  # as `os.wait` tells exit code 1
    is_the_reason(job.stderr, small_disk)


def is_the_reason(said: str, out: Path) -> None:
    assert "Traceback" not in said
    assert "No space left on device" in said.splitlines()[-1]
    assert str(out) in said.splitlines()[-1]


def test_ranks_with_folders_of_their_own_are_told_as_a_doubt(tmp_path: Path) -> None:
    # GIVEN two ranks whose folders are two, as on two hosts that share no disk
    place = {"WORLD_SIZE": "2", **meeting_place()}
    with (
        forked(tmp_path / "host-0", *ONCE, RANK="0", **place) as first,
        forked(tmp_path / "host-1", *ONCE, RANK="1", **place) as second,
    ):
        statuses = [job.statuses(timeout_s=120) for job in (first, second)]
    assert statuses == [[0], [0]], first.said + second.said
    # THEN
    sheet = (tmp_path / "host-0" / "buckets.md").read_text()
    assert "The folder is not shared: 1 of 2 ranks wrote their part of the traced runs on other hosts" in sheet
    assert not list(tmp_path.glob("host-*/.seen-*"))
