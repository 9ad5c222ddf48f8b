"""Which steps the next profiler window has: a rank notices that its steps have become slower, and the ranks agree
through their store.

rank 1    wish ─▶ store                                            a rank that saw a slowdown or a request; the first
all            look ─▶ confirm: "step 41, 20 ms each"              wish counts, and its rank decides
rank 1                         decide ─▶ "steps 60 to 62"          once all have confirmed: far enough ahead of them
all                                      look ─▶ open at step 59   with a step of warm-up

While a window is being agreed on, ranks look more often, and it begins at least `AHEAD_LOOKS` such looks after the
decision: every rank looks several times before it comes there. A rank that learns of it too late opens nothing and says
so. Ranks that train together are at most a step apart; the steps that ranks confirm show how far apart others are.

A slowdown is several steps in a row that are longer than steps usually are:

lengths   ▂▂▂▃▂▂█▂▂▂▃▂▂▂█▂▂▂▃▂▂▂▂▆▆▆          usual: the median of the steps before; bar: that times a factor
bar       ----------------------------         a checkpoint or an evaluation exceeds it in a single step
in a row        1       1         123          the third one in a row is a slowdown

Three in a row are enough in a steady run, if they take a quarter of a second. If a share p of the usual steps exceeds
the bar by itself, n in a row happen by chance with p**n, so it takes as many as make this rarer than `CHANCE`, and more
than the run has had in a row before. After a slowdown, what is usual is learned anew.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from statistics import median
from typing import Any, Final

from ddptrace.capture import identity

LOOK_S: Final = 0.2
NEAR_LOOK_S: Final = 0.05
"""Between two looks at the store, and while a window is being agreed on. A look takes 0.1 ms, most of it waiting."""
LOOKS_PER_S: Final = 2_000
NEAR_LOOKS_PER_S: Final = 10_000
"""Looks of all ranks together, at most: one rank serves the store."""
CONFIRM_S: Final = 30.0
"""Longest wait for confirmations: a file that `ddptrace profile` writes may reach some hosts late."""
AHEAD_LOOKS: Final = 6
AHEAD_STEPS: Final = 3
"""At least: one of warm-up, one since the rank has confirmed, and one that ranks may be apart."""
CLOSE_S: Final = 1.0
"""Longest wait, at the end of a trace, for the thread: the store may hang."""

FIRST_STEPS: Final = 5
"""Not judged: programs compile, allocate and fill their queues in them."""

LEAST_USUAL: Final = 25
MOST_USUAL: Final = 200
"""Steps that tell what is usual."""

JUDGE_EVERY: Final = 50
"""Steps after which it is judged again what is usual: it takes as long as recording a few collectives."""

LEAST_IN_A_ROW: Final = 3
LEAST_NS: Final = 250_000_000
"""That they take together: another process of the machine holds up many short steps for a moment."""
CHANCE: Final = 1e-5


@dataclass(frozen=True, slots=True)
class Wish:
    """Why a rank wants a window of `active` steps. `request`: id of the request of `ddptrace profile`; "" if `slowdown`
    is the reason. `step`: the rank was in it. `rank`: in the default process group; 0 without one."""

    step: int
    active: int
    request: str = ""
    slowdown: Slowdown | None = None
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Agreed:
    """A window of `wish.active` steps from `begin` on. `confirmed` of `size` ranks know of the wish."""

    wish: Wish
    begin: int
    confirmed: int
    size: int

    @property
    def last(self) -> int:
        return self.begin + self.wish.active - 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank is: the step that it is in, and the length in ns of its faster steps, and of the fastest of its last
    ones; 0 if unknown."""

    step: int
    step_ns: int
    last_ns: int

    def next_ns(self, wish: Wish) -> int:
        """How long its next steps take, at least. A slowdown lasts, or else a window comes too late in any case."""
        return self.last_ns if wish.slowdown is not None else self.step_ns


