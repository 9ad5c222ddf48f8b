"""Stock DistributedDataParallel, watched without a communication hook of ours.

When a gradient is ready, a hook on its parameter notes the time; it runs before DDP's own, which may then launch the
bucket. So a collective that C++ issues in backward belongs to the reducer whose gradient was accumulated last, or to
the only reducer. Which parameters share a bucket is read from DDP; after a rebuild DDP reports that only with the next
forward.

Only this file uses the private names of DistributedDataParallel.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeGuard

import torch
import torch.autograd.profiler as autograd_profiler
import torch.distributed as dist
from torch._C._distributed_c10d import _compute_bucket_assignment_by_size
from torch.nn.parallel import DistributedDataParallel

from ddptrace.capture.by_identity import IdentitySet
from ddptrace.capture.collectives.bucket_sends import CompiledSends
from ddptrace.capture.collectives.calls import Collectives
from ddptrace.capture.collectives.groups import name_of
from ddptrace.capture.gradients.reducer_records import GradientHooks, ReadyTimes, ReducerRecords, described, ready_hook
from ddptrace.capture.origins.modules import named_modules
from ddptrace.capture.steps.finder import Sampling

REBUILD_POLLS = 12
"""Backwards of a module after which its layout is no longer asked for: DDP rebuilds its buckets once, at its second
synchronised forward, and asking costs 0.1 ms."""


@dataclass(slots=True)
class Watched:
    """One DDP module. `number` is its reducer's, see `ReducerRecords`."""

    number: int
    module: weakref.ReferenceType[DistributedDataParallel]
    nbytes: list[int]  # by parameter
    gradients: GradientHooks
    sent: list[int] = field(default_factory=list)  # bytes of C++ collectives of this backward
    plan: list[list[int]] = field(default_factory=list)
    planned: list[int] = field(default_factory=list)  # bytes of each
    layout: int = 0
    polls: int = 0
    changed_at: int | None = None  # first backward whose buckets are not those of the plan
    last_synced: int = 0


class DdpWatch:
    """Finds DDP modules when they first run and records ready times, reducers and layouts."""

    def __init__(
        self,
        records: ReducerRecords,
        collectives: Collectives,
        roots: IdentitySet[torch.nn.Module],
        sampling: Sampling,
    ) -> None:
        """`roots`: a set to which this adds each outermost module at its first forward."""
        self._sampling = sampling
        self._records = records
        self._collectives = collectives
        self._roots = roots
        self._by_number: dict[int, Watched] = {}

    def number_of(self, module: torch.nn.Module) -> int:
        """Return the number of a DDP module's reducer. Watch the module from now on if it is new."""
        number = self._number(module)
        return self._meet(module) if number is None else number  # type: ignore[arg-type]

    def meet_all(self, root: torch.nn.Module) -> None:
        """Watch every DDP module in `root` that is not watched yet."""
        if root in self._roots:
            return
        self._roots.add(root)
        for _, module in named_modules(root):
            if is_ddp(module) and self._number(module) is None:
                self._meet(module)

    def backward_begins(self) -> None:
        self._collectives.reducer = 0
        for watched in self._by_number.values():
            took_part = any(watched.gradients.ready.times)
            watched.gradients.ready.clear()
            if self._sampling.live:
                watched.gradients.begins(watched.module(), is_alone=self._records.count == 1)
                if watched.gradients.relies_on_notes:
                    self._collectives.reducer = watched.number
            watched.sent.clear()
            if (took_part and watched.polls < REBUILD_POLLS) or watched.changed_at is not None:
                self._poll(watched)
        compiled = self._collectives.buckets.compiled
        if compiled is not None:
            self._begin_compiled(compiled)

    def backward_ends(self, backward: int) -> None:
        self._collectives.reducer = 0
        self._take_compiled()
        for watched in self._by_number.values():
            watched.gradients.ends(watched.module())
            self._records.ready(watched.number, backward, watched.gradients.ready)
            if watched.sent:
                self._compare(watched, backward)

    def detach(self) -> None:
        """Take the hooks off every parameter; ask once more for a layout that DDP has not reported yet."""
        for watched in self._by_number.values():
            watched.gradients.remove()
            if watched.changed_at is not None:
                self._poll(watched, closing=True)

    # Meeting a module ------------------------------------------------------------------------------------------------

    def _number(self, module: torch.nn.Module) -> int | None:
        return next((number for number, seen in tuple(self._by_number.items()) if seen.module() is module), None)

    def _meet(self, ddp: DistributedDataParallel) -> int:
        self._drop_dead()
        number = self._records.number()
        parameters, names = reducer_parameters(ddp)
        nbytes = [p.numel() * p.element_size() for p in parameters]
        ready = ReadyTimes(len(parameters))
        hook = partial(ready_hook, ready, number=number, collectives=self._collectives, sampling=self._sampling)
        watched = Watched(number, weakref.ref(ddp), nbytes, GradientHooks(parameters, ready, hook))
        weakref.finalize(ddp, watched.gradients.forget).atexit = False
        self._by_number[number] = watched
        self._collectives.buckets.sent[number] = watched.sent
        self._records.reducer(number, describe_reducer(ddp, parameters, names))
        rebuilt = rebuilt_plan(ddp)
        watched.layout = 0 if rebuilt is None else 1
        watched.polls = 0 if rebuilt is None else REBUILD_POLLS
        self._write_layout(watched, rebuilt or first_plan(ddp, parameters), from_backward=0)
        return number

    def _drop_dead(self) -> None:
        """A program may make and drop models without end."""
        for number, watched in tuple(self._by_number.items()):
            if watched.module() is None:
                del self._by_number[number]
                self._collectives.buckets.forget(number)

    # Backward by backward --------------------------------------------------------------------------------------------

    def _begin_compiled(self, compiled: CompiledSends) -> None:
        """Begin only with one reducer whose buckets keep their addresses: a freed one may soon be another's."""
        alone = self._records.count == 1 and all(
            watched.module() is not None and watched.polls >= REBUILD_POLLS for watched in self._by_number.values()
        )
        if not alone:
            compiled.forget()
        elif not autograd_profiler._is_profiler_enabled:
            compiled.begin(is_recorded=self._collectives.is_live)

    def _take_compiled(self) -> None:
        """What was sent without Python came before anything that was sent with it."""
        compiled = self._collectives.buckets.compiled
        sent = [] if compiled is None else compiled.end()
        for watched in self._by_number.values() if sent else ():
            watched.sent[:0] = sent

    def _compare(self, watched: Watched, backward: int) -> None:
        watched.last_synced = backward
        if watched.sent[: len(watched.planned)] != watched.planned and watched.changed_at is None:
            watched.changed_at = backward

    def _poll(self, watched: Watched, *, closing: bool = False) -> None:
        ddp = watched.module()
        if ddp is None:
            return
        watched.polls += 1
        if closing:
            ddp.logger.set_runtime_stats_and_log()  # type: ignore[union-attr]
        plan = rebuilt_plan(ddp)
        if plan is not None and plan != watched.plan:
            watched.layout += 1
            since = watched.last_synced if watched.changed_at is None else watched.changed_at
            self._write_layout(watched, plan, from_backward=since)
        if plan is not None:
            watched.polls = REBUILD_POLLS
        watched.changed_at = None if plan is not None else watched.changed_at

    def _write_layout(self, watched: Watched, plan: list[list[int]], *, from_backward: int) -> None:
        watched.plan, watched.planned = plan, [sum(watched.nbytes[i] for i in bucket) for bucket in plan]
        self._records.layout(watched.number, watched.layout, plan, from_backward=from_backward)


