"""`ddptrace bench groups` where the cause is known beforehand: a slow wire, too few cores, one worker thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddptrace.bench.experiments.groups_sheet import MeasuredArrangement, points
from ddptrace.bench.experiments.groups_verdict import Cause, Verdict, verdict
from tests.benches import bench
from tests.launch import environment

pytestmark = pytest.mark.alone

GROUPS = ("groups", "--rounds", "2", "--steps", "2", "--warmup", "1")
COMMAND = [sys.executable, "-m", "ddptrace", "bench", *GROUPS]


def run(out: Path, *options: str) -> dict[str, Any]:
    """The answer of a job that is started here."""
    done = subprocess.run(
        [*COMMAND, "-o", str(out), *options],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "## What can be tuned" in done.stdout
    return told(out)


def told(out: Path) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads((out / "groups.json").read_text())
    return answer


def found(answer: dict[str, Any], job: int = 0) -> dict[tuple[str, str, int, int | None], MeasuredArrangement]:
    options = answer["options"]
    made = points(answer["measured"][job], options["nbytes"], options["calls"])
    return {(each.shape, each.mode, each.groups, each.threads): each for each in made}


def judged(before: MeasuredArrangement, after: MeasuredArrangement) -> Verdict:
    """By the traced spans alone: what else runs on this machine disturbs two kinds of runs unlike."""
    one, other = (replace(each.point, step_ns=each.point.span_ns or 0) for each in (before, after))
    return verdict(one, other, max(one.bytes_per_s, other.bytes_per_s))


def test_on_one_core_more_pairs_take_longer_because_of_the_core(tmp_path: Path) -> None:
    # GIVEN one core for 4 ranks
    options = ("--groups", "1,2", "--mb", "2", "--threads", "4")
    done = bench(*GROUPS, *options, out=tmp_path, ranks=4, ONE_CORE="1")
    assert "## What can be tuned" in done.stdout
    answer = told(tmp_path)
    at = found(answer)
    # THEN two pairs take longer, the core is why, and every execution was seen
    pairs = judged(at["pairs", "async", 1, None], at["pairs", "async", 2, None])
    assert pairs.cause is Cause.CORES, pairs.words
    assert at["pairs", "async", 2, None].point.cores == 1
    assert {each["evidence"] for each in answer["measured"][0]["calls"].values()} == {"backend"}
    # AND a rank makes 4 calls in its own pair, 8 in two groups that it is in
    assert [at[shape, "async", 2, None].point.calls for shape in ("pairs", "same")] == [4, 8]
    # AND launched one after the other, one runs at a time: two groups take turns
    sync = judged(at["same", "sync", 1, None], at["same", "sync", 2, None])
    assert sync.turns is not None and sync.turns > 1.5 and (at["same", "sync", 2, None].point.at_once or 2) <= 1
    # AND with as many worker threads as calls none stands behind another
    assert at["pairs", "async", 2, 4].point.behind_ns == 0 < (at["pairs", "async", 2, None].point.behind_ns or 0)


def test_many_calls_and_one_worker_thread_are_a_queue(tmp_path: Path) -> None:
    # GIVEN one call and then eight in one group of one thread, and an environment to try
    common = ("--groups", "1", "--threads", "1", "--mb", "4")
    many_answer = run(tmp_path / "many", *common, "--ranks", "2", "--calls", "8", "--try", "OMP_NUM_THREADS=3")
    bench(*GROUPS, *common, "--calls", "1", "--try", "", out=tmp_path / "one")
    one = found(told(tmp_path / "one"))["same", "async", 1, 1]
    many = found(many_answer)["same", "async", 1, 1]
    # THEN they take turns, and the queue is why
    queue = judged(one, many)
    assert queue.cause is Cause.QUEUE, queue.words
    assert queue.turns is not None and queue.turns > 6, "eight of them, one at a time"
    assert (many.point.at_once or 2) <= 1
    # AND the environment was that of a job of its own, which tried the most groups alone
    assert "OMP_NUM_THREADS=3" in many_answer["measured"][1]["setup"]["device"]
    assert {key[1] for key in found(many_answer, 1)} == {"async"}


@pytest.fixture
def hosts(hosts_tool: Path) -> Iterator[list[str]]:
    """The command that runs something on one of two hosts joined at 200 Mbit/s: `[*hosts, str(i), ...]`."""
    os.environ["HOSTS_PREFIX"] = f"ddg{os.getpid() % 10000}"
    subprocess.run([hosts_tool, "up", "2", "200mbit"], check=True)
    yield [str(hosts_tool), "exec"]
    subprocess.run([hosts_tool, "down"], check=True)


def test_between_hosts_at_a_set_rate_two_groups_share_the_wire(hosts: list[str], tmp_path: Path) -> None:
    # GIVEN one rank on each host, started by somebody else
    common = {key: value for key, value in environment().items() if key != "GLOO_SOCKET_IFNAME"}
    ranks = [
        subprocess.Popen(
            [*hosts, str(rank), *COMMAND, "-o", str(tmp_path), "--groups", "1,2", "--mb", "0.25", "--threads", "4"],
            env=common | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": "29841"},
        )
        for rank in range(2)
    ]
    assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    # THEN two groups take longer, cores are idle, and both together get what one got alone
    at = found(told(tmp_path))
    one, two = at["same", "async", 1, None], at["same", "async", 2, None]
    judgement = judged(one, two)
    assert judgement.cause is Cause.WIRE, judgement.words
    assert two.point.bytes_per_s < 1.3 * one.point.bytes_per_s
    assert two.point.cpu_ratio < 0.6
    # AND pairs that 2 ranks cannot make are left out
    assert {groups for shape, _, groups, _ in at if shape == "pairs"} == {1}
