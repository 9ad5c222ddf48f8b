"""`ddptrace watch RUN`: show a run while it is being recorded."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from ddptrace.analysis.result import Result
    from ddptrace.live.batch import RankNow
    from ddptrace.live.run_folders import Silence
    from ddptrace.live.watched import Watched
    from ddptrace.render.watch.screen import Pages, Screen
    from ddptrace.render.watch.view import LastSteps, RankView, State, View

TICK_S: Final = 1.0
PLAIN_EVERY_S: Final = 5.0
"""If the output is no terminal."""
MOST_OF_A_CORE: Final = 0.2
CATCH_UP_S: Final = 1.0
"""How long to read older records before the first picture."""
SILENT_NS: Final = 10 * 10**9
SILENT_STEPS: Final = 3
"""A rank is silent if it has recorded no training for SILENT_NS and for the time of SILENT_STEPS steps."""


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Print the current state once and exit.")
def watch(run: Path, once: bool) -> None:
    """Show a job on the screen while it runs.

    Shows its step time and where that goes, its buckets, ranks and findings, over the last steps of each rank. RUN is
    the run directory that the job writes; it need not exist yet. The screen closes when the run ends. If the output is
    not a terminal, watch prints a snapshot every few seconds.
    """
    from ddptrace.errors import RunDirectoryError
    from ddptrace.live.watched import Watched
    from ddptrace.load.run_folder import is_run
    from ddptrace.render.watch.screen import Pages, Screen, is_terminal

    if once and not run.exists():
        raise RunDirectoryError(f"{run} does not exist; give the directory that ddptrace.trace writes to")
    watcher = Watcher(Watched(run), str(run))
    if run.exists() and not is_run(run):
        raise RunDirectoryError(
            f"{run} holds no run; give the directory that ddptrace.trace writes to, or start the job first"
        )
    if once:
        watcher.look(whole=True)
        Pages().draw(watcher.view(every_s=None))
        return
    with Screen() if is_terminal() else Pages() as screen:
        _follow(watcher, screen, TICK_S if isinstance(screen, Screen) else PLAIN_EVERY_S)


def _follow(watcher: Watcher, screen: Screen | Pages, tick_s: float) -> None:
    """Draw until the run is over or the user quits."""
    try:
        while True:
            watcher.look_when_due(tick_s)
            screen.draw(watcher.view(every_s=watcher.every_s, keys=screen.keys))
            if watcher.is_over or screen.wait(tick_s):
                return
    except KeyboardInterrupt:
        return


class Watcher:
    """Looks at the run at a pace at which this process takes no more than `MOST_OF_A_CORE`."""

    def __init__(self, watched: Watched, path: str) -> None:
        self.every_s = TICK_S
        self._watched = watched
        self._path = path
        self._last: LastSteps | None = None
        self._silences: dict[tuple[int, int], Silence] = {}  # by attempt and rank
        self._due_s = float("-inf")
        self._looked_s, self._spent_s = time.monotonic(), time.process_time()

    @property
    def is_over(self) -> bool:
        return self._watched.is_over

    def look_when_due(self, tick_s: float) -> None:
        """Look, unless the last look was too recent for what it cost."""
        if time.monotonic() < self._due_s:
            return
        began_s, spent_s = time.monotonic(), time.process_time()
        self.look()
        cost_s = time.process_time() - spent_s
        self.every_s = max(tick_s, cost_s / MOST_OF_A_CORE)
        self._due_s = began_s + self.every_s - TICK_S / 10  # tolerate a tick that comes a little early

    def look(self, *, whole: bool = False) -> None:
        """Read what is new, once per rank so that all show the same time, and compare the ranks.

        Before the first step, and if `whole`, read until nothing is left.
        """
        from ddptrace.analyzer import uncollected

        until_s = float("inf") if whole else time.monotonic() + CATCH_UP_S
        with uncollected():
            self._watched.look()
            while self._watched.is_behind and time.monotonic() < until_s and (whole or self._last is None):
                self._watched.look()
            self._see(self._watched.result())

    def _see(self, result: Result | None) -> None:
        from ddptrace.render.watch.view import last_steps

        if result is None:
            self._last = None
        elif self._last is None or self._last.result is not result:
            self._last = last_steps(result)

    def view(self, *, every_s: float | None, keys: bool = False) -> View:
        """Return the state at this moment. `every_s`: seconds between looks; None for a single look."""
        from ddptrace.render.watch.view import View

        watched, now_ns = self._watched, time.time_ns()
        ranks = watched.ranks
        identity = ranks[0].identity if ranks else None
        return View(
            self._path,
            is_there=watched.is_there,
            run_id="" if identity is None else identity.run_id,
            attempt=0 if identity is None else identity.attempt,
            world_size=watched.world_size,
            ranks=tuple(map(self._rank, ranks)),
            last=self._last,
            is_behind=self._is_catching_up,
            is_over=watched.is_over,
            left_s=_left_s(ranks, now_ns),
            notes=watched.missing,
            every_s=every_s,
            keys=keys,
        )

    def _rank(self, now: RankNow) -> RankView:
        from ddptrace.live.run_folders import Silence
        from ddptrace.render.watch.view import RankView

        silence = self._silences.setdefault((now.identity.attempt, now.identity.rank), Silence())
        silent_ns = silence.ns(now.worked_unix_ns, is_behind=now.waits)
        return RankView(now.identity.rank, self._state(now, silent_ns), now.found, silent_ns)

    def _state(self, now: RankNow, silent_ns: int) -> State:
        step_ns = 0 if self._last is None else self._last.summary.wall_ns or 0
        if now.gone or now.closed:
            return "gone" if now.gone else "ended"
        most_ns = max(SILENT_NS, SILENT_STEPS * step_ns) + round(
            self.every_s * 1e9
        )  # the state is as old as the last look
        return "silent" if silent_ns > most_ns and not self._is_catching_up else "running"

    @property
    def _is_catching_up(self) -> bool:
        return self._watched.is_behind and self._last is None


def _left_s(ranks: Sequence[RankNow], now_ns: int) -> float | None:
    """Return how long to wait for a restart of a job whose ranks are all gone; None if some are not."""
    from ddptrace.live.run_folders import LEFT_NS

    if not ranks or not all(now.gone or now.closed for now in ranks):
        return None
    return max(0, LEFT_NS - (now_ns - max(now.beat_unix_ns for now in ranks))) / 1e9
