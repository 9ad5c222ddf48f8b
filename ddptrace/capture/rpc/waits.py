"""Where the host is blocked on other workers: on futures of remote calls, also inside `rpc_sync`, and in a distributed
backward, which waits in C++.

backward   [ local ┄ gradients leave ┄ local ┄┄┄┄┄ gradients come ┄ local ┄ gradients leave ┄ local ┄ all done here ┄┄ ]
blocked                                      [─────)                                                          [───────)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_autograd import _retrieve_context

from ddptrace.capture.by_identity import IdentitySet
from ddptrace.capture.surface import Patches, Surface
from ddptrace.record import Recorder
from ddptrace.schema import Kind

_now = time.perf_counter_ns
_is_done = torch._C.Future.done  # not the method of a subclass, which may raise


class RpcWaits:
    """Records RPC_WAIT.

    `under_way`: ids of calls without a result; while it is empty, waits are not recorded. The program or torch may
    complete a future of its own with the result of a call, so waits for all futures count, except those of collectives
    and futures chained on these.
    """

    def __init__(self, recorder: Recorder, surface: Surface, under_way: set[int]) -> None:
        self._under_way = under_way
        self._recorder = recorder
        self._surface = surface
        self._collectives: IdentitySet[Any] = IdentitySet()  # their futures
        self.has_calls = False

    def install(self, patches: Patches) -> None:
        patches.replace(dist.Work, "get_future", self._get_future)
        patches.replace(torch._C.Future, "then", self._then)
        patches.replace(torch._C.Future, "wait", self._wait)
        patches.replace(torch._C, "_collect_all", self._collect_all)
        patches.replace(dist.autograd, "backward", self._backward)

    def _get_future(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def get_future(work: Any, /) -> Any:
            future = original(work)
            if self.has_calls:
                self._surface.call(self._collectives.add, future)
            return future

        return get_future

    def _then(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def then(future: Any, /, *args: Any, **kwargs: Any) -> Any:
            chained = original(future, *args, **kwargs)
            if self.has_calls and future in self._collectives:
                self._surface.call(self._collectives.add, chained)
            return chained

        return then

    def _collect_all(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap what `torch.futures.wait_all` and `collect_all` wait for."""

        def collect_all(futures: Any, /) -> Any:
            together = original(futures)
            if self.has_calls and all(future in self._collectives for future in futures):
                self._surface.call(self._collectives.add, together)
            return together

        return collect_all

    def _wait(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(future: Any, /) -> Any:
            if not self._under_way or not self._surface.on or future in self._collectives or _is_done(future):
                return original(future)
            begin = _now()
            try:
                return original(future)
            finally:
                self._surface.call(self._waited, begin, _now())

        return wait

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(context: int, *args: Any, **kwargs: Any) -> Any:
            watch = self._surface.call(BackwardWatch, context, self._surface)
            if watch is None:
                return original(context, *args, **kwargs)
            try:
                return original(context, *args, **kwargs)
            finally:
                self._surface.call(self._over, watch, _now())

        return backward

    def _over(self, watch: BackwardWatch, end: int) -> None:
        for span in watch.ended(end):
            self._waited(*span)

    def _waited(self, begin: int, end: int) -> None:
        self._recorder.event(Kind.RPC_WAIT, 0, 0, begin, end)


class BackwardWatch:
    """One distributed backward, watched at the nodes where its gradients leave for other workers and come from them.

    After gradients have left, the engine first does the work that remains here, in a branch beside the remote one, and
    then idles until the next gradients come; the same after gradients have come, until others leave or come. How long
    it worked is read from the CPU time of its threads, which is too short for a thread that had to wait for a core.

    Raises what torch raises if there is no such context.
    """

    def __init__(self, context: int, surface: Surface) -> None:
        self._idle_since: int | None = None
        self._over_at: int | None = None
        self._watches_end = False
        self._spans: list[tuple[int, int]] = []
        self._cpu_ns: dict[int, int] = {}  # by its clock, of each thread that worked on this, at the last look
        self._worked_ns()
        nodes = _retrieve_context(context)
        leaves, comes = surface.guarded(self._leaves), surface.guarded(self._comes)
        self._ends = surface.guarded(self._here_over)
        self._hooks = [node.register_prehook(leaves) for node in nodes._recv_functions().values()]
        self._hooks += [node.register_prehook(comes) for node in nodes._send_functions().values()]

    def ended(self, end: int) -> list[tuple[int, int]]:
        """Remove the hooks. Return begin and end of each wait; `end`: when backward returned."""
        for hook in self._hooks:
            hook.remove()
        return self._spans + ([] if self._over_at is None else [(self._over_at, end)])

    def _leaves(self, _: object) -> None:
        self._idle_since = _now()
        self._worked_ns()
        self._watch_end()

    def _comes(self, _: object) -> None:
        at, worked_ns = _now(), self._worked_ns()
        if self._idle_since is not None:
            begin = self._idle_since + worked_ns
            if begin < at:
                self._spans.append((begin, at))
            self._idle_since = at
        self._watch_end()

    def _worked_ns(self) -> int:
        """Return the CPU time since the last look, of the thread that took most. The calling thread counts from now
        on."""
        most = 0
        for clock, before in list(self._cpu_ns.items()):  # others may come meanwhile
            self._cpu_ns[clock] = now = _thread_time_ns(clock, before)
            most = max(most, now - before)
        own = time.pthread_getcpuclockid(threading.get_ident())
        self._cpu_ns.setdefault(own, time.clock_gettime_ns(own))
        return most

    def _watch_end(self) -> None:
        """Have the engine call us at the end of backward; it takes callbacks only inside a backward."""
        if not self._watches_end:
            self._watches_end = True
            torch.autograd.Variable._execution_engine.queue_callback(self._ends)

    def _here_over(self) -> None:
        self._over_at = _now()


def _thread_time_ns(clock: int, last: int) -> int:
    """Return the CPU time of a thread, `last` if it has ended."""
    try:
        return time.clock_gettime_ns(clock)
    except OSError:
        return last
