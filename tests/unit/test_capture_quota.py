"""The processor quota of this process's group: made trees of both versions of control groups, and a real one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddptrace.capture.host.host_load import Held, Quota

MOUNTED = Path("/sys/fs/cgroup")
FIRST = "31 23 0:29 {root} {at} rw,relatime - cgroup cgroup rw,{controllers}\n"
SECOND = "41 23 0:38 {root} {at} rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
OTHERS = (
    "24 1 8:1 / / rw - ext4 /dev/root rw\n27 24 0:5 / /proc rw - proc proc rw\n30 24 0:26 / /x rw - tmpfs none rw\n"
)


def about(tmp_path: Path, groups: str, mounts: str) -> Path:
    folder = tmp_path / "self"
    folder.mkdir(exist_ok=True)
    (folder / "cgroup").write_text(groups)
    (folder / "mountinfo").write_text(OTHERS + mounts)
    return folder


def first(folder: Path, quota_us: int, held_ns: int = 0, period_us: int = 100_000) -> Path:
    """A group of version 1."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.cfs_quota_us").write_text(f"{quota_us}\n")
    (folder / "cpu.cfs_period_us").write_text(f"{period_us}\n")
    (folder / "cpu.stat").write_text(f"nr_periods 90\nnr_throttled 7\nthrottled_time {held_ns}\n")
    return folder


def second(folder: Path, limit: str, held_us: int = 0) -> Path:
    """A group of version 2."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.max").write_text(f"{limit}\n")
    (folder / "cpu.stat").write_text(f"usage_usec 9\nnr_periods 90\nnr_throttled 7\nthrottled_usec {held_us}\n")
    return folder


def test_a_quota_of_version_1_is_told_with_what_it_held(tmp_path: Path) -> None:
    at = tmp_path / "cpu,cpuacct"
    first(at / "job" / "7", 150_000, 12_345)
    line = FIRST.format(root="/", at=at, controllers="cpu,cpuacct")
    cpuset = FIRST.format(root="/", at=tmp_path / "cpuset", controllers="cpuset")
    watch = Quota(about(tmp_path, "4:cpuset:/other\n3:cpuacct,cpu:/job/7\n0::/\n", cpuset + line))
    assert watch.look() == Held(12_345, 7, 1_500_000_000)


def test_a_quota_of_version_2_is_told_with_what_it_held(tmp_path: Path) -> None:
    at = tmp_path / "unified"
    second(at / "job:7", "50000 100000", 12_345)
    watch = Quota(about(tmp_path, "0::/job:7\n", SECOND.format(root="/", at=at)))
    assert watch.look() == Held(12_345_000, 7, 500_000_000)


def test_a_group_without_a_quota_is_held_by_that_of_the_nearest_around_it(tmp_path: Path) -> None:
    at = tmp_path / "unified"
    second(at / "far", "10000 100000", 1)
    second(at / "far" / "near", "20000 100000", 2)
    second(at / "far" / "near" / "own", "max 100000", 0)
    watch = Quota(about(tmp_path, "0::/far/near/own\n", SECOND.format(root="/", at=at)))
    assert watch.look() == Held(2000, 7, 200_000_000)


def test_a_container_is_in_the_tree_below_its_own_root(tmp_path: Path) -> None:
    """Its groups are named from the machine's root, and mounted from its own; or from elsewhere altogether."""
    at = tmp_path / "a b"
    first(at, -1)
    first(at / "inner", 50_000, 5)
    line = FIRST.format(root="/docker/abc", at=str(at).replace(" ", "\\040"), controllers="cpu")
    assert Quota(about(tmp_path, "1:cpu:/docker/abc/inner\n", line)).look() == Held(5, 7, 500_000_000)
    first(at, 25_000, 6)
    assert Quota(about(tmp_path, "1:cpu:/elsewhere\n", line)).look() == Held(6, 7, 250_000_000)


@pytest.mark.parametrize("groups", ["0::/\n", "1:cpu:/job\n0::/\n", "", "5:memory:/\n"])
def test_where_there_is_no_quota_nothing_is_told(tmp_path: Path, groups: str) -> None:
    at = tmp_path / "cpu"
    first(at / "job", -1)
    mounts = FIRST.format(root="/", at=at, controllers="cpu") + SECOND.format(root="/", at=tmp_path / "unified")
    assert Quota(about(tmp_path, groups, mounts)).look() is None
    assert Quota(about(tmp_path, groups, "")).look() is None


def test_a_process_that_is_put_into_another_group_is_told_by_that(tmp_path: Path) -> None:
    at = tmp_path / "unified"
    second(at / "one", "max 100000")
    second(at / "two", "50000 100000", 3)
    mounts = SECOND.format(root="/", at=at)
    watch = Quota(about(tmp_path, "0::/one\n", mounts))
    assert watch.look() is None
    about(tmp_path, "0::/two\n", mounts)
    assert watch.look() == Held(3000, 7, 500_000_000)


@pytest.fixture
def real_group() -> Iterator[Path]:
    """A group of this machine with a tenth of a processor, for the test alone."""
    own = MOUNTED / "cpu" / f"ddptrace-test-{os.getpid()}"
    try:
        own.mkdir()
    except OSError as error:
        pytest.skip(f"needs control groups of version 1 that may be written: {error}")
    (own / "cpu.cfs_period_us").write_text("10000")
    (own / "cpu.cfs_quota_us").write_text("1000")
    yield own
    until = time.monotonic() + 10
    while own.exists() and time.monotonic() < until:
        try:
            own.rmdir()
        except OSError:  # what ended in it is not all gone yet
            time.sleep(0.05)


BURNING = """
import os, sys, time
from pathlib import Path
from ddptrace.capture.host.host_load import Quota
Path(sys.argv[1]).write_text("0")  # joins the group, in which importing the above would take 14 s
watch = Quota()
before = watch.look()
until = time.monotonic() + 1
while time.monotonic() < until:
    pass
after = watch.look()
print(before.quota_ns, after.held_ns - before.held_ns, after.periods - before.periods, flush=True)
os._exit(0)  # in the group, Python's shutdown would take long, too
"""


@pytest.mark.alone  # with too little of a processor, it never comes to its quota
def test_a_process_that_wants_more_than_a_real_quota_was_held(real_group: Path) -> None:
    """It wants a whole processor for a second and gets a tenth of one."""
    command = [sys.executable, "-c", BURNING, real_group / "cgroup.procs"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    quota_ns, held_ns, periods = map(int, done.stdout.split())
    assert quota_ns == 10**8
    assert held_ns > 4 * 10**8 and periods > 20
