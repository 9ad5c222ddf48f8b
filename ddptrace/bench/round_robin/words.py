"""Whether process groups in turn help, beside what noise alone does, and beside what Li et al. found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from ddptrace.bench.cells import ratio_interval
from ddptrace.bench.statistics import Spread
from ddptrace.render.words import counted, millis

MORE_AT_ONCE: Final = 1.1
"""As many times as with one group: less tells nothing, a traced run being one run."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Some groups as they were measured. `ratio`: of step times, to one group's. `truth` and `at_once`: of a traced
    run, None for the control, which is not traced."""

    name: str
    groups: int
    time: Spread
    ratio: Spread
    truth: Mapping[str, Any] | None
    at_once: float | None


Verdict = Literal["faster", "slower", "same"]


def verdict(turn: Turn, control: Turn) -> Verdict:
    """Faster or slower only where the whole interval lies beyond 1 and beyond all that the control did."""
    if turn.ratio.high < min(1, control.ratio.low):
        return "faster"
    return "slower" if turn.ratio.low > max(1, control.ratio.high) else "same"


def words(ranks: int, backend: str, buckets: int, turns: Sequence[Turn]) -> list[str]:
    """`turns`: the control last."""
    *asked, control = turns
    several = [turn for turn in asked if turn.groups > 1]
    if not several:
        return ["Only 1 group was measured, so there is nothing to compare."]
    verdicts = {turn.name: verdict(turn, control) for turn in several}
    said = [f"Between {counted(ranks, 'rank')}, {_found(several, verdicts, control)}."]
    if buckets < max(turn.groups for turn in several):
        said.append(f"There are only {counted(buckets, 'bucket')}: groups beyond that number have nothing to do.")
    return [*said, *_why(asked, verdicts), _beside_the_paper(backend, set(verdicts.values()))]


def _found(several: Sequence[Turn], verdicts: Mapping[str, Verdict], control: Turn) -> str:
    """Each ratio with its interval."""
    parts = []
    for turn in several:
        interval = f"({ratio_interval(turn.ratio)})"
        said = {"same": ", no difference beyond the noise", "faster": ": faster", "slower": ": slower"}
        parts.append(
            f"with {turn.groups} groups a step takes {turn.ratio.median:.3f} times {interval} as long as with 1"
            + said[verdicts[turn.name]]
        )
    noise = f"the same group measured twice gives {ratio_interval(control.ratio)}"
    return "; ".join([*parts, noise])


def _why(asked: Sequence[Turn], verdicts: Mapping[str, Verdict]) -> list[str]:
    """What the traced runs say of it: do more collectives run side by side, and is communication over sooner?"""
    one = next(turn for turn in asked if turn.groups == 1)
    most = max(asked, key=lambda turn: turn.groups)
    if one.truth is None or most.truth is None or one.at_once is None or most.at_once is None:
        return []
    before, after = one.truth["comm_ns"], most.truth["comm_ns"]
    told = (
        f"In the traced steps {one.at_once:.2f} collectives run at once with 1 group and {most.at_once:.2f} with "
        f"{most.groups}, and some collective runs for {millis(before)} ms and {millis(after)} ms of a step"
    )
    if most.at_once < MORE_AT_ONCE * one.at_once:
        return [f"{told}: more groups do not put more of them side by side here."]
    if after >= before:
        return [f"{told}: side by side each takes longer, so the link or the processor was full with 1 group."]
    won = verdicts[most.name] == "faster"
    return [f"{told}: side by side they are done sooner{'' if won else ', yet the step is not shorter for it'}."]


def _beside_the_paper(backend: str, verdicts: set[Verdict]) -> str:
    paper = "Li et al. (VLDB 2020) found 3 groups faster than 1 for BERT over NCCL"
    if "faster" in verdicts:
        here = "this measurement, too, has a number of groups that is faster than 1"
    elif "slower" in verdicts:
        here = "this measurement has none that is faster than 1"
    else:
        here = "this measurement shows no difference beyond the noise"
    other = "" if backend == "nccl" else f"; over {backend} it neither confirms nor contradicts that"
    return f"{paper}; {here}{other}. Groups in turn can help only where one alone leaves the link idle."
