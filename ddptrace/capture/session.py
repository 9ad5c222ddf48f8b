"""One trace of one process: claims the directory, installs the surfaces, takes them out again."""

from __future__ import annotations

import itertools
import os
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ddptrace.capture import identity, tap
from ddptrace.capture.collectives import Collectives
from ddptrace.capture.ddp import DdpWatch
from ddptrace.capture.fallback import watch_process_group
from ddptrace.capture.groups import Groups
from ddptrace.capture.hooks import HookWatch
from ddptrace.capture.program import Program
from ddptrace.capture.steps import StepFinder
from ddptrace.capture.surface import Patches, Surface, ThreadState
from ddptrace.capture.windows import Windows
from ddptrace.errors import RunDirectoryError, TraceStateError
from ddptrace.record import Recorder, directory
from ddptrace.schema import SCHEMA_VERSION

Schedule = Callable[[int], torch.profiler.ProfilerAction]

_current: Session | None = None
_entry = threading.Lock()
_numbers = itertools.count()


class Session:
    """Everything between entering and leaving one `ddptrace.trace`."""

    def __init__(self, path: str | os.PathLike[str], *, profile: Schedule | None, overwrite: bool) -> None:
        attempt = identity.attempt()
        self.root = Path(path) / f"attempt-{attempt}" if attempt else Path(path)
        self.rank = identity.current_rank()
        self.run_id = uuid.uuid4().hex
        self.begin = time.perf_counter_ns()
        self.zero_unix_ns = time.time_ns()
        self._profile = profile
        self._overwrite = overwrite
        self._agreement = identity.Agreement(next(_numbers))
        self._agreed = False
        self._patches = Patches()
        self.folder = self._claim()

    # Entering and leaving --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Install every surface. Raises nothing once the recorder stands; OSError where it cannot."""
        self.recorder = recorder = Recorder(self.folder, chores=self._agree)
        self._settle()
        thread = ThreadState()
        surfaces = {
            name: Surface(name, recorder.note) for name in ("collectives", "program", "ddp", "hooks", "profiler")
        }
        self.surfaces = surfaces
        self.steps = StepFinder(recorder, self.begin)
        self.collectives = Collectives(recorder, surfaces["collectives"], Groups(recorder), thread)
        self.ddp = DdpWatch(recorder, self.collectives)
        self.hooks = HookWatch(recorder, surfaces["hooks"], self.collectives, self.ddp, self.steps, thread)
        self.program = Program(self.steps, surfaces["program"])
        self.windows = Windows(recorder, surfaces["profiler"], lambda: self.folder)
        self._wire()
        self._install()
        self._write_meta()

    def _wire(self) -> None:
        guard = self.surfaces["ddp"]
        self.program.on_root = _guarded(guard, self.ddp.meet_all)
        self.program.on_backward_begin = _guarded(guard, self.ddp.backward_begins)
        self.program.on_backward_end = _guarded(guard, self.ddp.backward_ends)
        self.steps.on_step = self.windows.step

    def _install(self) -> None:
        patches = self._patches
        for install in (self.program.install, self.hooks.install, self.windows.install):
            install(patches)
        patches.replace(dist.Work, "wait", self.collectives.wait)
        try:
            tap.install()
            tap.watch(self.collectives)
            self.watching = "dispatcher tap"
        except Exception as error:  # torch's private names moved: see what can be seen
            watch_process_group(patches, self.collectives)
            self.watching = "ProcessGroup class"
            self.recorder.note("tap-failed", f"the dispatcher tap does not work with this torch ({error}): "
                               "collectives issued by C++ (DDP's buckets) are not seen")  # fmt: skip
        if self._profile is not None:
            self.windows.open(self._profile)

    def stop(self) -> None:
        """Take every surface out and finish the records. What fails here is noted, never raised."""
        guard = self.surfaces["profiler"]
        _guarded(guard, self.windows.close)()
        tap.watch(None)
        self.hooks.active = False
        self.program.uninstall()
        _guarded(self.surfaces["ddp"], self.ddp.detach)()
        for name in self._patches.undo():
            self.recorder.note("patch-kept", f"{name} was replaced by somebody else during the trace and left as it is")
        self._settle()
        self._agree()
        self.recorder.close()

    def abort(self) -> None:
        """Undo what a failed start has done."""
        tap.watch(None)
        self._patches.undo()

    def say_step(self) -> None:
        _guarded(self.surfaces["program"], self.steps.say)()

    def forget(self) -> None:
        """In a forked child: see nothing, write nothing."""
        tap.watch(None)
        for surface in self.surfaces.values():
            surface.on = False
        self.recorder.abandon()

    # The directory ---------------------------------------------------------------------------------------------------

    def _claim(self) -> Path:
        """This rank's folder. Raises RunDirectoryError on every rank if rank 0 refuses the directory."""
        refused: RunDirectoryError | None = None
        folder = self.root
        try:
            folder = directory.claim(self.root, self.rank, overwrite=self._overwrite)
        except RunDirectoryError as error:
            refused = error
        if self.rank == 0:
            self._agreed = self._agreement.publish(self.run_id, str(refused) if refused else None)
        elif refused is None:
            self._obey(self._agreement.learn(wait=True), folder)
        if refused is not None:
            raise refused
        return folder

    def _obey(self, answer: dict[str, Any] | None, folder: Path) -> None:
        if answer is None:
            return
        self._agreed = True
        self.run_id = answer["run_id"]
        if answer["refused"]:
            folder.rmdir()
            raise RunDirectoryError(answer["refused"])

    def _agree(self) -> None:
        """What could not be settled at the start, for want of a process group: tried now and then, not waiting."""
        if self._agreed:
            return
        self._settle()
        if self.rank == 0:
            self._agreed = self._agreement.publish(self.run_id, None)
        else:
            answer = self._agreement.learn(wait=False)
            if answer is None:
                return
            self._agreed = True
            self.run_id = answer["run_id"]
            if answer["refused"]:
                self.recorder.note("refused", answer["refused"])
        self._write_meta()

    def _settle(self) -> None:
        """Give a folder claimed without a rank its name, once the rank is known; without any group it is rank 0."""
        rank = identity.current_rank()
        if self.rank is not None or (rank is None and _current is not None):
            return
        try:
            self.folder = self.recorder.folder = directory.settle(self.folder, rank or 0, overwrite=self._overwrite)
            self.rank = rank or 0
        except (RunDirectoryError, OSError) as error:
            self.recorder.note("no-rank", str(error))

    def _write_meta(self) -> None:
        world = identity.current_world_size() or (1 if self.rank == 0 else None)
        try:
            directory.write_meta(
                self.folder,
                {"schema": SCHEMA_VERSION, "run_id": self.run_id, "world_size": world, "watching": self.watching}
                | identity.describe_process(self.rank),
            )
            if self.rank == 0:
                directory.write_manifest(self.root, self._manifest(world))
                if self._overwrite and world is not None:
                    directory.remove_strangers(self.root, world)
        except OSError as error:
            self.recorder.note("no-meta", f"meta.json could not be written: {error.strerror}")

    def _manifest(self, world_size: int | None) -> dict[str, Any]:
        return {
            "schema": SCHEMA_VERSION,
            "run_id": self.run_id,
            "zero_unix_ns": self.zero_unix_ns,
            "world_size": world_size,
            "attempt": identity.attempt(),
            "versions": identity.describe_versions(),
            "watching": {"collectives": self.watching, "surfaces": sorted(self.surfaces)},
            "profile": self._profile is not None,
        }


def enter(path: str | os.PathLike[str], *, profile: Schedule | None, overwrite: bool) -> Session:
    """Start the process's one session. Raises TraceStateError inside another trace, RunDirectoryError if refused."""
    global _current
    with _entry:
        if _current is not None:
            raise TraceStateError(
                f"ddptrace.trace is already recording into {_current.root} in this process; leave that trace first"
            )
        session = Session(path, profile=profile, overwrite=overwrite)
        try:
            session.start()
        except BaseException:
            session.abort()
            raise
        _current = session
        return session


def leave(session: Session) -> None:
    """End the session; idempotent."""
    global _current
    with _entry:
        if _current is session:
            _current = None
            session.stop()


def _forget_in_child() -> None:
    """A forked process (a data loader's worker) has the parent's files mapped: it must not write into them."""
    global _current, _entry
    session, _current, _entry = _current, None, threading.Lock()
    if session is not None:
        session.forget()


os.register_at_fork(after_in_child=_forget_in_child)


def _guarded(surface: Surface, action: Callable[..., None]) -> Callable[..., None]:
    def guarded(*args: Any) -> None:
        if surface.on:
            try:
                action(*args)
            except Exception as error:  # training must not see it
                surface.failed(error)

    return guarded
