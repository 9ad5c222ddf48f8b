"""One trace of one process: claims the directory, installs the surfaces, takes them out again.

A surface is one place in torch, Python or the program at which ddptrace watches the training, such as the kernel in
front of `c10d` operators. `surface.py` says what happens where one fails.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Callable, Sized
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ddptrace.capture.by_identity import IdentitySet
from ddptrace.capture.claim import Claim, describe_job, describe_program
from ddptrace.capture.collectives import compiled, tap
from ddptrace.capture.collectives.bucket_sends import CompiledSends
from ddptrace.capture.collectives.calls import Collectives
from ddptrace.capture.collectives.completions import Completions
from ddptrace.capture.collectives.fallback import watch_process_group
from ddptrace.capture.collectives.groups import Groups
from ddptrace.capture.device.stalls import Fetches, StallWatch
from ddptrace.capture.device.timed_events import DeviceTimer, device_of, events_of
from ddptrace.capture.device.wrapped_calls import watch_captures, watch_waits
from ddptrace.capture.gradients.communication_hooks import HookRecords, HookWatch
from ddptrace.capture.gradients.ddp import DdpWatch
from ddptrace.capture.gradients.own_reducer import OwnReducerWatch, Parts
from ddptrace.capture.gradients.reducer_records import ReducerRecords
from ddptrace.capture.host.host_load import Collections, HostMarks
from ddptrace.capture.host.looks import SURFACES as LOOKS
from ddptrace.capture.host.looks import Looks
from ddptrace.capture.origins.call_sites import CallSites
from ddptrace.capture.origins.modules import ModuleNames
from ddptrace.capture.profiler.occasions import Occasions, Requests
from ddptrace.capture.profiler.windows import Windows
from ddptrace.capture.steps.finder import Sampling, StepFinder
from ddptrace.capture.steps.program_hooks import Program
from ddptrace.capture.surface import (
    ALWAYS_UNSEEN,
    UNSEEN_OF_REMOTE_CALLS,
    UNSEEN_WITHOUT_SCHEDULER_TIMES,
    UNSEEN_WITHOUT_THE_TAP,
    Patches,
    Surface,
    ThreadState,
    error_words,
)
from ddptrace.capture.units.fsdp import FsdpWatch
from ddptrace.capture.units.pipeline import PipelineWatch
from ddptrace.capture.units.unit_records import UnitRecords
from ddptrace.dynamo import leave_as_it_is
from ddptrace.errors import CompileError, TraceStateError
from ddptrace.findings import COMPILED_FAILED, COMPILED_REFUSED, ENDED_BY_EXCEPTION, NOT_SETTLED, PATCH_KEPT, TAP_FAILED
from ddptrace.record import Recorder
from ddptrace.record.directory import release
from ddptrace.trace_options import UNLABELLED, Keep, Labels, when_slow

Scheduled = Callable[[int], torch.profiler.ProfilerAction] | torch.profiler.profile
"""The schedule of profiler windows, or a profiler that has one."""

Profile = Scheduled | when_slow

_current: Session | None = None
_entry = threading.Lock()

SAMPLED = ("collectives", "ddp", "hooks", "origins", "reducer", "device", "units", "pipelines")
"""Surfaces that pause in steps that are not recorded. Remote calls never pause: a rank that serves them has no
steps."""

SETTLED_S = 5.0
"""Longest wait, at the end of a trace, for the store through which the ranks agree: its rank 0 may hang."""

CALLBACKS_S = 0.2
"""Longest wait, at the end, for callbacks of what has just ended."""

SURFACES = (
    "compiler",
    "collectives",
    "origins",
    "program",
    "ddp",
    "reducer",
    "hooks",
    "profiler",
    "occasions",
    "rpc",
    "host",
    "garbage",
    "device",
    "units",
    "pipelines",
    *LOOKS,
)


class Session:
    """Everything between entering and leaving one `ddptrace.trace`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        profile: Profile | None,
        overwrite: bool,
        keep: Keep,
        labels: Labels,
        traceparent: str | None = None,
    ) -> None:
        self.begin = time.perf_counter_ns()
        self._slow = profile if isinstance(profile, when_slow) else None
        self._scheduled = None if isinstance(profile, when_slow) else profile
        self._keep = keep
        self._patches = Patches()
        self._settling = threading.Lock()
        self.surfaces: dict[str, Surface] = {}
        self._undo: tuple[tuple[str, Callable[[], None]], ...] = ()  # by surface, of the installed parts
        self._close: Callable[[], None] = lambda: None
        self._completions: Completions | None = None
        self._compiled: CompiledSends | None = None
        self._device: DeviceTimer | None = None
        self._stalls: StallWatch | None = None
        self._write_collections: Callable[[], Any] = lambda: None
        facts = {
            "profile": self._scheduled is not None,
            "blind_spots": list(ALWAYS_UNSEEN),
            "keep": keep.to_dict(),
        } | describe_program()
        about = labels.to_dict() | describe_job()
        self.claim = Claim(Path(path), overwrite=overwrite, facts=facts, about=about, traceparent=traceparent)

    @property
    def folder(self) -> Path:
        """Where this rank writes; it may be renamed once the rank is known."""
        return self.claim.folder

    def start(self) -> None:
        """Install every surface. Raises OSError if the recorder cannot start, and nothing after that."""
        self.recorder = recorder = Recorder(lambda: self.folder, chores=(chores := [self._do_chores]), keep=self._keep)
        self._close = recorder.close
        self._settle()
        self.surfaces = {name: Surface(name, recorder.note) for name in SURFACES}
        thread = ThreadState()
        sampling = Sampling(self._keep, [self.surfaces[name] for name in SAMPLED])
        self.steps = StepFinder(recorder, self.begin, sampling)
        self._marks, self._collections = HostMarks(recorder, self.steps), Collections(recorder, self.steps)
        roots: IdentitySet[torch.nn.Module] = IdentitySet()
        names = ModuleNames(roots)
        sites = CallSites(self.surfaces["origins"], names, recorder.intern, thread)
        self._groups = Groups(recorder)
        self.collectives = Collectives(recorder, self.surfaces["collectives"], self._groups, thread, sites)
        units = UnitRecords(recorder)
        self.fsdp = FsdpWatch(units, self.surfaces["units"], thread, self._groups, names)
        self.pipelines = PipelineWatch(units, self.surfaces["pipelines"], self.collectives, self._groups, names)
        self._completions = self.collectives.completions
        self._due: list[Sized] = [self._completions.due]
        reducers = ReducerRecords(recorder, self._groups)
        hooks = HookRecords(recorder, self.collectives, self.steps, thread)
        self.ddp = DdpWatch(reducers, self.collectives, roots, sampling)
        self.own = OwnReducerWatch(
            Parts(self.surfaces["reducer"], reducers, hooks, self.collectives, self.steps, thread)
        )
        self.hooks = HookWatch(self.surfaces["hooks"], hooks, self.ddp)
        self.program = Program(self.steps, self.surfaces["program"], sites.spans)
        self.windows = Windows(
            recorder, self.surfaces["profiler"], lambda: self.folder, self.collectives.in_window.are_over
        )
        self._occasions = Occasions(recorder, self._slow, self.claim.key, lambda: self.claim.rank)
        self._looks = Looks(recorder, self.surfaces, self.steps)
        self._undo = (
            ("occasions", self._occasions.close),
            ("profiler", self.windows.close),
            ("program", self.program.uninstall),
            ("origins", sites.spans.close),
            ("ddp", self.ddp.detach),
            ("reducer", self.own.detach),
            ("host", self._marks.close),
            ("garbage", self._collections.uninstall),
        )
        self._wire()
        self._install()
        self.claim.facts["blind_spots"] += self._looks.blind_spots
        self._looks.first()
        chores += self._looks.chores()
        chores.append(self.surfaces["occasions"].guarded(self._requests().look))
        self.claim.write_meta(recorder.note)

    def _wire(self) -> None:
        stock, own = self.surfaces["ddp"], self.surfaces["reducer"]
        self.ddp.on_root = self._meet_root
        self.program.on_root = stock.guarded(self.ddp.meet_all)
        self.program.on_backward_begin += [
            own.guarded(self.own.backward_begins),  # meets reducers: whether there are others is known then
            stock.guarded(self.ddp.backward_begins),
        ]
        completed = self.surfaces["collectives"].guarded(lambda _: self.collectives.completions.write())
        ends = [stock.guarded(self.ddp.backward_ends), own.guarded(self.own.backward_ends)]
        self.program.on_backward_end += [
            completed,
            *ends,
            self.surfaces["profiler"].guarded(self.windows.backward_ends),
        ]
        self.steps.on_step = self._watched_step()
        self.steps.on_end = self._step_ended
        self._write_collections = self.surfaces["garbage"].guarded(self._collections.look)

    def _watched_step(self) -> Callable[[], None]:
        """Return what is to be called at each step: it opens and closes profiler windows."""
        switch = self.surfaces["profiler"].guarded(self.windows.step)
        if self._scheduled is not None:
            return switch
        surface = self.surfaces["occasions"]
        self.windows.next_window = surface.guarded(self._occasions.next_window)
        count = surface.guarded(self._occasions.step_ends)

        def step() -> None:
            count()
            switch()

        return step

    def _requests(self) -> Requests:
        """Return what looks for requests of `ddptrace profile`."""
        occasions = None if self._scheduled is not None else self._occasions
        return Requests(self.claim.root, lambda: self.claim.run_id, occasions)

    def _install(self) -> None:
        """Install each surface by itself: if a name of torch has moved, the other surfaces still work."""
        self.surfaces["program"].call(self.program.install, self._patches)
        self.surfaces["hooks"].call(self.hooks.install, self._patches)
        self.surfaces["profiler"].call(self.windows.install, self._patches)
        self.surfaces["collectives"].call(self._install_tap)
        self.surfaces["rpc"].call(self._install_rpc)
        self._install_units()
        self.surfaces["host"].call(self._install_marks)
        self.surfaces["garbage"].call(self._collections.install)
        self.surfaces["compiler"].call(leave_as_it_is, "ddptrace.capture", "ddptrace.record")  # all is imported now
        if self._scheduled is not None:
            self.surfaces["profiler"].call(self.windows.open, self._scheduled)
        self.surfaces["occasions"].call(self._occasions.start)

    def _install_tap(self) -> None:
        self.collectives.meets_device = self.surfaces["device"].guarded(self._find_device)
        self._patches.replace(dist.Work, "wait", self.collectives.wait)
        self._patches.replace(dist.ProcessGroup, "_start_coalescing", self.collectives.batch_begins)
        self._patches.replace(dist.ProcessGroup, "_end_coalescing", self.collectives.batch_ends)
        self._groups.install(self._patches)
        watching = "dispatcher tap"
        try:
            tap.install()
            self._use_compiled()
            watching += ", DDP's buckets by compiled code" if self._compiled is not None else ""
            tap.watch(self.collectives)
        except Exception as error:  # torch's private names have moved: record what Python issues
            watch_process_group(self._patches, self.collectives, self.surfaces["collectives"])
            watching = "ProcessGroup class"
            self.claim.facts["blind_spots"].append(UNSEEN_WITHOUT_THE_TAP)
            self.recorder.note(
                TAP_FAILED,
                f"the dispatcher tap does not work with this torch ({error}): "
                "collectives issued by C++ (DDP's buckets) are not seen",
            )
        self.claim.facts |= {"watching": {"collectives": watching, "surfaces": list(SURFACES)}}

    def _use_compiled(self) -> None:
        """Let the compiled library record buckets, if there is one for this torch. Otherwise Python does."""
        try:
            library = compiled.load()
        except CompileError as error:
            message = f"the compiled library is not loaded: {error}; until then Python records all buckets"
            self.recorder.note(COMPILED_REFUSED, message)
            with contextlib.suppress(Exception):  # the program may have made errors of warnings
                warnings.warn(f"ddptrace: {message}", RuntimeWarning, stacklevel=2)
            return
        except Exception as error:
            self.recorder.note(
                COMPILED_FAILED,
                f"what `ddptrace compile` made for this torch cannot be loaded"
                f" ({error}): run it again; until then Python records all buckets",
            )
            return
        if library is not None:
            sends = CompiledSends(library, self.recorder, self.collectives.seqs)
            self.collectives.buckets.compiled = self._compiled = sends
            self._due.append(sends)
            self._undo += (("collectives", sends.stop),)

    def _install_rpc(self) -> None:
        if not dist.rpc.is_available():
            return
        from ddptrace.capture.rpc.calls import (
            DistributedUpdates,
            RpcWatch,  # names of torch that not every build has
        )

        updates = DistributedUpdates(self._patches, self.program.watched_update)
        watch = RpcWatch(self.recorder, self.surfaces["rpc"], self._settle)
        watch.install(self._patches, updates)
        self._due.append(watch.under_way)
        self._patches.replace(dist.autograd, "backward", self.program.watched_backward)
        self.claim.facts["blind_spots"] += UNSEEN_OF_REMOTE_CALLS

    def _install_marks(self) -> None:
        if not self._marks.install():
            self.claim.facts["blind_spots"].append(UNSEEN_WITHOUT_SCHEDULER_TIMES)

    def _meet_root(self, root: torch.nn.Module) -> None:
        """An outermost module runs for the first time: by now, the program has imported what it is made with."""
        self.surfaces["device"].call(self._find_device_of, root)
        self._install_units()

    def _install_units(self) -> None:
        self.surfaces["units"].call(self.fsdp.install, self._patches)
        self.surfaces["pipelines"].call(self.pipelines.install, self._patches)

    def _find_device_of(self, root: torch.nn.Module) -> None:
        device = device_of(root)
        if device is not None:
            self._find_device(device)

    def _find_device(self, device: torch.device) -> None:
        """Time the first device with timed events that a model is on or, as where parameters are offloaded, that a
        collective is for."""
        if self._device is None:
            self._device = events_of(device, self.recorder, self.surfaces["device"])
            if self._device is not None:
                watch_captures(self._patches, self._device)
                watch_waits(self._patches, self._device)
                self._due.append(self._device)
                self.steps.device = self.collectives.device = self._device
                self.steps.fetches, self._stalls = Fetches(self._device), StallWatch(self._device)
                self._stalls.start()
                self.recorder.nudge()

    def _step_ended(self) -> None:
        self.surfaces["host"].call(self._marks.end)
        if self._collections.is_due:
            self._write_collections()

    def stop(self) -> None:
        """Take every surface out and finish the records. Failures are noted and never raised."""
        self._let_callbacks_in()
        self._looks.last()
        for name in self._take_out():
            self.recorder.note(PATCH_KEPT, f"{name} was replaced by somebody else during the trace and left as it is")
        self._settle_in_time()
        self._close()

    def _let_callbacks_in(self) -> None:
        """Wait for callbacks of what has just ended (or failed, and ends the training): they run on other threads,
        which may be waiting for the interpreter's lock."""
        until = time.monotonic() + CALLBACKS_S
        while any(self._due) and time.monotonic() < until:
            self._write_completions()
            time.sleep(0.001)
        self._write_completions()

    def abort(self) -> None:
        """Undo a failed start, with its claim on the directory: nothing of the training was recorded."""
        self._take_out()
        self._close()
        release(self.claim.root, self.folder, self.claim.rank)

    def _take_out(self) -> list[str]:
        """Take every surface out. Return the names of what somebody else has replaced by now."""
        tap.watch(None)
        if self._device is not None and self._stalls is not None:
            self.surfaces["device"].attempt(self._stalls.close)
            self.surfaces["device"].attempt(self._device.close)
        for name, undo in self._undo:
            self.surfaces[name].attempt(undo)  # also where the surface has failed before
        kept = self._patches.undo()
        self._switch_off()  # what stays in place only passes calls on from now on
        return kept

    def _do_chores(self) -> None:
        """On the keeper's thread."""
        self._write_completions()
        self._write_collections()
        self._settle()

    def _write_completions(self) -> None:
        if self._completions is not None:
            self._completions.write()
        if self._compiled is not None:
            self._compiled.tidy()
        if self._device is not None:
            self._device.look()

    def _settle(self, *, final: bool = False) -> None:
        """Learn the rank and the run's id if they were not known at the start."""
        try:
            with self._settling:  # the keeper's thread comes here too
                self.claim.settle(self.recorder.note, final=final)
                self.claim.agree(self.recorder.note)
        except Exception as error:  # the records stand without it
            self.recorder.note(NOT_SETTLED, f"{type(error).__name__}: {error}")

    def _settle_in_time(self) -> None:
        """Settle for the last time, on a separate thread that may be left behind."""
        last = threading.Thread(target=self._settle, kwargs={"final": True}, name="ddptrace-settle", daemon=True)
        try:
            last.start()
        except RuntimeError:  # the interpreter is ending, and makes no more threads
            self._settle(final=True)
            return
        last.join(SETTLED_S)
        if last.is_alive():
            self.recorder.note(NOT_SETTLED, f"the ranks' store gave no answer within {SETTLED_S:g} s")

    def say_step(self) -> None:
        self.surfaces["program"].call(self.steps.say)

    def ends_with(self, error: BaseException) -> None:
        """Note the exception that ends the training."""
        if isinstance(error, SystemExit) and error.code in (None, 0):
            return
        self.recorder.note(ENDED_BY_EXCEPTION, f"an exception ended the trace{self.of_rank()}: {error_words(error)}")

    def of_rank(self) -> str:
        """Return " of rank N" for a message about this process, "" if its rank is not known."""
        return "" if self.claim.rank is None else f" of rank {self.claim.rank}"

    def forget(self) -> None:
        """In a forked child: see nothing, write nothing."""
        tap.watch(None)
        self._switch_off()
        self.recorder.abandon()
        self._marks.close()
        self._collections.forget()

    def _switch_off(self) -> None:
        for surface in self.surfaces.values():
            surface.off()


