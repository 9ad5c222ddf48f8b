"""Half a core for one process: a separate control group, version 1 or 2, with a quota of processor time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddptrace.capture.host.host_load import groups_around
from ddptrace.errors import DdptraceError

PERIOD_US: Final = 10_000
HALF_US, PLENTY_US = 5_000, 100_000
"""Quotas for each period: half a core, and more than a process with few threads can use."""

BELOW: Final = "cgroup.subtree_control"
"""File that names what the groups below control; only in version 2."""

NAME: Final = "ddptrace-blame-"
REMOVED_S: Final = 2.0
"""Time that the kernel may take to release a process that has ended."""


@dataclass(frozen=True, slots=True)
class Group:
    folder: Path
    is_second: bool  # version 2

    def join(self) -> None:
        """Move this process into the group."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def hold(self, *, is_held: bool) -> None:
        """Limit the group to half a core, or to more than it can use."""
        quota = HALF_US if is_held else PLENTY_US
        if self.is_second:
            (self.folder / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (self.folder / "cpu.cfs_quota_us").write_text(str(quota))


def refusal() -> str:
    """Return why this machine sets no quota; empty if it does."""
    try:
        with group():
            return ""
    except DdptraceError as error:
        return str(error)


@contextmanager
def group() -> Iterator[Group]:
    """Make a control group, and remove it at the end, when its processes have ended.

    Raises: DdptraceError if the system grants none.
    """
    parent, is_second = _parent()
    _sweep(parent)
    made = Group(parent / f"{NAME}{os.getpid()}", is_second)
    try:
        try:
            made.folder.mkdir(exist_ok=True)
            if not is_second:
                (made.folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            made.hold(is_held=False)
        except OSError as error:
            raise DdptraceError(f"no quota of processor time can be set in {parent}: {error.strerror}") from None
        yield made
    finally:
        _remove(made.folder)


def _parent() -> tuple[Path, bool]:
    """Find where a group for processor time can be made: below this process's group; in version 2, where a group that
    holds processes has none below it, beside it or further up."""
    told = (_text(Path("/proc/self", name)) for name in ("cgroup", "mountinfo"))
    around = [folder for folder in groups_around(*told) if folder.is_dir()]
    if around and not (around[0] / BELOW).exists():
        return around[0], False
    for folder in around:
        if "cpu" in _words(folder / BELOW):
            return folder, True
    raise DdptraceError("no control groups for processor time are mounted here")


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    """Return the text of a file; empty if it does not exist."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _sweep(parent: Path) -> None:
    """Remove what killed processes have left behind."""
    for folder in parent.glob(f"{NAME}*"):
        if not Path("/proc", folder.name.removeprefix(NAME)).exists():
            with suppress(OSError):
                folder.rmdir()


def _remove(folder: Path) -> None:
    until = time.monotonic() + REMOVED_S
    while folder.exists():
        with suppress(OSError):
            folder.rmdir()
        if time.monotonic() > until:
            return
        time.sleep(0.01)
