"""`python -m benchmarks blame` without training: what a plant costs, how ranks end, and what they leave behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import blame_quota as quota
from benchmarks import hosts
from benchmarks.__main__ import PLANTS as OFFERED
from benchmarks.blame import HEALTHY, Options, trials_of
from benchmarks.blame_plants import PLANTS, Planted, is_on, share_on, truth_of
from benchmarks.blame_sheet import sheet
from ddptrace.errors import DdptraceError
from tests.sentences import facts

MS = 1_000_000


def run(
    plant: str, late: int, *named: tuple[int, str, int], truth_ms: float = 10, on_ratio: float = 0.5
) -> dict[str, Any]:
    """As the benchmark writes them. `named`: rank, cause and ms of a step."""
    cost = truth_ms * MS
    said = [{"rank": rank, "cause": cause, "cost_ns": ms * MS, "cost_ratio": ms / 40} for rank, cause, ms in named]
    truth = {"cost_ns": cost, "low_ns": 0.95 * cost, "high_ns": 1.05 * cost, "plain_ns": 40 * MS}
    return {
        "plant": plant,
        "ranks": 2,
        "late": late,
        "named": said,
        "truth": truth,
        "on_ratio": on_ratio,
        "highest_ratio": 0.02,
    }


def test_the_truth_is_what_settled_steps_with_the_plant_take_longer() -> None:
    # two ranks, the first 2 steps of each block are disturbed, the first block warms up, and steps get slower
    times = [
        [
            (900 if step < 5 else 300 if step % 5 < 2 else 40 + 10 * is_on(step) + step % 5 * (1 + is_on(step)) + rank)
            * MS
            for step in range(60)
        ]
        for rank in (0, 2)
    ]
    found = truth_of(times)
    assert (found.cost_ns, found.low_ns, found.high_ns) == (13 * MS, 13 * MS, 13 * MS), "of 2, 3 and 4 the middle"
    assert found.plain_ns == 44 * MS, "the mean of both ranks"


def test_how_surely_the_truth_is_known_follows_the_blocks() -> None:
    # of 10 blocks with the plant one has 30 ms more, which moves the end of the interval and not the truth
    times = [(40 + 10 * is_on(step) + 30 * (45 <= step < 50) + step % 5 // 4) * MS for step in range(100)]
    found = truth_of([times])
    assert found.cost_ns == 10 * MS
    assert found.low_ns == 10 * MS


def test_half_of_the_judged_steps_have_the_plant() -> None:
    assert share_on(range(10, 50)) == 0.5
    assert share_on(range(5, 10)) == 1


def test_a_cost_is_that_of_a_step_that_has_the_plant() -> None:
    one = Planted.of(run("data", 1, (1, "data", 5)))
    assert (one.cost_ns, one.ratio, one.is_near) == (10 * MS, 1.0, True)
    assert not Planted.of(run("data", 1, (1, "data", 6))).is_near


@pytest.mark.parametrize(
    ("named", "rank", "cause"),
    [
        ([(1, "garbage collection", 5)], True, True),
        ([(1, "garbage collection", 5), (0, "data", 2)], True, True),
        ([(1, "other", 5)], True, False),
        ([(0, "garbage collection", 5)], False, False),
        ([], False, False),
    ],
)
def test_a_run_is_right_where_its_rank_is_the_first_and_its_cause_is_called_by_its_name(
    named: list[tuple[int, str, int]], rank: bool, cause: bool
) -> None:
    one = Planted.of(run("gc", 1, *named))
    assert (one.is_rank_right, one.is_cause_right) == (rank, cause)
    assert (one.ratio is None) == (not rank)


def test_the_sheet_counts_ranks_causes_costs_and_alarms() -> None:
    runs = [
        run("data", 1, (1, "data", 5)),
        run("data", 0, (0, "other", 4)),
        run("gc", 1),
        run(HEALTHY, 0),
        run(HEALTHY, 0, (1, "forward", 2)),
    ]
    made = sheet({"ranks": "2"}, {"link": "network namespaces need root"}, runs)
    skipped, *words = made.words
    assert skipped.startswith("Skipped: link (") and skipped.endswith("since network namespaces need root.")
    # rank right in 2 of 3, cause in 1, all required; cost within 10 % for 1 of 2 plants, 0.00 times the truth for the
    # other, 1 of 3 single runs; 1 of 2 healthy runs names a rank, none may
    assert list(map(facts, words)) == ["2 3 1 3 3 missed", "10 1 2 0.00 missed 1 3", "1 2 0 missed"]
    assert "furthest off for gc" in words[1]
    by_plant, each, healthy = made.grids
    assert [row[0] + row[2] + row[3] + row[4] for row in by_plant.rows] == ["data221", "gc100"]
    assert [(row[0], row[3]) for row in each.rows] == [("data", "1"), ("data", "0"), ("gc", "-")]
    assert healthy.rows == (("2", "2", "1", "40.0", "2 %", "rank 1: forward, 5 %"),)


def test_all_right_is_told_as_met() -> None:
    made = sheet({}, {}, [run("data", 1, (1, "data", 5)), run(HEALTHY, 0)])
    assert [": met" in sentence for sentence in made.words] == [True] * 3


def test_a_run_in_which_the_machine_stood_still_does_not_outweigh_the_others() -> None:
    still = run("data", 1, (1, "data", 9), truth_ms=90) | {
        "truth": {"cost_ns": 90 * MS, "low_ns": -20 * MS, "high_ns": 95 * MS, "plain_ns": 40 * MS}
    }
    made = sheet({}, {}, [run("data", 1, (1, "data", 5)), still])
    # cost within 10 % for 1 of 1 plant, 1.00 times the truth; 1 of 1 single runs; 1 run left out
    assert list(map(facts, made.words[1:])) == ["10 1 1 1.00 met 1 1", "1 10"]
    assert "furthest off for data" in made.words[1]
    assert made.grids[0].rows[0][5:8] == ("1.00", "1.00 .. 1.00", "1 of 1")


def test_runs_take_turns_and_are_the_same_whenever_they_are_drawn() -> None:
    options = Options(ranks=(2, 4), runs=4, healthy=2, plants=("data", "link", "gc"))
    drawn = list(trials_of(options, {"link": "no"}))
    assert drawn == list(trials_of(options, {"link": "no"}))
    assert [(one.plant, one.ranks) for one in drawn] == [
        ("data", 2),
        ("gc", 2),
        (HEALTHY, 2),
        (HEALTHY, 4),
        ("data", 4),
        ("gc", 4),
        (HEALTHY, 2),
        (HEALTHY, 4),
        ("data", 2),
        ("gc", 2),
        ("data", 4),
        ("gc", 4),
    ]
    assert {one.late for one in trials_of(Options(runs=40), {})} == {0, 1, 2, 3}


def test_the_command_offers_all_plants() -> None:
    assert tuple(OFFERED.split(",")) == tuple(PLANTS)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"plants": ("gremlins",)}, "no plant is called 'gremlins'"),
        ({"ranks": (1, 2)}, "start at least 2"),
        ({"steps": 19}, "19 steps are too few, use 20 or more"),
    ],
)
def test_what_cannot_be_measured_is_refused(asked: dict[str, Any], reason: str) -> None:
    with pytest.raises(DdptraceError, match=reason):
        Options(**asked)


def forked(body: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Forks need a process without threads, which a test's own may not be."""
    program = f"import os, time\nfrom pathlib import Path\nfrom benchmarks.forks import in_forks\n{body}"
    return subprocess.run(
        [sys.executable, "-c", program, str(folder)], capture_output=True, text=True, timeout=60, check=False
    )


