"""One Kineto file, shortened: decides what some steps of a rank need, and writes those events as they were.

Steps need the host's work during them, and the device's work that decides how long they take:

host     [ step 9    ][ step 10   ][ step 11   ][ step 12   ]      asked: steps 10 and 11. Step 9 comes along,
device         ==9==9==    ==10==10===   ==11===     ==12==        as step 10 begins where it ends, on the host and on
kept     |──────────────────────────────────────|                  the device

Arrows (flows) are written last: only then is it known whether the slices at both of their ends are kept.
"""

from __future__ import annotations

import gzip
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, Final

import msgspec
import numpy as np

from ddptrace.load.kineto.args import REFUSED
from ddptrace.load.kineto.columns import CATEGORIES
from ddptrace.load.kineto.events import Category
from ddptrace.load.kineto.head import identify
from ddptrace.load.kineto.source import NotATrace, Source
from ddptrace.load.kineto.stream import Event, EventStream, decoded, told_by
from ddptrace.load.kineto.text import time_column
from ddptrace.load.tables import DeviceWork, RankRun, StepMark, Window
from ddptrace.load.windows.device import GLOO_PREFIX, PROFILER_STEP
from ddptrace.render.whole_file import whole_file
from ddptrace.schema import Evidence, StepEnd

FLOWS: Final = ("s", "t", "f")
ON_DEVICE: Final = (Category.KERNEL, Category.MEMORY)
ISSUING: Final = "c10d::"
PACKED: Final = ".gz"
LEVEL: Final = 6  # of gzip: these files are made to be sent
NOTE: Final = b"ddptraceTrim"
"""The key of the outermost object that says what was left out."""

Lane = tuple[str, str]
Span = tuple[int, int]


class _Placed(Event):
    id: Any = None


_PLACED: Final = msgspec.json.Decoder(_Placed)
_ALL_PLACED: Final = msgspec.json.Decoder(list[_Placed])


@dataclass(frozen=True, slots=True)
class Shortened:
    """How many events a file held, how many of them were kept, and what they take on the disk now. `is_empty`: no slice
    is among them."""

    seen: int
    kept: int
    is_empty: bool
    nbytes: int


@dataclass(frozen=True, slots=True)
class _FlowEnd:
    lane: Lane
    at_ns: int
    text: bytes


def shorten(source: Path, place: Path, cut: Cut) -> Shortened:
    """Write what `cut` keeps of a file to `place`, whole or not at all.

    Raises OSError where a file cannot be read or written, NotATrace where the source is damaged as a whole.
    """
    with whole_file(place) as raw:
        if place.name.lower().endswith(PACKED):
            with gzip.GzipFile("", "wb", LEVEL, raw, mtime=0) as file:
                written = _Writer(source, file, cut).write()
        else:
            written = _Writer(source, raw, cut).write()
        return Shortened(*written, raw.tell())


