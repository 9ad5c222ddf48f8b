"""What some steps of a rank need: the host's work during them, and the device's work that decides how long they take.

host     [ step 9    ][ step 10   ][ step 11   ][ step 12   ]      asked: steps 10 and 11. Step 9 comes along,
device         ==9==9==    ==10==10===   ==11===     ==12==        as step 10 begins where it ends, on the host and on
kept     |──────────────────────────────────────|                  the device
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ddptrace.load.tables import DeviceWork, RankRun, StepMark, Window
from ddptrace.schema import Evidence, StepEnd


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