def is_ddp(module: torch.nn.Module) -> TypeGuard[DistributedDataParallel]:
    """Whether it is a DDP module. `isinstance` would hash the module's class, which may be code of the program: DDP is
    an abstract class, and keeps what it has been asked about in a set."""
    return type.__subclasscheck__(DistributedDataParallel, type(module))


def reducer_parameters(ddp: DistributedDataParallel) -> tuple[list[torch.nn.Parameter], dict[int, str]]:
    """The reducer's parameters in its own order, and their names by index."""
    parameters, _ = ddp._build_params_for_reducer()
    names = {id(p): name for name, p in ddp.module.named_parameters()}
    return parameters, {i: names.get(id(p), f"parameter {i}") for i, p in enumerate(parameters)}


def describe_reducer(
    ddp: DistributedDataParallel, parameters: list[torch.nn.Parameter], names: dict[int, str]
) -> dict[str, Any]:
    return {
        "kind": "DistributedDataParallel",
        "module": type(ddp.module).__name__,
        "group": name_of(ddp.process_group),
        "bucket_cap_nbytes": getattr(ddp, "bucket_bytes_cap", None),
        "parameters": described((names[i], parameter) for i, parameter in enumerate(parameters)),
    }


def first_plan(ddp: DistributedDataParallel, parameters: list[torch.nn.Parameter]) -> list[list[int]]:
    """Return the buckets that DDP starts with, by the function and the limits that DDP's constructor uses."""
    limits = _first_limits(ddp)
    sparse = [False] * len(parameters)
    tensors: list[torch.Tensor] = list(parameters)
    plan, _ = _compute_bucket_assignment_by_size(tensors, limits, sparse)
    return [list(bucket) for bucket in reversed(plan)]


def _first_limits(ddp: Any) -> list[int]:
    """Return the limits in bytes. Before torch 2.13 the constructor computed them inline."""
    if hasattr(ddp, "_bucket_config"):
        limits, _ = ddp._bucket_config.compute_bucket_size_limits(
            static_graph=ddp.static_graph, find_unused_parameters=ddp.find_unused_parameters
        )
        return list(limits)
    if getattr(ddp, "bucket_bytes_cap_list", None):
        return list(ddp.bucket_bytes_cap_list)
    if ddp.static_graph or not ddp.find_unused_parameters:
        return [2**63 - 1]
    first = [dist._DEFAULT_FIRST_BUCKET_BYTES] if ddp.bucket_bytes_cap_default else []  # type: ignore[attr-defined]
    return [*first, ddp.bucket_bytes_cap]


def rebuilt_plan(ddp: DistributedDataParallel) -> list[list[int]] | None:
    """Return the buckets since the rebuild; None before it, or while DDP has not reported it yet."""
    text = ddp._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", "")
    buckets = [[int(index) for index in bucket.split()] for bucket in str(text).split(",")]
    return buckets if text else None