ASK = "import sys; log = Path(sys.argv[1], 'log')\n"


def test_forks_give_back_what_they_found_in_their_order(tmp_path: Path) -> None:
    done = forked(ASK + "print(in_forks([lambda at=at: [at] * 90_000 for at in range(3)], log, 30)[2][-1])", tmp_path)
    assert (done.stdout, done.stderr) == ("2\n", "")


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        ("1 / 0", "rank 1 failed: ZeroDivisionError: division by zero"),
        ("os.kill(os.getpid(), 9)", "rank 1 failed: it was killed"),
        ("time.sleep(60)", "ranks are not done after 1 s"),
    ],
)
def test_one_fork_that_fails_ends_the_others_and_is_told(work: str, reason: str, tmp_path: Path) -> None:
    mark = tmp_path / "lived"
    body = (
        f"def ends(): {work}\ndef lives(): time.sleep(50); Path({str(mark)!r}).touch()\nin_forks([lives, ends], log, 1)"
    )
    began = time.monotonic()
    done = forked(ASK + body, tmp_path)
    assert reason in done.stderr.splitlines()[-1]
    assert time.monotonic() - began < 40
    assert not mark.exists()


def test_forks_are_killed_with_the_process_that_made_them(tmp_path: Path) -> None:
    body = "def stay(): log.with_name('pid').write_text(str(os.getpid())); time.sleep(60)\nin_forks([stay], log, 60)"
    program = f"import os, time\nfrom pathlib import Path\nfrom benchmarks.forks import in_forks\n{ASK}{body}"
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)]) as starter:
        told = tmp_path / "pid"
        wait_for(lambda: told.exists() and told.read_text())
        starter.send_signal(signal.SIGKILL)
    wait_for(lambda: is_gone(int(told.read_text())))


