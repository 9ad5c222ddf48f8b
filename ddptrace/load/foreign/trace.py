"""Finds the parts of a file that torch.profiler alone wrote: the loop's ranges, the main thread, the engine's nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from ddptrace.load.kineto.events import Category, Ints, KinetoEvents
from ddptrace.load.windows.comm_kernels import CommRule, rule_of
from ddptrace.load.windows.device import PROFILER_STEP, KinetoWork, Mask, named, of_category, operators
from ddptrace.load.windows.nesting import NOTHING, outermost

OPTIMIZER_STEP: Final = "Optimizer.step#"
DATA: Final = "enumerate(DataLoader)#"
DDP_MARKS: Final = (
    "DistributedDataParallel.forward",
    "torch.distributed.ddp.reducer",
    "torch::distributed::reducer",
)
OWN_FORWARD: Final = "BucketedDataParallel.forward"
"""The range around each forward of ddptrace's own wrapper."""
DDP_COPY: Final = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
"""Names of ranges that only torch's DistributedDataParallel makes."""

NODE: Final = re.compile(r"autograd::engine::evaluate_function|torch::autograd::AccumulateGrad$|\w+Backward\d*$")
"""A node that the autograd engine runs. Files older than its own range hold only the node's name."""


@dataclass(frozen=True)
class Trace:
    """One file. Instants of `events` count from the run's zero. Masks and positions are over its events."""

    events: KinetoEvents
    rules: Sequence[CommRule]

    @cached_property
    def device(self) -> KinetoWork:
        return KinetoWork.of(self.events, self.rules)

    @cached_property
    def used_rules(self) -> frozenset[CommRule]:
        """The user's rules that match any kernel."""
        kernels = np.unique(self.events.name[of_category(self.events, Category.KERNEL)]).tolist()
        found = (rule_of(self.events.names[name], self.rules) for name in kernels)
        return frozenset(rule for rule in found if rule is not None)

    @cached_property
    def on_host(self) -> Mask:
        """Ranges of threads, Python's frames left out."""
        return of_category(self.events, Category.OP, Category.ANNOTATION)

    @cached_property
    def is_node(self) -> Mask:
        """Ranges in which the autograd engine ran a node of backward."""
        nodes: Mask = np.array([NODE.match(name) is not None for name in self.events.names], np.bool_)[self.events.name]
        return nodes & of_category(self.events, Category.OP)

    @cached_property
    def engine_lanes(self) -> frozenset[int]:
        return frozenset(np.unique(self.events.lane[self.is_node]).tolist())

    @cached_property
    def has_ddp(self) -> bool:
        return bool(self.reducer_kind)

    @cached_property
    def reducer_kind(self) -> str:
        """The class of the wrapper that reduces gradients; "" where the file shows none."""
        if self.named(DDP_MARKS).any():
            return "DistributedDataParallel"
        return "BucketedDataParallel" if self.named((OWN_FORWARD,)).any() else ""

    @cached_property
    def main_lane(self) -> int:
        """The thread with the steps. Without steps, the thread that updates; else the thread with most operators that
        runs no backward for another thread. NOTHING if the file has no thread."""
        alone = ~np.isin(self.events.lane, sorted(self.engine_lanes))
        is_op = of_category(self.events, Category.OP)
        for chosen in (self.named((PROFILER_STEP,)), self.named((OPTIMIZER_STEP,)), is_op & alone, self.on_host):
            if chosen.any():
                return int(np.bincount(self.events.lane[chosen]).argmax())
        return NOTHING

    @cached_property
    def main_ops(self) -> Ints:
        """The main thread's outermost operators, in order of begin, without nodes of backward."""
        mine = operators(self.events) & (self.events.lane == self.main_lane)
        top = outermost(self.events, mine) & ~self.is_node & ~self.named(DDP_MARKS)
        return np.flatnonzero(top)

    def named(self, prefixes: tuple[str, ...]) -> Mask:
        """Select ranges on threads whose name begins with this."""
        return named(self.events, prefixes) & self.on_host

    def main_ranges(self, prefix: str) -> Ints:
        """Return the main thread's outermost ranges of this name, in order of begin."""
        return np.flatnonzero(outermost(self.events, self.named((prefix,)) & (self.events.lane == self.main_lane)))

    def spans(self, positions: Ints) -> Iterator[tuple[int, int]]:
        """Yield begin and end of each event."""
        return zip(self.events.begin_ns[positions].tolist(), self.events.end_ns[positions].tolist(), strict=True)

    def name(self, position: int) -> str:
        return self.events.names[int(self.events.name[position])]

    def thread(self, lane: int) -> int:
        """Return the system's thread id; if that is no number, the thread's place in the file."""
        try:
            return int(self.events.lanes[lane].tid)
        except ValueError:
            return lane

    @cached_property
    def main_thread(self) -> int:
        return self.thread(self.main_lane) if self.main_lane != NOTHING else 0

    @property
    def begin_at_ns(self) -> int:
        return int(self.events.begin_ns.min()) if len(self.events.begin_ns) else 0

    @property
    def end_at_ns(self) -> int:
        return int(self.events.end_ns.max()) if len(self.events.end_ns) else 0
