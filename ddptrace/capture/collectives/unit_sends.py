"""The short way for the collectives of units, which come again in each step.

A unit gathers the same parameters with the same operation from the same line, step after step. So the first call of
each operation goes the long way (`calls.py`); of the next ones, only what may have changed is read.

    step 0    unshard ▶ all_gather    the long way: learned
    step 1    unshard ▶ all_gather    from the same line, with the same bytes: recorded
"""

from __future__ import annotations

import itertools
import time
from typing import Any, Final, NamedTuple

import torch.autograd.profiler as autograd_profiler
import torch.distributed as dist

from ddptrace.capture.by_identity import IdentityMap
from ddptrace.capture.collectives.completions import Completions
from ddptrace.capture.collectives.groups import Groups
from ddptrace.capture.collectives.tap import Operator
from ddptrace.capture.origins.call_sites import CallSites
from ddptrace.capture.surface import ThreadState
from ddptrace.record import Recorder
from ddptrace.schema import CallFlag, Kind

_now, _unbox_group, _unbox_work = time.perf_counter_ns, dist.ProcessGroup.unbox, dist.Work.unbox

CALL, ORIGIN, SYNC = int(Kind.CALL), int(Kind.ORIGIN), int(CallFlag.SYNC)
SHORT_MAX: Final = 0xFFFF
"""Largest string id of op and group that fits an ORIGIN. Of later names, a call that crashes shows neither."""


class Alike(NamedTuple):
    """What the calls of one operation for one unit have in common. `name`, `dtype`: string ids."""

    nbytes_in: int
    nbytes_out: int
    name: int
    dtype: int
    is_stamped: bool


class SentForUnit(tuple[int, int, int, int, Alike]):
    """One call on its way: seq, launch, flags, string id of the group, and what all have in common."""

    __slots__ = ()


class UnitSends:
    """Records calls of units outside profiler windows, on the CPU."""

    def __init__(
        self,
        recorder: Recorder,
        completions: Completions,
        seqs: itertools.count[int],
        groups: Groups,
        sites: CallSites,
        thread: ThreadState,
        seq_of: IdentityMap[Any, int],
    ) -> None:
        """`seq_of`: by Work, for the wait."""
        self._recorder = recorder
        self._completions = completions
        self._seqs = seqs
        self._groups = groups
        self._sites = sites
        self._thread = thread
        self._seq_of = seq_of

    def learn(self, part: Any, op: Operator, alike: Alike, flags: int, *, followed: bool) -> None:
        """Learn from a call that went the long way. `flags`: of its CALL. `followed`: whether its wait is recorded."""
        is_plain = op.peer is None and op.splits is None and not flags & ~SYNC and not self._thread.hook
        if followed and is_plain:
            part.alike[op.name] = alike
        else:
            part.alike.pop(op.name, None)

    def begun(
        self, part: Any, op: Operator, args: tuple[Any, ...], nbytes_in: int, nbytes_out: int
    ) -> SentForUnit | None:
        """Begin the record of a call for a unit; None if it differs from the learned one.

        Reads the stack at a fixed depth: call it only from `Collectives.before`."""
        alike = part.alike.get(op.name)
        if (
            alike is None
            or alike.nbytes_in != nbytes_in
            or alike.nbytes_out != nbytes_out
            or autograd_profiler._is_profiler_enabled
        ):
            return None
        source = self._sites.again(part.anchors, op.name)
        if source is None:
            return None
        group, name = self._groups.name_id(_unbox_group(args[op.group])), alike.name
        seq, launch = next(self._seqs), _now()
        self._recorder.event(
            ORIGIN,
            source.origin,
            source.site,
            launch,
            launch,
            seq,
            nbytes_in,
            nbytes_out,
            source.module,
            0,
            name if name <= SHORT_MAX else 0,
            group if group <= SHORT_MAX else 0,
        )
        part.call(seq, launch, op.name)
        return SentForUnit((seq, launch, SYNC if op.is_sync(args) else 0, group, alike))

    def issued(self, sent: SentForUnit, issued: int, work: Any) -> None:
        seq, launch, flags, group, (nbytes_in, nbytes_out, name, dtype, is_stamped) = sent
        self._recorder.event(CALL, flags, name, launch, issued, seq, nbytes_in, nbytes_out, group, 0, 0, dtype)
        work = _unbox_work(work)
        self._thread.last_work = work
        self._seq_of[work] = seq
        if is_stamped:
            self._completions.follow(seq, work.get_future())