class _Writer:
    def __init__(self, source: Path, file: IO[bytes] | gzip.GzipFile, cut: Cut) -> None:
        self.source, self.file, self.cut = source, file, cut
        self.base_ns = identify(source, with_time=True).base_ns or 0
        self.arrows_from_ns = min([cut.first_ns, *cut.launches])
        self.stream = EventStream(self.take, self.refuse, element=msgspec.Raw)
        self.slices: dict[Lane, list[Span]] = defaultdict(list)
        self.flows: dict[tuple[str, str], list[_FlowEnd]] = defaultdict(list)
        self.seen = self.kept = 0

    def write(self) -> tuple[int, int, bool]:
        """Return how many events the source holds, how many of them were kept, and whether no slice was."""
        self.stream.read(Source(self.source))
        reach = {lane: _Reach.of(spans) for lane, spans in self.slices.items()}
        for ends in self.flows.values():
            if len(ends) > 1 and all(end.lane in reach and reach[end.lane].covers(end.at_ns) for end in ends):
                self.put([end.text for end in ends])
        self.file.write(self.head() + self.tail())
        return self.seen, self.kept, not self.slices

    def refuse(self) -> None:
        raise NotATrace("it has traceEvents twice")

    def take(self, texts: list[msgspec.Raw]) -> None:
        """Write those of some events that are kept, and hold back the ends of arrows."""
        self.seen += len(texts)
        events = _placed(texts)
        begin, has_begin = time_column([event.ts for event in events])
        length, has_length = time_column([event.dur for event in events])
        begin = begin + self.base_ns
        spans = zip(begin.tolist(), (begin + np.maximum(length, 0)).tolist(), strict=True)
        known = zip(has_begin.tolist(), has_length.tolist(), strict=True)
        chosen = []
        for text, event, span, (is_timed, is_slice) in zip(texts, events, spans, known, strict=True):
            if event.ph == "M" or (is_timed and self.keeps(event, span, is_slice, text)):
                chosen.append(bytes(text))
        self.put(chosen)

    def keeps(self, event: _Placed, span: Span, is_slice: bool, text: msgspec.Raw) -> bool:
        if event.ph == "X":
            is_kept = is_slice and self.keeps_slice(event, span)
            if is_kept:
                self.slices[_lane(event)].append(span)
            return is_kept
        if event.ph in FLOWS:
            if self.arrows_from_ns <= span[0] <= self.cut.last_ns:
                self.flows[str(event.cat), str(event.id)].append(_FlowEnd(_lane(event), span[0], bytes(text)))
            return False
        return self.cut.first_ns <= span[0] <= self.cut.last_ns

    def keeps_slice(self, event: _Placed, span: Span) -> bool:
        kind, name, cut = CATEGORIES.get((event.cat or "").lower()), str(event.name), self.cut
        if kind in ON_DEVICE:
            return span in cut.works
        if name.startswith(GLOO_PREFIX):
            return span[0] in cut.ranges
        if name.startswith(PROFILER_STEP) and kind is not None:
            return cut.begin_ns < span[1] <= cut.end_ns
        if kind is Category.RUNTIME or name.startswith(ISSUING):
            return cut.during(span) or span[0] in cut.launches
        return cut.during(span) if kind is not None else span[0] <= cut.last_ns and span[1] >= cut.first_ns

    def put(self, texts: Sequence[bytes]) -> None:
        if texts:
            self.file.write((b",\n" if self.kept else self.head()) + b",\n".join(texts))
            self.kept += len(texts)

    def head(self) -> bytes:
        """What stands before the events; nothing where it is written already."""
        around = self.stream.around
        return b"" if self.kept else around.text[: around.head_nbytes - 1] + b"\n"

    def tail(self) -> bytes:
        """The list's end and what stands behind it, with a note; of a file that is cut short, only brackets."""
        around = self.stream.around
        if around.text.lstrip()[:1] == b"[":
            return b"\n]\n"
        note = b'\n],"%b":%b' % (
            NOTE,
            msgspec.json.encode({"steps": self.cut.steps, "events": self.kept, "of": self.seen}),
        )
        behind = around.text[around.head_nbytes :]
        is_whole = not self.stream.stopped and told_by(around.text) is not None
        return note + (behind if is_whole else b"}\n")


def _placed(texts: Sequence[msgspec.Raw]) -> list[_Placed]:
    try:
        return _ALL_PLACED.decode(b"[%b]" % b",".join(texts))
    except REFUSED:
        return [decoded(bytes(text), _PLACED) or _Placed() for text in texts]


def _lane(event: Event) -> Lane:
    return str(event.pid), str(event.tid)


@dataclass(frozen=True, slots=True)
class _Reach:
    """Slices of one lane: by begin, how far those that have begun reach."""

    begins: list[int]
    ends: list[int]

    @classmethod
    def of(cls, spans: list[Span]) -> _Reach:
        spans.sort()
        return cls([begin for begin, _ in spans], list(accumulate((end for _, end in spans), max)))

    def covers(self, at_ns: int) -> bool:
        k = bisect_right(self.begins, at_ns) - 1
        return k >= 0 and at_ns <= self.ends[k]


@dataclass(frozen=True, slots=True)
class Cut:
    """What is kept of a rank's files. All instants are Unix nanoseconds."""

    begin_ns: int  # of the host's work
    end_ns: int
    works: frozenset[tuple[int, int]]  # begin and end of each piece of the device's work
    launches: frozenset[int]  # begins of calls that are kept wherever they are
    ranges: frozenset[int]  # begins of the backend's own ranges, kept with the calls that launched them
    steps: tuple[int, ...]  # all that are kept whole
    numbered: bool  # the file itself numbers its steps

    first_ns: int  # when the first thing that is kept begins
    last_ns: int  # when the last one ends

    def during(self, span: tuple[int, int]) -> bool:
        """Whether a stretch of the host's time lies in that of the steps, in part at least, or in that in which the
        device still worked for them: what the host did then tells why the device was idle."""
        return span[0] < self.last_ns and (span[1] > self.begin_ns or span[0] >= self.begin_ns)


