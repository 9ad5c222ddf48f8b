"""Half a core for one process: a control group of its own with a quota of processor time, of version 1 or 2."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddptrace.capture.quota import groups_around
from ddptrace.errors import DdptraceError

PERIOD_US: Final = 10_000
HALF_US, PLENTY_US = 5_000, 100_000
"""Of each period: half a core, and more than a process with few threads can use."""

BELOW: Final = "cgroup.subtree_control"
"""What the groups below one control; of version 2 alone."""

NAME: Final = "ddptrace-blame-"
REMOVED_S: Final = 2.0
"""So long the kernel may take to let go of a process that has ended."""


@dataclass(frozen=True, slots=True)
class Group:
    folder: Path
    is_second: bool  # version 2

    def join(self) -> None:
        """Put this process into it."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def hold(self, *, is_held: bool) -> None:
        """To half a core, or to nothing that would be felt."""
        quota = HALF_US if is_held else PLENTY_US
        if self.is_second:
            (self.folder / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (self.folder / "cpu.cfs_quota_us").write_text(str(quota))


def refusal() -> str:
    """Why this machine sets no quota; empty where it does."""
    try:
        with group():
            return ""
    except DdptraceError as error:
        return str(error)


@contextmanager
def group() -> Iterator[Group]:
    """A control group that is removed at the end, when the processes in it have ended. Raises DdptraceError where the
    system grants none."""
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
    """Where a group for processor time can be made: below this process's own, or of version 2, where groups that hold
    processes have none below them, beside it or further up."""
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
    """Empty where there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _sweep(parent: Path) -> None:
    """What a process that was killed has left behind."""
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