def enter(
    path: str | os.PathLike[str],
    *,
    profile: Profile | None,
    overwrite: bool,
    keep: Keep | None = None,
    labels: Labels = UNLABELLED,
    traceparent: str | None = None,
) -> Session:
    """Start the one session of this process. `traceparent`: the active span, in W3C's format, for `meta.json`.

    Raises TraceStateError inside another trace, RunDirectoryError if the directory is refused."""
    global _current
    with _entry:
        if _current is not None:
            raise TraceStateError(
                f"ddptrace.trace is already recording into {_current.claim.root} in this process: leave that one first"
            )
        session = Session(
            path,
            profile=profile,
            overwrite=overwrite,
            keep=keep or Keep(),
            labels=labels,
            traceparent=traceparent,
        )
        try:
            session.start()
        except BaseException:
            session.abort()
            raise
        _current = session
        return session


def leave(session: Session, error: BaseException | None = None) -> None:
    """End the session; idempotent. `error`: the exception that ends it, if one does."""
    global _current
    with _entry:
        if _current is session:
            _current = None
            if error is not None:
                with contextlib.suppress(Exception):  # the str() of an exception of the program may raise
                    session.ends_with(error)
            session.stop()


def _forget_in_child() -> None:
    """A forked process (a data loader's worker) has the parent's files mapped: it must not write into them."""
    global _current, _entry
    session, _current, _entry = _current, None, threading.Lock()
    if session is not None:
        session.forget()


os.register_at_fork(after_in_child=_forget_in_child)
