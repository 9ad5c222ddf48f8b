"""Which clocks are compared with which, and a first line for each, near enough to compare instants by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ddptrace.analysis.clocks.bounds import Floats, Meetings, Messages
from ddptrace.analysis.clocks.lines import Lines, band, corners, least_absolute

DRIFT_MIN_S: Final = 1.0
DRIFT_MIN_COUNT: Final = 20
"""Less tells no drift."""

MEETINGS_MIN: Final = 3


@dataclass(frozen=True, slots=True)
class Link:
    """How a clock was reached: over its meetings with `parent`, or over messages where `met` is none."""

    clock: int
    parent: int
    met: int


def links_of(met: Meetings, sent: Messages, clocks: int) -> list[Link]:
    """A tree from the reference, clock 0, over the most meetings; clocks that nothing leads to are left out."""
    present = met.present.astype(np.float64)
    common = (present.T @ present).astype(np.int64)
    by_messages = np.zeros((clocks, clocks), np.int64)
    np.add.at(by_messages, (sent.sender, sent.receiver), 1)
    by_messages = np.minimum(by_messages, by_messages.T)
    strength = np.where(common >= MEETINGS_MIN, common + (1 << 40), by_messages)
    links: list[Link] = []
    reached, best, parent = np.zeros(clocks, np.bool_), strength[0].copy(), np.zeros(clocks, np.int64)
    reached[0] = True
    while (best[~reached] > 0).any():
        clock = int(np.argmax(np.where(reached, 0, best)))
        count = int(common[clock, parent[clock]])
        links.append(Link(clock, int(parent[clock]), count if count >= MEETINGS_MIN else 0))
        reached[clock] = True
        nearer = ~reached & (strength[clock] > best)
        best, parent = np.where(nearer, strength[clock], best), np.where(nearer, clock, parent)
    return links


def rough(met: Meetings, sent: Messages, links: list[Link]) -> Lines:
    """Each clock against the one that it was reached from."""
    ends = np.concatenate((met.end[:, 0], sent.end[sent.receiver == 0], sent.begin[sent.sender == 0]))
    lines = Lines.same(float(np.nanmean(ends)), met.end.shape[1])
    for link in links:
        fit = _rough_by_ends(met, lines, link) if link.met else _rough_by_messages(met, sent, lines, link)
        lines.offset[link.clock], lines.drift[link.clock] = fit
    return lines


def _rough_by_ends(met: Meetings, lines: Lines, link: Link) -> tuple[float, float]:
    both = met.present[:, link.clock] & met.present[:, link.parent]
    parents = lines.off(met.end[both][:, link.parent], np.array(link.parent))
    apart = met.end[both, link.clock] - parents
    columns = columns_of(parents - lines.zero)
    middle = float(np.median(apart))
    found = least_absolute(columns, apart - middle)
    return middle + found[0], drift_of(found)


def _rough_by_messages(met: Meetings, sent: Messages, lines: Lines, link: Link) -> tuple[float, float]:
    """The middle of what is proved; the straight way back and forth where that is nothing."""
    above, below = proofs(met.chosen(np.zeros(len(met), np.bool_)), lines.off_messages(sent), link, lines.zero)
    fit = corners(above, below)
    if not len(fit):
        return float(above[:, 1].min() + below[:, 1].max()) / 2, 0.0
    at = np.array([below[:, 0].min(), above[:, 0].max() + 1.0])
    low, high = band(fit, at)
    middle = (low + high) / 2
    drift = float(middle[1] - middle[0]) / float(at[1] - at[0])
    return float(middle[0]) - drift * float(at[0]), drift


def proofs(met: Meetings, sent: Messages, link: Link, zero: float) -> tuple[Floats, Floats]:
    """What is left of the link's clock against its parent's, in the reference's time, can be no more and no less than
    these; shape (n, 2) as instant - zero, offset."""
    one, other = link.clock, link.parent
    both = met.proves & met.present[:, one] & met.present[:, other]
    to, back = (sent.receiver == one) & (sent.sender == other), (sent.receiver == other) & (sent.sender == one)
    end, begin = np.append(met.end[both, one], sent.end[to]), np.append(met.begin[both, other], sent.begin[to])
    above = np.column_stack((end - zero, end - begin))
    begin, end = np.append(met.begin[both, one], sent.begin[back]), np.append(met.end[both, other], sent.end[back])
    return above, np.column_stack((begin - zero, begin - end))


def columns_of(at_ns: Floats) -> Floats:
    """Of a line; of a level one where the instants tell no drift. In seconds."""
    level = np.ones((len(at_ns), 1))
    tells = len(at_ns) >= DRIFT_MIN_COUNT and np.ptp(at_ns) >= DRIFT_MIN_S * 1e9
    return np.column_stack((level, at_ns / 1e9)) if tells else level


def drift_of(found: Floats) -> float:
    return float(found[1]) / 1e9 if len(found) > 1 else 0.0