def wait_for(true: Callable[[], object]) -> None:
    until = time.monotonic() + 20
    while not true():
        assert time.monotonic() < until
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


needs_hosts = pytest.mark.skipif(bool(hosts.refusal()), reason="network namespaces are not permitted here")
needs_quota = pytest.mark.skipif(bool(quota.refusal()), reason="quotas of processor time are not permitted here")


@needs_hosts
def test_hosts_reach_each_other_at_a_rate_that_changes_and_are_gone_afterwards() -> None:
    with pytest.raises(ZeroDivisionError), hosts.network(2, 1) as network:
        names = network.namespaces
        listener = "import socket; s = socket.create_server(('10.77.0.2', 9)); print(flush=True); s.accept()"
        with subprocess.Popen(
            ["ip", "netns", "exec", names[1], sys.executable, "-c", listener], stdout=subprocess.PIPE
        ) as other:
            assert other.stdout is not None and other.stdout.readline()
            caller = "import socket; socket.create_connection(('10.77.0.2', 9), 10)"
            assert in_host(names[0], sys.executable, "-c", caller).returncode == 0
            other.kill()
        assert [rate_of(name) for name in names] == ["1Gbit", "1Gbit"]
        network.slow(is_slow=True)
        wait_for(lambda: rate_of(names[1]) == "200Mbit")
        assert rate_of(names[0]) == "1Gbit"
        raise ZeroDivisionError
    assert not set(names) & set(os.listdir("/run/netns"))  # noqa: PTH208 (names alone)


def in_host(name: str, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", "netns", "exec", name, *command], capture_output=True, text=True, check=False)


def rate_of(name: str) -> str:
    return in_host(name, "tc", "qdisc", "show", "dev", "eth0").stdout.split(" rate ")[1].split()[0]


@needs_hosts
def test_what_a_killed_process_left_is_removed_by_the_next_one() -> None:
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    left = f"ddptrace{int(ended.stdout)}-0"
    subprocess.run(["ip", "netns", "add", left], check=True)
    with hosts.network(2, 0):
        assert not Path("/run/netns", left).exists()


@needs_quota
def test_a_process_in_the_group_is_held_to_half_a_core_and_the_group_is_gone_afterwards() -> None:
    with quota.group() as group:
        group.hold(is_held=True)
        burnt = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); b = time.time()\n"
        burnt += "while time.time() < b + 1: pass\nprint(time.process_time())"
        done = subprocess.run(
            [sys.executable, "-c", burnt, str(group.folder / "cgroup.procs")],
            capture_output=True,
            text=True,
            check=True,
        )
        assert float(done.stdout) < 0.75
    assert not group.folder.exists()