def cut_of(run: RankRun, first: int, last: int, zero_unix_ns: int) -> Cut | None:
    """Return what the steps from `first` to `last` of a rank need; None if the rank has none of them."""
    asked = [k for k, step in enumerate(run.steps) if first <= step.ordinal <= last]
    if not asked:
        return None
    lead = _lead(run, asked[0])
    begin, end = _host_begin(run, lead), _host_end(run, asked[-1])
    devices = [window.device for window in run.windows if window.device is not None]
    works = [spans for device in devices for spans in _works(device, begin, end, run.steps[lead])]
    launches = [at for _, _, at in works if at is not None]
    pairs = list(_backend_pairs(run, begin, end))
    return Cut(
        begin + zero_unix_ns,
        end + zero_unix_ns,
        frozenset((begin + zero_unix_ns, end + zero_unix_ns) for begin, end, _ in works),
        frozenset(at + zero_unix_ns for at in (*launches, *(launch for launch, _ in pairs))),
        frozenset(ran + zero_unix_ns for _, ran in pairs),
        tuple(step.ordinal for step in run.steps[lead : asked[-1] + 1]),
        run.steps[lead].ended_by is StepEnd.SAID,
        min([begin, *(work[0] for work in works)]) + zero_unix_ns,
        max([end, *(work[1] for work in works)]) + zero_unix_ns,
    )


def _lead(run: RankRun, first: int) -> int:
    """Return the position of the step before, where it is in the same window: the first step begins where it ends."""
    window = _window_of(run.windows, run.steps[first])
    is_led = first > 0 and window is not None and _window_of(run.windows, run.steps[first - 1]) is window
    return first - 1 if is_led else first


def _window_of(windows: Sequence[Window], step: StepMark) -> Window | None:
    holds = (
        window for window in windows if window.begin_at_ns < step.end_at_ns and step.begin_at_ns < window.end_at_ns
    )
    return next(holds, None)


def _host_begin(run: RankRun, lead: int) -> int:
    """Return the begin of the step, or of its window if it is the window's first step."""
    window = _window_of(run.windows, run.steps[lead])
    is_first = lead == 0 or _window_of(run.windows, run.steps[lead - 1]) is not window
    return window.begin_at_ns if is_first and window is not None else run.steps[lead].begin_at_ns


def _host_end(run: RankRun, last: int) -> int:
    """Return the end of the step, or of its window if it is the window's last step."""
    window = _window_of(run.windows, run.steps[last])
    is_last = last + 1 == len(run.steps) or _window_of(run.windows, run.steps[last + 1]) is not window
    return window.end_at_ns if is_last and window is not None else run.steps[last].end_at_ns


def _works(work: DeviceWork, begin: int, end: int, lead: StepMark) -> Iterator[tuple[int, int, int | None]]:
    """Yield begin and end of each piece that the host launched in these steps, and of those that ran meanwhile, with
    the begin of its launch. The last piece before comes along: the device time of a step begins where it ends."""
    launch = work.launch_begin_at_ns
    inside = work.launched & (launch >= begin) & (launch <= end)
    if not inside.any():
        inside = (work.end_at_ns > begin) & (work.begin_at_ns < end)
    if not inside.any():
        return
    own = work.launched & (launch >= lead.begin_at_ns) & (launch < lead.end_at_ns)
    own_from = int(work.begin_at_ns[own if own.any() else inside].min())
    before = np.where(work.launched, launch < lead.begin_at_ns, work.begin_at_ns < own_from)
    since = min(begin, int(work.end_at_ns[before].max()) if before.any() else own_from)
    beside = (work.end_at_ns >= since) & (work.begin_at_ns <= work.end_at_ns[inside].max())
    columns = (work.begin_at_ns, work.end_at_ns, launch, work.launched)
    for begins, ends, launched_at, launched in zip(
        *(column[inside | beside].tolist() for column in columns), strict=True
    ):
        yield begins, ends, launched_at if launched else None


def _backend_pairs(run: RankRun, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield launch and begin of each collective on the backend's own thread: the k-th launch belongs to the k-th
    range, so that both stay or both go."""
    for call in run.calls:
        ran = call.exec
        if ran is None or ran.evidence is not Evidence.BACKEND:
            continue
        if begin <= call.launch_at_ns < end or (ran.begin_at_ns < end and ran.end_at_ns > begin):
            yield call.launch_at_ns, ran.begin_at_ns
