"""What is known about a call beside its CALL record: its origin, its peer, and the latest possible end."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ddptrace.load.records.events import FLAGS, NAME, A, D, E, Row
from ddptrace.load.tables import Call, PhaseMark
from ddptrace.schema import THROUGH, UNKNOWN_ORIGIN, CallFlag, Origin, Phase

NO_GRADIENT: Final = ("int", "uint", "bool")
"""Of all that a reducer's C++ reduces in backward, only the bitmap of used parameters has such a dtype."""
ORIGINS: Final = frozenset(Origin)


class CallOrigin(NamedTuple):
    """As in `Call`."""

    origin: str | None
    site: str | None
    through: str | None
    module: str | None
    peer: int | None


class CallOrigins:
    """The origins of one rank's calls. `origins`: its ORIGIN records; `text`: what a string id stands for; `ranks`:
    global ranks of each process group, in the group's order."""

    def __init__(self, origins: Iterable[Row], text: Callable[[int], str], ranks: Mapping[str, Sequence[int]]) -> None:
        self._said = {row[A]: row for row in origins}
        self._text = text
        self._ranks = ranks

    def of(self, call: Row, op: str, dtype: str) -> CallOrigin:
        """`call`: its CALL record."""
        said = self._said.get(call[A])
        if said is None:
            return CallOrigin(_alone(call, op, dtype).word, None, None, None, None)
        origin = Origin(said[FLAGS]) if said[FLAGS] in ORIGINS else _alone(call, op, dtype)
        is_unknown = said[FLAGS] == UNKNOWN_ORIGIN and origin is Origin.PROGRAM
        peer = self._global(self._text(call[D]), said[E] - 1)
        word = None if is_unknown else origin.word
        site, _, through = self._text(said[NAME]).partition(THROUGH)
        return CallOrigin(word, site or None, through or None, self._text(said[D]) or None, peer)

    def _global(self, group: str, rank: int) -> int | None:
        ranks = self._ranks.get(group, ())
        return ranks[rank] if 0 <= rank < len(ranks) else None


def _alone(call: Row, op: str, dtype: str) -> Origin:
    """Return the origin of a call without Python below it: in backward, only DDP issues such all-reduces."""
    if call[E]:
        return Origin.HOOK
    if call[FLAGS] & CallFlag.NATIVE and op.startswith("all_reduce"):
        return Origin.UNUSED_PARAMETERS if dtype.startswith(NO_GRADIENT) else Origin.GRADIENTS
    return Origin.PROGRAM


# When a call was over, as far as the host's own doings tell -----------------------------------------------------------


GRADIENT_DTYPES: Final = ("float", "bfloat", "complex")


def with_proven_ends(calls: Iterable[Call], phases: Iterable[PhaseMark]) -> tuple[Call, ...]:
    """Return the calls with completion stamps cut where the end is known better. A stamp needs the interpreter's lock,
    so it is late by as long as the training thread holds that."""
    calls = tuple(calls)
    over_by = known_over_by(calls, phases)
    return tuple(_cut(call, over_by[call.seq]) if call.seq in over_by else call for call in calls)


def _cut(call: Call, over_by: int) -> Call:
    late = call.done_at_ns is not None and call.done_at_ns > over_by
    return dataclasses.replace(call, done_at_ns=over_by) if late else call


def known_over_by(calls: Iterable[Call], phases: Iterable[PhaseMark]) -> dict[int, int]:
    """Return, by seq, when the host is known to have gone on, so that the call was complete: the end of its wait, or of
    the backward whose gradients it reduced. This bounds completion stamps too, which come late by as long as the
    training thread holds the interpreter. Calls on a device are left out: the host does not wait for them."""
    backwards = sorted((phase for phase in phases if phase.phase is Phase.BACKWARD), key=lambda one: one.begin_at_ns)
    begins = [phase.begin_at_ns for phase in backwards]
    found: dict[int, int] = {}
    for call in calls:
        if call.on_device:
            continue
        ends = [end for _, end in call.waits]
        # The reducer's own integer map of unused parameters may still run when backward ends.
        if call.is_native and call.reducer is not None and call.dtype.startswith(GRADIENT_DTYPES):
            nth = bisect_right(begins, call.launch_at_ns) - 1
            if nth >= 0 and call.launch_at_ns < backwards[nth].end_at_ns:
                ends.append(backwards[nth].end_at_ns)
        if ends:
            found[call.seq] = min(ends)
    return found
