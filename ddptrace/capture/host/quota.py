"""How long a processor quota has held this process's control group, as Linux counts it.

/proc/self/cgroup      which group the process is in      1:cpu,cpuacct:/job/7      0::/job/7
/proc/self/mountinfo   where groups are mounted           … /sys/fs/cgroup/cpu …    … /sys/fs/cgroup …
                                                          version 1                 version 2

A group without a quota is bound by that of the nearest group around it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

PER_S: Final = 10**9
CONTROLLER: Final = "cpu"
ESCAPED: Final = re.compile(r"\\([0-7]{3})")  # a blank in a path, as mountinfo has it
ROOT, MOUNTED_AT = 3, 4  # fields of a line of mountinfo


@dataclass(frozen=True, slots=True)
class Held:
    """`held_ns`: time held so far, added over processors; `quota_ns`: processor time allowed per second."""

    held_ns: int
    periods: int
    quota_ns: int


class Quota:
    """`about`: the folder in /proc about this process."""

    def __init__(self, about: Path = Path("/proc/self")) -> None:
        self._about = about
        self._mounts = (about / "mountinfo").read_text()
        self._own = ""
        self._groups: tuple[Path, ...] = ()

    def look(self) -> Held | None:
        """Return the figures of the quota, None if there is none. Raises OSError if the system reports nothing."""
        own = (self._about / "cgroup").read_text()
        if own != self._own:  # the process may be put into another group
            self._own, self._groups = own, tuple(groups_around(own, self._mounts))
        return next(filter(None, map(_held, self._groups)), None)


def groups_around(own: str, mounts: str) -> Iterator[Path]:
    """Yield the folders of a process's group and of the groups around it, the nearest first. `own`, `mounts`: the text
    of its `cgroup` and `mountinfo` in /proc."""
    paths = {controllers: path for _, controllers, path in (line.split(":", 2) for line in own.splitlines())}
    first = next((path for controllers, path in paths.items() if CONTROLLER in controllers.split(",")), None)
    kind, path = ("cgroup2", paths.get("")) if first is None else ("cgroup", first)
    mount = next(_mounted(mounts, kind), None)
    if path is None or mount is None:
        return
    root, seen_at = mount
    inside = PurePosixPath(path)
    try:
        below = inside.relative_to(root)
    except ValueError:  # of a container, which sees its own group as the root
        below = PurePosixPath()
    folder = seen_at / below
    yield folder
    yield from (seen_at / parent for parent in below.parents if parent != below)


def _mounted(mounts: str, kind: str) -> Iterator[tuple[PurePosixPath, Path]]:
    """Yield the root group of each mounted tree of this kind with a processor controller, and its mount point."""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(" - ")
        parts, (name, _, options) = fields.split(), (rest.split(None, 2) + [""] * 3)[:3]
        if name == kind and (kind == "cgroup2" or CONTROLLER in options.split(",")):
            yield PurePosixPath(_plain(parts[ROOT])), Path(_plain(parts[MOUNTED_AT]))


def _plain(path: str) -> str:
    return ESCAPED.sub(lambda found: chr(int(found[1], 8)), path)


def _held(group: Path) -> Held | None:
    try:
        quota_ns = _quota_ns(group)
        stat = dict(line.split(None, 1) for line in (group / "cpu.stat").read_text().splitlines())
    except FileNotFoundError:  # the root has no quota
        return None
    if quota_ns is None:
        return None
    held_ns = int(stat["throttled_usec"]) * 1000 if "throttled_usec" in stat else int(stat.get("throttled_time", 0))
    return Held(held_ns, int(stat.get("nr_throttled", 0)), quota_ns)


def _quota_ns(group: Path) -> int | None:
    newer = group / "cpu.max"
    if newer.exists():
        quota, period = newer.read_text().split()
    else:
        quota, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    return None if quota in ("max", "-1") else int(quota) * PER_S // int(period)
