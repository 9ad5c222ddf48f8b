"""The short way for the buckets that the C++ of stock DDP sends in backward.

Between matrix products, which push Python out of the processor's caches, each line costs tens of times what it costs
elsewhere. So this reads only what changes from bucket to bucket. The rest is known from the first bucket of the same
reducer, which went the long way (`calls.py`). Each call is recorded at once: a backend may end the process in it.
"""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any, Final

import torch
import torch.autograd.profiler as autograd_profiler
import torch.distributed as dist

from ddptrace.capture.collectives.compiled_sends import CompiledSends
from ddptrace.capture.collectives.completions import Completions
from ddptrace.capture.collectives.groups import Groups
from ddptrace.capture.collectives.tap import Operator
from ddptrace.record import Recorder
from ddptrace.schema import Kind

_now = time.perf_counter_ns

CALL = int(Kind.CALL)
ALL_REDUCE: Final = "all_reduce"
"""Its first argument is a list of tensors; for a bucket, of one tensor."""

Alike = tuple[Operator, int, torch.dtype, int, int, int, int, bool]
"""What the buckets of one reducer have in common: op, number of arguments, dtype, flags, string ids of dtype, op and
group, whether completions are stamped. `Alike` and `Sent` are plain tuples: named fields take longer."""


class Sent(tuple[int, int, int, int, Alike]):
    """One bucket on its way, outside any profiler window: seq, launch, bytes, reducer, and what all have in common."""

    __slots__ = ()


class BucketSends:
    """`sent`: by reducer, the bytes of its buckets in this backward."""

    def __init__(
        self, recorder: Recorder, completions: Completions, seqs: itertools.count[int], groups: Groups, engine: Any
    ) -> None:
        """`engine`: the code of the frame below what C++ issues in backward."""
        self.sent: dict[int, list[int]] = {}
        self._recorder = recorder
        self._completions = completions
        self._groups = groups
        self._seqs = seqs
        self._engine = engine
        self._alike: dict[int, Alike] = {}
        self.compiled: CompiledSends | None = None

    def learn(
        self,
        reducer: int,
        op: Operator,
        args: tuple[Any, ...],
        tensor: torch.Tensor,
        ids: tuple[int, int, int, int],
        *,
        is_stamped: bool,
    ) -> None:
        """Learn from a bucket that went the long way. `ids`: its flags, string ids of dtype, op and group."""
        is_async = op.is_async is not None and len(args) <= op.is_async  # the default
        if is_async and op.name == ALL_REDUCE:
            self._alike[reducer] = op, len(args), tensor.dtype, *ids, is_stamped
            if is_stamped and self.compiled is not None and tensor.layout is _STRIDED:
                _, dtype, name, group = ids
                self.compiled.learn(tensor.nbytes, reducer, name, group, dtype)

    def forget(self, reducer: int) -> None:
        """Forget a reducer that is gone; no other reducer gets its number."""
        self.sent.pop(reducer, None)
        self._alike.pop(reducer, None)

    def tell(self, reducer: int, nbytes: int) -> None:
        """Note a bucket that C++ has sent for this reducer."""
        sent = self.sent.get(reducer)
        if sent is not None:
            sent.append(nbytes)

    def begun(self, reducer: int, op: Operator, args: tuple[Any, ...]) -> Sent | None:
        """Begin the record of a bucket; None if the call differs from the learned pattern.

        Reads the stack at a fixed depth: call it only from `Collectives.before`.
        """
        alike = self._alike.get(reducer)
        if alike is None or alike[0] is not op or alike[1] != len(args) or autograd_profiler._is_profiler_enabled:
            return None
        try:
            if _frame(3).f_code is not self._engine:
                return None
        except ValueError:  # no frame at all: the engine's own thread
            pass
        if len(self._alike) > 1 and self._groups.name_id(dist.ProcessGroup.unbox(args[op.group])) != alike[6]:
            return None  # several threads may run backwards at once
        tensors = args[0]
        tensor = tensors[0]
        if len(tensors) > 1 or tensor.dtype is not alike[2] or tensor.layout is not _STRIDED:
            return None
        nbytes = tensor.nbytes
        return Sent((next(self._seqs), _now(), nbytes, reducer, alike))

    def issued(self, sent: Sent, issued: int, work: Any) -> None:
        seq, launch, nbytes, reducer, (_, _, _, flags, dtype, name, group, is_stamped) = sent
        self._recorder.event(CALL, flags, name, launch, issued, seq, nbytes, 0, group, 0, reducer, dtype)
        self.tell(reducer, nbytes)
        if is_stamped:
            self._completions.follow(seq, _unbox(work).get_future())
            if self.compiled is not None:
                self.compiled.learn(nbytes, reducer, name, group, dtype)


_frame, _unbox, _STRIDED = sys._getframe, dist.Work.unbox, torch.strided