class SameSteps:
    """Wishes go in, agreed windows come out.

    Args:
        key: Begin of the keys in the store; the same on all ranks, and no other trace has it.
        place: Returns where this rank is. Called on the thread.
        decided: Called on the thread, with a window that this rank has decided on.
        fails: Called on the thread with what went wrong, when a wish is lost.
        group: Returns the default process group.
    """

    def __init__(
        self,
        key: str,
        place: Callable[[], Place],
        decided: Callable[[Agreed], None],
        fails: Callable[[str], None],
        group: Callable[[], identity.Group | None] = identity.group,
    ) -> None:
        self.due: Agreed | None = None  # the training thread takes it at its first step
        self._key = key
        self._place = place
        self._decided = decided
        self._fails = fails
        self._group = group
        self._number = 0  # of the next window
        self._wish: Wish | None = None
        self._confirmed: Wish | None = None
        self._confirmed_s = 0.0
        self._granted: set[str] = set()  # requests
        self._lost: Any = None  # a store that is gone
        self._wake = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start to look, if not started yet. Raises RuntimeError if the system gives no thread."""
        if self._thread is None and not self._closing:
            self._thread = threading.Thread(target=self._run, name="ddptrace-windows", daemon=True)
            self._thread.start()

    def want(self, wish: Wish) -> None:
        """Ask for a window, unless one is being agreed on. Returns at once."""
        if self._wish is None and self.due is None and wish.request not in self._granted:
            self._wish = wish
            self._wake.set()
            self.start()

    def close(self) -> None:
        """Look no more."""
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._closing:
            group = self._group()
            try:
                self._look(group)
            except Exception as error:  # the store is gone with its rank, or a rank wrote something else
                self._lose(group, error)
            self._wake.wait(self._pause_s(group))
            self._wake.clear()

    def _pause_s(self, group: identity.Group | None) -> float:
        size = 1 if group is None else group.size
        is_near = self._wish is not None or self._confirmed is not None
        return _near_s(size) if is_near else max(LOOK_S, size / LOOKS_PER_S)

    def _lose(self, group: identity.Group | None, error: Exception) -> None:
        """Ask this store no more."""
        self._lost = group and group.store
        if self._wish is not None or self._confirmed is not None:
            self._fails(f"the ranks' store failed ({type(error).__name__}), so they cannot agree on profiler windows")
        self._wish = self._confirmed = None

    def _look(self, group: identity.Group | None) -> None:
        if self.due is not None:
            return
        if group is None or group.size == 1:
            if self._wish is not None:
                self._decide_alone(self._wish)
        elif group.store is None:
            if self._wish is not None:
                raise LookupError("no store")
        elif group.store is self._lost:
            self._wish = None
        else:
            self._look_with(group)

    def _look_with(self, group: identity.Group) -> None:
        store, key = group.store, f"{self._key}/window/{self._number}"
        if self._confirmed is None:
            self._confirm(group, key)
        wish = self._confirmed
        if wish is None:
            return
        if wish.rank == group.rank:
            self._decide_in_time(group, key, wish)
        if store.check([f"{key}/agreed"]):
            self._agree(_agreed(json.loads(store.get(f"{key}/agreed"))))

    def _confirm(self, group: identity.Group, key: str) -> None:
        """Confirm the first wish, if there is one; the store keeps only that."""
        store, wish = group.store, self._wish
        if wish is not None:
            first = store.compare_set(f"{key}/wish", "", json.dumps(asdict(replace(wish, rank=group.rank))))
        elif store.check([f"{key}/wish"]):
            first = store.get(f"{key}/wish")
        else:
            return
        store.set(f"{key}/place/{group.rank}", json.dumps(asdict(self._place())))
        store.add(f"{key}/confirmed", 1)
        self._confirmed, self._confirmed_s = _wish(json.loads(first)), time.monotonic()

    def _decide_in_time(self, group: identity.Group, key: str, wish: Wish) -> None:
        store = group.store
        confirmed = store.add(f"{key}/confirmed", 0)
        if confirmed < group.size and time.monotonic() < self._confirmed_s + CONFIRM_S:
            return
        names = [f"{key}/place/{rank}" for rank in range(group.size)]
        places = [Place(**json.loads(store.get(name))) for name in names if store.check([name])]
        agreed = Agreed(wish, _begin(wish, [*places, self._place()], group.size), confirmed, group.size)
        store.set(f"{key}/agreed", json.dumps(asdict(agreed)))
        self._decided(agreed)

    def _decide_alone(self, wish: Wish) -> None:
        agreed = Agreed(wish, _begin(wish, [self._place()], 1), 1, 1)
        self._agree(agreed)
        self._decided(agreed)

    def _agree(self, agreed: Agreed) -> None:
        self._granted.add(agreed.wish.request)
        self._granted.discard("")
        self._number += 1
        if self._wish is not None and (not self._wish.request or self._wish.request in self._granted):
            self._wish = None
        self._confirmed = None
        self.due = agreed


def _near_s(size: int) -> float:
    return max(NEAR_LOOK_S, size / NEAR_LOOKS_PER_S)


def _begin(wish: Wish, places: list[Place], size: int) -> int:
    """Return the first step of a window that no rank reaches before it has looked."""
    ahead_s = AHEAD_LOOKS * _near_s(size) if size > 1 else 0
    fastest_ns = min(filter(None, (place.next_ns(wish) for place in places)), default=0)
    ahead = math.ceil(ahead_s * 1e9 / fastest_ns) if fastest_ns else 0
    return max(place.step for place in places) + AHEAD_STEPS + ahead


def _wish(said: dict[str, Any]) -> Wish:
    slowdown = said["slowdown"]
    return Wish(**said | {"slowdown": None if slowdown is None else Slowdown(**slowdown)})


def _agreed(said: dict[str, Any]) -> Agreed:
    return Agreed(**said | {"wish": _wish(said["wish"])})


@dataclass(frozen=True, slots=True)
class Slowdown:
    """`slow_ns`: median of the steps in a row that are longer; `usual_ns`: of those before."""

    steps: int
    slow_ns: int
    usual_ns: int


class SlowSteps:
    """Takes the length of each step, and tells when the steps have become longer by `factor`."""

    def __init__(self, factor: float) -> None:
        self._factor = factor
        self.restart()

    def restart(self) -> None:
        """Learn anew what is usual."""
        self._usual = deque[int](maxlen=MOST_USUAL)
        self._in_a_row: list[int] = []
        self._first = FIRST_STEPS
        self._until_judged = LEAST_USUAL
        self._usual_ns = 0
        self._bar = math.inf
        self._needed = LEAST_IN_A_ROW

    def add(self, length: int) -> Slowdown | None:
        """Take the length of the step that has just ended, in ns. Return a slowdown at the step that completes it."""
        if length >= self._bar:
            self._in_a_row.append(length)
            is_lasting = len(self._in_a_row) >= self._needed and sum(self._in_a_row) >= LEAST_NS
            return self._slowdown() if is_lasting else None
        if self._first:
            self._first -= 1
            return None
        if self._in_a_row:
            self._usual.extend(self._in_a_row)
            self._in_a_row.clear()
        self._usual.append(length)
        self._until_judged -= 1
        if not self._until_judged:
            self._judge()
        return None

    def _slowdown(self) -> Slowdown:
        found = Slowdown(len(self._in_a_row), round(median(self._in_a_row)), self._usual_ns)
        self.restart()
        return found

    def _judge(self) -> None:
        self._until_judged = JUDGE_EVERY
        self._usual_ns = round(median(self._usual))
        bar = self._bar = self._factor * self._usual_ns
        stretches = [sum(1 for _ in group) for is_long, group in groupby(self._usual, bar.__le__) if is_long]
        share = (sum(stretches) + 0.5) / len(self._usual)
        by_chance = math.ceil(math.log(CHANCE) / math.log(share))
        self._needed = max(LEAST_IN_A_ROW, by_chance, max(stretches, default=0) + 1)
