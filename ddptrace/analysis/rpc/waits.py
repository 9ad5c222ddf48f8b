"""What a rank waited for where it was blocked on remote calls and nothing else ran.

forward    [ call a ┄┄┄┄┄┄┄┄┄┄┄ ]                         a function at a worker
backward                           [ local ┄┄┄┄┄┄┄┄┄ ]    the distributed backward as a whole
waited         [─── a ─────────)          [backward)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from ddptrace.analysis.intervals import Ints
from ddptrace.analysis.rank_view import RankView
from ddptrace.analysis.steps.breakdown import remote_idle
from ddptrace.load.tables import RpcCall
from ddptrace.schema import Phase

Target = tuple[str, str | None]
"""A function and its worker."""

BACKWARD: Final[Target] = "", ""
UNKNOWN: Final[Target] = "", None
"""No call was under way."""

NEVER: Final = 2**63
"""When a call is done whose end the records do not hold."""


@dataclass(frozen=True, slots=True)
class Waited:
    """How long one step of a rank waited for one thing; those of a step add up to its `rpc_wait_ns`."""

    step: int
    target: Target
    ns: int


def waited_for(view: RankView) -> tuple[Waited, ...]:
    """In order of steps; nothing for a rank that has none."""
    sums: Counter[tuple[int, Target]] = Counter()
    for step, target, ns in _stretches(view):
        sums[view.rank.steps[step].ordinal, target] += ns
    return tuple(Waited(step, target, ns) for (step, target), ns in sums.items())


def _stretches(view: RankView) -> Iterator[tuple[int, Target, int]]:
    """Cut where steps and phases begin and end: position of the step, what for, how long."""
    idle = remote_idle(view)
    if not len(idle) or not view.rank.steps:
        return
    _, begins, ends = view.windows.split(idle[:, 0], idle[:, 1])
    _, begins, ends = view.phases.split(begins, ends)
    steps, phases = view.windows.at(begins).tolist(), view.phases.at(begins).tolist()
    awaited = _awaited(view.rank.rpc.calls, begins, ends)
    for step, phase, target, ns in zip(steps, phases, awaited, (ends - begins).tolist(), strict=True):
        if step >= 0:
            yield step, BACKWARD if phase == Phase.BACKWARD else target, ns


def _awaited(calls: Iterable[RpcCall], begins: Ints, ends: Ints) -> Iterator[Target]:
    """Of each stretch the call that was under way longest in it, of several alike the one that was done first."""
    ahead = sorted((call for call in calls if not call.is_internal), key=attrgetter("begin_at_ns"), reverse=True)
    running: list[RpcCall] = []
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        while ahead and ahead[-1].begin_at_ns < end:
            running.append(ahead.pop())
        running = [call for call in running if call.done_at_ns is None or call.done_at_ns > begin]
        yield _longest(running, begin, end)


def _longest(calls: Sequence[RpcCall], begin: int, end: int) -> Target:
    def overlap(call: RpcCall) -> tuple[int, int]:
        done = NEVER if call.done_at_ns is None else call.done_at_ns
        return min(done, end) - max(call.begin_at_ns, begin), -done

    one = max(calls, key=overlap, default=None)
    return UNKNOWN if one is None else (one.function, one.callee)
