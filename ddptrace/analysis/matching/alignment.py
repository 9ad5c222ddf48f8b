"""The same stretch of a group's collectives on all its ranks, where not every rank has them from the first on.

rank 0   let go: 5    5 6 7 8 9
rank 1   let go: 7        7 8 9        aligned: 7 8 9, by their numbers
rank 0   steps 0 . . 3 . . 6
rank 1   steps 0 . 2 3 . . 6          aligned: those of steps 0, 3 and 6, which both recorded
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ddptrace.analysis.matching.proof import Seen


def aligned(group: Sequence[Seen]) -> tuple[list[Seen], Sequence[int]]:
    """The ranks with those collectives only that all of them show, and the number in the group of each. Where they are
    sampled, what lies between was not counted: they are numbered as they come."""
    if any(one.sampled for one in group):
        group = _of_common_steps(group)
    elif any(one.let_go for one in group):
        return _of_common_turns(group)
    return list(group), range(max(len(one.sightings) for one in group))


def _of_common_steps(group: Sequence[Seen]) -> list[Seen]:
    """By the step that launched them: queued near its end, one may run in it on one rank and after it on another."""
    common = set.intersection(*({one.launched_in for one in seen.sightings} for seen in group)) - {None}
    return [_chosen(seen, [one.launched_in in common for one in seen.sightings]) for seen in group]


def _of_common_turns(group: Sequence[Seen]) -> tuple[list[Seen], Sequence[int]]:
    turns = [[one.turn for one in seen.sightings] if seen.let_go else range(len(seen.sightings)) for seen in group]
    common = set.intersection(*map(set, turns))
    chosen = [_chosen(seen, [turn in common for turn in mine]) for seen, mine in zip(group, turns, strict=True)]
    return chosen, sorted(common)


def _chosen(seen: Seen, wanted: Sequence[bool]) -> Seen:
    chosen = tuple(one for one, is_wanted in zip(seen.sightings, wanted, strict=True) if is_wanted)
    return replace(seen, sightings=chosen)
