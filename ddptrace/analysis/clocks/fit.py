"""The likeliest lines of the clocks, in three steps:

1. Choose which clocks are compared with which. Give each a first line, near enough to compare instants by.
2. Move the lines so that ends of collectives fall together: ranks learn of an end at nearly the same time. Ends tell
   more precisely while ranks are equally busy, and the shortest collectives most.
3. Move the lines towards the middle of what is proved, the more the narrower that is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ddptrace.analysis.clocks.bounds import Floats, Messages, SharedCollectives
from ddptrace.analysis.clocks.lines import Lines, band, cauchy, corners, least_absolute, least_squares

ENDS_MOST: Final = 20_000
ALL_PAIRS: Final = 16
"""Of more clocks, each is compared with some others: those 1, 2, 4, ... further on."""
ORDER_MIN: Final = 10
SPAN_MIN_NS: Final = 20_000.0
SCALE_MIN_NS: Final = 50_000.0
SCALE_PERCENTILE: Final = 40
STRETCHES: Final = 3
ENDS_ERROR_RATIO: Final = 0.04  # of the shortest tenth of collectives, from the last begin to the last end
MIDDLE_BLUNT_NS: Final = 1e6
"""Half the width of what is proved, where its middle is off by as much; by less than its share where that is narrower:
what is proved by short collectives is so from both sides alike. Both are as measured on runs whose clocks were known.
"""


def likeliest(met: SharedCollectives, sent: Messages, links: list[Link]) -> Lines:
    lines = rough(met, sent, links)
    some = _some(met)
    lines = lines.then(_by_ends(lines.off_meetings(some), lines.zero))
    return lines.then(_by_proofs(lines.off_meetings(met), lines.off_messages(sent), lines.zero, links))


def _some(met: SharedCollectives) -> SharedCollectives:
    if len(met) <= ENDS_MOST:
        return met
    return met.chosen(np.sort(np.random.default_rng(0).permutation(len(met))[:ENDS_MOST]))


def _by_ends(met: SharedCollectives, zero: float) -> Lines:
    """Each pair on its own, then all pairs together: what two of them are apart by chance is averaged."""
    pairs = _pairs(met.present)
    lines = Lines.same(zero, met.end.shape[1])
    if not pairs:
        return lines
    fits = np.array([_pair_fit(met, one, other, zero) for one, other in pairs])
    signs = np.zeros((len(pairs), len(lines.offset)))
    for row, (one, other) in enumerate(pairs):
        signs[row, one], signs[row, other] = 1, -1
    lines.offset[1:], lines.drift[1:] = np.linalg.lstsq(signs[:, 1:], fits, rcond=None)[0].T
    return lines


def _pairs(present: NDArray[np.bool_]) -> list[tuple[int, int]]:
    count = present.shape[1]
    steps = range(1, count) if count <= ALL_PAIRS else [1 << k for k in range(count.bit_length()) if 1 << k < count]
    numbers = present.astype(np.float64)
    common = numbers.T @ numbers
    found = [(i, i - step) for step in steps for i in range(step, count) if common[i, i - step] >= MEETINGS_MIN]
    if count <= ALL_PAIRS or _joined(found, (common.sum(axis=0) > 0).tolist()):
        return found
    return [(i, j) for i in range(count) for j in range(i) if common[i, j] >= MEETINGS_MIN]


def _joined(pairs: list[tuple[int, int]], wanted: list[bool]) -> bool:
    """Whether one can come from each wanted clock to each other one."""
    root = list(range(len(wanted)))
    for one, other in pairs:
        old, new = root[one], root[other]
        root = [new if mine == old else mine for mine in root]
    return len({mine for mine, is_wanted in zip(root, wanted, strict=True) if is_wanted}) <= 1


def _pair_fit(met: SharedCollectives, one: int, other: int, zero: float) -> tuple[float, float]:
    """Offset and drift by which `one` reads later at common ends. Who begins last also tends to hear of the end earlier
    or later: a column of its own takes that off. Short collectives weigh more, since both ranks are awake."""
    both = met.present[:, one] & met.present[:, other]
    begin, end = met.begin[both][:, [one, other]], met.end[both][:, [one, other]]
    apart = end[:, 0] - end[:, 1]
    span = np.maximum(end.max(axis=1) - begin.max(axis=1), SPAN_MIN_NS)
    columns = columns_of(end.mean(axis=1) - zero)
    last = np.sign(begin[:, 0] - begin[:, 1])
    has_both = min((last > 0).sum(), (last <= 0).sum()) >= ORDER_MIN
    told = np.column_stack((columns, last)) if has_both else columns
    scale_ns = max(SCALE_MIN_NS, float(np.percentile(np.abs(apart - np.median(apart)), SCALE_PERCENTILE)))
    found = cauchy(told, apart, (span.min() / span) ** 0.5, scale_ns)
    return float(found[0]), drift_of(found[: columns.shape[1]])


def _by_proofs(met: SharedCollectives, sent: Messages, zero: float, links: list[Link]) -> Lines:
    """Towards the middle of what is proved, by as much as that is the surer."""
    lines = Lines.same(zero, met.end.shape[1])
    if not len(met):
        return lines
    at, middle, half = _middles(met, sent)
    spans = np.nanmax(met.end, axis=1) - np.nanmax(met.begin, axis=1)
    ends_error = ENDS_ERROR_RATIO * max(float(np.percentile(spans, 10)), 0.0)
    columns = columns_of(np.nanmean(met.end, axis=1) - zero)
    for clock in (link.clock for link in links if link.met):
        known = np.isfinite(half[:, clock])
        if not known.any():
            continue
        width = half[known, clock]
        told = np.column_stack((np.ones(known.sum()), (at[known] - zero) / 1e9))[:, : columns.shape[1]]
        line = least_squares(told, middle[known, clock], 1 / width**2)
        middle_error = float(width.mean()) ** 2 / MIDDLE_BLUNT_NS
        share = ends_error**2 / (ends_error**2 + middle_error**2)
        lines.offset[clock], lines.drift[clock] = share * line[0], share * drift_of(line)
    return lines


def _middles(met: SharedCollectives, sent: Messages) -> tuple[Floats, Floats, Floats]:
    """In each of a few stretches: when, and for each clock against the reference the middle of what is proved and half
    its width, over all ways there are through other clocks."""
    ends = np.nanmean(met.end, axis=1)
    order = np.argsort(ends, kind="stable")
    at, middle, half = [], [], []
    for rows in np.array_split(order, STRETCHES if len(order) >= STRETCHES * ORDER_MIN else 1):
        first, last = ends[rows].min(), ends[rows].max()
        most = _most(met.chosen(rows), sent.chosen((sent.begin >= first) & (sent.end <= last)))
        at.append(float(ends[rows].mean()))
        known = np.isfinite(most[:, 0]) & np.isfinite(most[0])
        later, earlier = np.where(known, most[:, 0], 0.0), np.where(known, most[0], 0.0)
        middle.append((later - earlier) / 2)
        half.append(np.where(known, np.maximum((later + earlier) / 2, 1.0), np.inf))
    return np.array(at), np.array(middle), np.array(half)


def _most(met: SharedCollectives, sent: Messages) -> Floats:
    """By how much each clock (row) can read later than each other one (column)."""
    count = met.end.shape[1]
    most = np.full((count, count), np.inf)
    for clock in range(count):
        rows = met.proves & met.present[:, clock]
        if rows.any():
            apart = met.end[rows, clock, None] - met.begin[rows]
            most[clock] = np.where(np.isnan(apart), np.inf, apart).min(axis=0)
    np.minimum.at(most, (sent.receiver, sent.sender), sent.end - sent.begin)
    np.fill_diagonal(most, 0.0)
    for over in range(count):
        most = np.minimum(most, most[:, over, None] + most[over])
    return most


# Which clocks are compared, and a first line for each -----------------------------------------------------------------


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


def links_of(met: SharedCollectives, sent: Messages, clocks: int) -> list[Link]:
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


def rough(met: SharedCollectives, sent: Messages, links: list[Link]) -> Lines:
    """Each clock against the one that it was reached from."""
    ends = np.concatenate((met.end[:, 0], sent.end[sent.receiver == 0], sent.begin[sent.sender == 0]))
    lines = Lines.same(float(np.nanmean(ends)), met.end.shape[1])
    for link in links:
        fit = _rough_by_ends(met, lines, link) if link.met else _rough_by_messages(met, sent, lines, link)
        lines.offset[link.clock], lines.drift[link.clock] = fit
    return lines


def _rough_by_ends(met: SharedCollectives, lines: Lines, link: Link) -> tuple[float, float]:
    both = met.present[:, link.clock] & met.present[:, link.parent]
    parents = lines.off(met.end[both][:, link.parent], np.array(link.parent))
    apart = met.end[both, link.clock] - parents
    columns = columns_of(parents - lines.zero)
    middle = float(np.median(apart))
    found = least_absolute(columns, apart - middle)
    return middle + found[0], drift_of(found)


def _rough_by_messages(met: SharedCollectives, sent: Messages, lines: Lines, link: Link) -> tuple[float, float]:
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


def proofs(met: SharedCollectives, sent: Messages, link: Link, zero: float) -> tuple[Floats, Floats]:
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
